"""`pipeline.plan` of remote files and token stores: the requests and bytes that an epoch on a real server takes."""

import gzip
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.engine import rows_ahead
from penstock.plan import ahead_groups
from penstock.storage import metrics, objects
from penstock.storage.hedge import Hedger
from penstock.storage.page_needs import open_files
from tests.remote.test_remote_formats import tar
from tests.remote.test_remote_lines import corpus, upload
from tests.storage.remote_stores import make
from tests.storage.remote_stores import upload as upload_store

__all__ = ["corpus"]  # a fixture


@pytest.fixture(autouse=True)
def no_hedges(monkeypatch):
    """A second request beside a slow one is not in the plan, and depends on how busy the machine is."""
    monkeypatch.setattr(Hedger, "allow", lambda _: False)
    monkeypatch.setattr(rows_ahead, "WAIT_SECONDS", 60.0)  # nor are requests of a reader on a machine that is held up


def iterated(pipeline, world, epochs=2, threads=1):
    """Requests and bytes of each epoch that all ranks iterate, one rank after another."""
    loaders = [pipeline.shard(rank, world).to_numpy(threads=threads) for rank in range(world)]
    found = []
    for _ in range(epochs):
        before = metrics.counters()
        for loader in loaders:
            for _ in loader:
                pass
        used = metrics.since(before)["s3"]
        assert used.retries == used.hedges == 0
        found.append((used.requests, used.bytes))
    return found


def planned(pipeline, world=1, hosts=None):
    """Requests and bytes of the first and of a later epoch, as planned."""
    reading = pipeline.plan(world=world, hosts=hosts or world).reading
    assert reading is not None
    assert reading.exact
    return [
        (round(reading.requests), round(reading.bytes)),
        (round(reading.later_requests), round(reading.later_bytes)),
    ]


def counted(pipeline, world, epoch=0, rank=None):
    """Requests and bytes of all steps of all ranks, one after another; or of `rank`, (number, world)."""
    before = metrics.counters()
    for mine in [(number, world) for number in range(world)] if rank is None else [rank]:
        loader = pipeline.shard(*mine).to_numpy(threads=0)
        for step in range(len(loader)):
            loader.batch_at(step + epoch * len(loader))
    used = metrics.since(before)["s3"]
    assert used.retries == used.hedges == 0
    return used.requests, used.bytes


ORDERS = {
    "global": lambda rows: rows.shuffle(seed=3),
    "file order": lambda rows: rows,
    "lanes": lambda rows: rows.shuffle(seed=3, lanes=4, block=8, window=2),
}


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_an_epoch_takes_the_planned_requests_and_bytes(s3, corpus, tmp_path, kind):
    if kind == "tar":
        (corpus := tmp_path / "tar").mkdir()
        tar(corpus)
    url = upload(s3, corpus, tmp_path.name)
    read = {"jsonl": ps.read_jsonl, "tar": ps.read_tar}[kind]
    source, local = read(f"{url}/*.{kind}", storage_options=s3.options), read(corpus / f"*.{kind}")
    for name, order in ORDERS.items():
        for world in (1, 2):
            pipeline = order(source).batch(12)
            plan = pipeline.plan(world=world, hosts=world)
            assert plan.reading is not None
            assert planned(pipeline, world) == iterated(pipeline, world), (name, world)
            assert order(local).batch(12).plan(world=world, hosts=world).reading == plan.reading
    assert plan.reading.corpus_bytes == sum(path.stat().st_size for path in corpus.glob(f"*.{kind}"))
    advice = {"jsonl": "records are requested for some steps at a time: the fleet fetches ", "tar": "below 2,500 GET/s"}
    assert plan.advice[0].startswith(advice[kind])
    busy = source.shuffle(seed=3).batch(12).plan(step_seconds=1e-4, gpu_price=1e-9)
    assert "GET/s of the fleet (above 2,500)" in busy.advice[0]
    assert "a token store or Parquet files" in busy.advice[0]
    assert not busy.choices  # the formulas of blocks and lanes are those of a cache


def test_an_epoch_takes_the_planned_requests_whatever_threads_find_out(s3, corpus, tmp_path):
    """Without `threads=`: nothing is tried that requests records again, and no child requests each step by itself."""
    source = ps.read_jsonl(f"{upload(s3, corpus, tmp_path.name)}/*.jsonl", storage_options=s3.options)
    mapped = source.map(lambda record: record | {"n": len(record["text"])}, version="1")
    for order in ORDERS.values():
        for _ in range(3):
            for pipeline in (order(source).batch(4), order(mapped).batch(4)):
                plan, made = planned(pipeline), iterated(pipeline, 1, threads=None)
                assert all(ours[0] <= 1.2 * theirs[0] for ours, theirs in zip(made, plan, strict=True)), (plan, made)


def test_a_mixture_of_files_takes_the_planned_requests(s3, corpus, tmp_path):
    (shards := tmp_path / "tar").mkdir()
    tar(shards)
    lines = ps.read_jsonl(upload(s3, corpus, tmp_path.name + "/lines"), storage_options=s3.options)
    records = ps.read_tar(upload(s3, shards, tmp_path.name + "/tar"), storage_options=s3.options)
    branches = [lines.select("text").shuffle(seed=1), records.rename({"txt": "text"}).select("text").shuffle(seed=2)]
    pipeline = ps.mix(branches, weights=[3, 1], stop="first").batch(8)
    assert planned(pipeline) == iterated(pipeline, 1)
    assert planned(pipeline, 2) == iterated(pipeline, 2)


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_groups_of_steps_that_are_bounded_by_their_bytes_are_in_the_plan(s3, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(ahead_groups, "CHUNK_BYTES", 1 << 21)
    dice = np.random.default_rng(8)
    for file in range(2):
        texts = [dice.bytes(int(n)).hex() for n in dice.integers(1 << 12, 1 << 17, 200)]
        if kind == "jsonl":
            (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            continue
        with tarfile.open(tmp_path / f"{file}.tar", "w") as made:
            for at, text in enumerate(texts):
                info = tarfile.TarInfo(f"{file}-{at:05}.txt")
                info.size = len(text)
                made.addfile(info, io.BytesIO(text.encode()))
    read = {"jsonl": ps.read_jsonl, "tar": ps.read_tar}[kind]
    source = read(f"{upload(s3, tmp_path, tmp_path.name)}/*.{kind}", storage_options=s3.options)
    for order in ORDERS.values():
        assert planned(order(source).batch(4)) == iterated(order(source).batch(4), 1)
        single = counted(order(source).batch(4), 1)
        assert planned(order(source).batch(4))[0][0] < single[0]  # `batch_at` requests each step by itself


def _images(folder):
    for number in range(24):
        (folder / f"c{number % 2}").mkdir(exist_ok=True)
        made = np.random.default_rng(number).integers(0, 255, (40 + number, 30, 3), np.uint8)
        Image.fromarray(made).save(folder / f"c{number % 2}" / f"{number}.png")


def _parquet(folder):
    rng = np.random.default_rng(1)
    for number in range(3):
        rows = {"text": [f"{n} " * int(rng.integers(9, 999)) for n in range(60)], "other": rng.random(60)}
        table = pa.table(
            rows | {"n": list(range(60)), "bytes": [rng.bytes(int(rng.integers(9, 9999))) for _ in range(60)]}
        )
        more = {"write_page_index": True, "data_page_size": 2000} if number == 1 else {}
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7 + number, compression="zstd", **more)


def _tokens(kind):
    tokens = ps.open_tokens(np.arange(20_000) % 1000, np.arange(0, 20_001, 250), 1000)
    return lambda folder: ps.convert(tokens, folder / "t", kind)


def _texts(folder):
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"{number} words " * (number + 1))


def _gzip(folder):
    for number in range(2):
        lines = "".join(f'{{"text": "{n} words"}}\n' for n in range(60))
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def _json(folder):
    (folder / "a.json").write_text(json.dumps([{"text": f"{n}"} for n in range(60)]))


# How files are written, and read below a path or URL.
SOURCES = {
    "parquet": (_parquet, lambda at, **more: ps.read_parquet(f"{at}/*.parquet", **more)),
    "columns": (_parquet, lambda at, **more: ps.read_parquet(f"{at}/*.parquet", columns=["text", "n"], **more)),
    "mds": (_tokens("mds"), lambda at, **more: ps.read_mds(f"{at}/t", **more)),
    "mds tokens": (_tokens("mds"), lambda at, **more: ps.open_mds(f"{at}/t", **more).windows(100)),
    "megatron": (_tokens("megatron"), lambda at, **more: ps.open_megatron(f"{at}/t", **more).windows(99)),
    "packs": (_tokens("megatron"), lambda at, **more: ps.open_megatron(f"{at}/t", **more).pack(600)),
    "images": (_images, lambda at, **more: ps.read_images(str(at), **more)),
    "texts": (_texts, lambda at, **more: ps.read_text(f"{at}/*.txt", **more)),
    "gzip": (_gzip, lambda at, **more: ps.read_jsonl(f"{at}/*.gz", **more)),
    "json": (_json, lambda at, **more: ps.read_json(f"{at}/a.json", **more)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_takes_the_planned_requests_and_bytes(s3, tmp_path, kind):
    (folder := tmp_path / "data").mkdir()
    write, read = SOURCES[kind]
    write(folder)
    url = s3.url("planned", tmp_path.name)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        objects.put_new(f"{url}/{path.relative_to(folder)}", path, s3.options)
    for name, order in ORDERS.items():
        for world in (1, 2):
            pipelines = [order(read(url, storage_options=s3.options)).batch(6) for _ in range(world)]
            plan = pipelines[0].plan(world=world, hosts=1)  # processes of one host share nothing here
            assert plan.reading is not None
            assert plan.reading.exact
            later = (round(plan.reading.later_requests), round(plan.reading.later_bytes))
            loaders = [pipeline.shard(n, world).to_numpy(threads=0) for n, pipeline in enumerate(pipelines)]
            for epoch, planned in enumerate([(round(plan.reading.requests), round(plan.reading.bytes)), later]):
                before = metrics.counters()
                for loader in loaders:
                    for step in range(len(loader)):
                        loader.batch_at(step + epoch * len(loader))
                used = metrics.since(before).get("s3")
                assert planned == ((used.requests, used.bytes) if used else (0, 0)), (name, world, epoch)
            assert order(read(folder)).batch(6).plan(world=world, hosts=1).reading == plan.reading


def test_what_processes_read_when_they_open_files_is_in_the_plan(s3, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    before = metrics.counters()
    pipeline = ps.read_jsonl(f"{url}/*.jsonl", storage_options=s3.options).shuffle(seed=1).batch(16)
    pipeline.to_numpy(threads=0).batch_at(0)
    used = metrics.since(before)["s3"].bytes
    plan = pipeline.plan(world=16, hosts=2)
    assert plan.reading is not None
    assert plan.reading.opening_bytes_per_host == 8 * plan.reading.corpus_bytes
    assert plan.reading.corpus_bytes <= used < 2 * plan.reading.corpus_bytes  # and the first batch
    assert plan.advice[0].startswith("each of 16 processes reads ")
    assert pipeline.plan().advice[0].startswith("records are requested for some steps at a time")


@pytest.fixture(scope="module")
def stores(s3, tmp_path_factory):
    """Two token stores of two shards, whose rows cross from one shard to the next."""
    root = tmp_path_factory.mktemp("stores")
    folders = [
        make(root / str(seed), 3000, 2, page_bytes=1 << 14, seed=seed) for seed in (3, 2)
    ]  # of different content
    return [upload_store(folder, s3.url("planned", folder.name), s3.options) for folder in folders]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_store_that_is_opened_twice_is_fetched_once(s3, stores, tmp_path, hosts):
    def mixture(host):
        options = {"storage_options": s3.options, "cache_dir": tmp_path / str(host)}
        opened = [ps.open_store(stores[0], **options) for _ in range(2)]
        for store in opened:
            open_files([store.definition.origin._remote(number) for number in range(2)])
        rows = [store.windows(length).shuffle(seed=length) for length, store in zip((512, 512), opened, strict=True)]
        return ps.mix(rows, weights=[2, 1], stop="first").batch(16)

    plan = mixture("plan").plan(world=hosts, hosts=hosts)
    made = np.sum([counted(mixture(host), 1, rank=(host, hosts)) for host in range(hosts)], axis=0)
    assert plan.reading is not None
    assert plan.reading.exact
    assert (round(plan.reading.requests), round(plan.reading.bytes)) == tuple(made)
    assert (
        plan.reading.corpus_bytes
        == ps.open_store(stores[0], storage_options=s3.options).windows(512).batch(16).plan().reading.corpus_bytes
    )


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("order", [{}, {"lanes": 4, "block": 16, "window": 2}])
def test_a_mixture_of_stores_takes_the_planned_requests_also_with_lanes(s3, stores, tmp_path, order, hosts):
    def mixture(host):
        options = {"storage_options": s3.options, "cache_dir": tmp_path / str(host)}
        opened = [ps.open_store(url, **options) for url in stores]
        for store in opened:  # what opening a shard takes is said apart
            open_files([store.definition.origin._remote(number) for number in range(2)])
        rows = [store.windows(512).shuffle(seed=seed, **order) for seed, store in enumerate(opened, 1)]
        return ps.mix(rows, weights=[3, 1], stop="first").batch(16)

    plan = mixture("plan").plan(world=hosts, hosts=hosts)
    assert plan.reading is not None
    assert plan.reading.exact
    made = np.sum([counted(mixture(host), 1, rank=(host, hosts)) for host in range(hosts)], axis=0)
    assert (round(plan.reading.requests), round(plan.reading.bytes)) == tuple(made)
