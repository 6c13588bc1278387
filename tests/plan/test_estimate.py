"""`pipeline.plan`: steps, tokens, drops and requests are those of the real loader; every pipeline has a plan."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import ArgumentError, UsageError
from penstock.plan.estimate import Run, estimate_numbers
from penstock.plan.order_choices import Order
from penstock.storage import metrics, objects
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

PAGE = 4096


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 4 KiB pages, documents of 1 to 200 tokens."""
    folder, draw = tmp_path_factory.mktemp("store"), np.random.default_rng(1)
    made = []
    for shard in range(3):
        with ShardWriter(folder / f"{shard:05}.tokens", vocab_size=1000, page_bytes=PAGE) as writer:
            documents = [draw.integers(0, 1000, n).tolist() for n in draw.integers(1, 200, 150 + 40 * shard)]
            writer.add(Ragged.of(documents))
        made.append(writer.finish())
    write_manifest(folder, made)
    return folder


def requests_one_by_one(store: Path, pipeline: ps.Pipeline, world: int, hosts: int, gap: int, most: int) -> list[Any]:
    """Requests and bytes of each host in two epochs: pages of each step that it has not yet, merged one at a time."""
    shards = ps.open_store(store).definition.origin.manifest.shards  # type: ignore[union-attr]
    edges = np.cumsum([0, *(shard.tokens for shard in shards)])
    out = []
    for host in range(hosts):
        kept: set[tuple[int, int]] = set()
        totals = []
        requests = sent = 0
        loaders = [
            pipeline.shard(rank, world).to_numpy(threads=0)
            for rank in range(host * world // hosts, (host + 1) * world // hosts)
        ]
        for step in range(2 * len(loaders[0])):
            if step == len(loaders[0]):
                totals.append((requests, sent))
                requests = sent = 0
            for loader in loaders:  # each rank fetches for itself, into the cache of the host
                wanted = set()
                for row in range(len(loader.batch_at(step)["input_ids"])):
                    first, stop = loader.why(step, row)["from"]["tokens"]
                    tokens = np.arange(first, stop)
                    shard = np.searchsorted(edges, tokens, "right") - 1
                    byte = 4096 + 2 * (tokens - edges[shard])
                    wanted |= {*zip(shard.tolist(), (byte // PAGE).tolist(), strict=True)}
                    wanted |= {*zip(shard.tolist(), ((byte + 1) // PAGE).tolist(), strict=True)}
                group: list[tuple[int, int]] = []
                for page in sorted(wanted - kept):
                    near = group and page[0] == group[-1][0] and (page[1] - group[-1][1] - 1) * PAGE <= gap
                    if not near or (page[1] - group[0][1] + 1) * PAGE > most:
                        group = []
                        requests += 1
                    before = group[-1][1] if group else page[1] - 1
                    sent += (page[1] - before) * PAGE
                    kept |= {(page[0], number) for number in range(before + 1, page[1] + 1)}
                    group.append(page)
        out.append((*totals, (requests, sent)))
    return out


@pytest.mark.parametrize(("world", "hosts"), [(1, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize(("gap", "most"), [(0, 3 * PAGE), (2 * PAGE, 5 * PAGE), (1 << 20, 8 << 20)])
def test_requests_are_counted_exactly(store: Path, world: int, hosts: int, gap: int, most: int) -> None:
    pipeline = ps.open_store(store).windows(50, 37).shuffle(seed=3).batch(12)
    plan = pipeline.plan(world=world, hosts=hosts, assume={"gap_bytes": gap, "get_bytes": most})
    expected = requests_one_by_one(store, pipeline, world, hosts, gap, most)
    assert plan.reading is not None
    assert plan.reading.exact
    assert plan.reading.requests == pytest.approx(sum(first[0] for first, _ in expected))
    assert plan.reading.bytes == pytest.approx(sum(first[1] for first, _ in expected))
    assert plan.reading.later_requests == pytest.approx(sum(second[0] for _, second in expected))
    assert plan.reading.later_bytes == pytest.approx(sum(second[1] for _, second in expected))
    assert plan.reading.requests_per_host == pytest.approx(plan.reading.requests / hosts)


def test_a_count_of_some_of_the_hosts_is_not_exact(store: Path) -> None:
    reading = ps.open_store(store).windows(50, 37).shuffle(seed=3).batch(12).plan(world=12, hosts=12).reading
    assert reading is not None
    assert not reading.exact
    assert reading.how.endswith("on 8 of 12 hosts")


def pipelines(store: Path) -> dict[str, ps.Pipeline]:
    documents = ps.open_store(store)
    texts = ps.from_texts([f"text {i}" for i in range(100)])
    return {
        "windows": documents.windows(32).shuffle(seed=1).batch(8),
        "file order": documents.windows(32).batch(8, remainder="short"),
        "blocks": documents.windows(32).shuffle(seed=1, block=16, window=4).batch(8),
        "lanes": documents.windows(32).shuffle(seed=1, lanes=8, block=16, window=4).batch(8),
        "pack": documents.pack(128).shuffle(seed=1).batch(4),
        "concat": documents.pack(128, strategy="concat").shuffle(seed=1).batch(4),
        "pad": documents.shuffle(seed=1).batch(8).pad(200),
        "longest": documents.shuffle(seed=1).batch(8).pad(),
        "bucket": documents.shuffle(seed=1).bucket([50, 100], batch_size=8),
        "batch_tokens": documents.shuffle(seed=1).batch_tokens(1000),
        "mix": ps.mix([documents.windows(32).shuffle(1), documents.windows(32).shuffle(2)], stop="first").batch(8),
        "filter": documents.windows(32).filter(lambda row: row["input_ids"][0] > 9).shuffle(seed=1).batch(8),
        "map": texts.map(lambda record: record).shuffle(seed=1).batch(8),
        "repeat": documents.windows(32).shuffle(seed=1).repeat(2).batch(8),
    }


NAMES = ["windows", "file order", "blocks", "lanes", "pack", "concat", "pad", "longest", "bucket", "batch_tokens"]


@pytest.mark.parametrize("name", [*NAMES, "mix", "filter", "map", "repeat"])
@pytest.mark.parametrize(("world", "hosts"), [(1, 1), (4, 2)])
def test_every_pipeline_has_a_plan_of_the_loaders_steps(store: Path, name: str, world: int, hosts: int) -> None:
    pipeline = pipelines(store)[name]
    plan = pipeline.plan(world=world, hosts=hosts, epochs=2)
    loaders = [pipeline.shard(rank, world).to_numpy(threads=0) for rank in range(world)]
    batches = [list(loader) for loader in loaders]
    assert plan.steps_per_epoch == len(loaders[0])
    assert plan.steps == 2 * len(loaders[0])
    real = [sum(int(batch.get("valid", np.ones(1)).sum()) if "valid" in batch else len(next(iter(batch.values())))
                for batch in made) for made in batches]  # fmt: skip
    assert plan.rows_per_rank == pytest.approx(sum(real) / world / len(loaders[0]), rel=0.05)
    assert plan.reading is not None
    assert plan.reading.requests >= 1
    if plan.batch is not None and "input_ids" in batches[0][0] and plan.steps_per_epoch and name != "longest":
        shown = sum(batch["input_ids"].size for made in batches for batch in made)
        assert plan.tokens_per_epoch == pytest.approx(shown, rel=0.02)
    if name != "map":
        assert plan.reading.bytes <= hosts * 2 * plan.reading.corpus_bytes + hosts * 60 * PAGE
    assert json.loads(json.dumps(plan.to_json()))["steps_per_epoch"] == plan.steps_per_epoch
    assert "steps per epoch" in str(plan)


def test_what_is_dropped_is_what_the_loader_drops(store: Path) -> None:
    documents = ps.open_store(store)
    tokens = int(documents.definition.origin.n_tokens)  # type: ignore[union-attr]
    plan = documents.windows(50).shuffle(seed=1).batch(16).plan()
    rows = (tokens - 51) // 50 + 1
    assert plan.dropped == {"tokens_left_over": tokens - (rows * 50 + 1), "rows_left_over": rows % 16}
    dropped = documents.pack(64, overlong="drop").batch(4).plan().dropped
    lengths = documents.definition.origin.lengths(np.arange(len(documents.rows())))  # type: ignore[union-attr]
    assert dropped["documents_dropped"] == int((lengths > 64).sum())
    bucketed = documents.bucket([50, 100], batch_size=8).plan().dropped
    assert bucketed["documents_left_over"] == sum(
        int(((lengths > low) & (lengths <= high)).sum()) % 8 for low, high in ((0, 50), (50, 100), (100, 10**9))
    )


def test_padding_to_the_longest_reads_the_full_batch_on_every_host(store: Path) -> None:
    documents = ps.open_store(store).shuffle(seed=1).batch(8)
    few = {"cache_bytes": 1, "gap_bytes": 0}
    longest, fixed = (documents.pad(to).plan(world=4, hosts=4, assume=few) for to in ("longest", 200))
    assert longest.reading is not None
    assert fixed.reading is not None
    assert longest.reading.bytes > 2.5 * fixed.reading.bytes
    assert any("full global batch" in note for note in longest.notes)
    assert not fixed.notes


def test_images_and_tar_and_jsonl(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for i in range(40):
        (images / f"{i}.png").write_bytes(bytes(1000 + i))
    plan = ps.read_images(images, labels=None).shuffle(seed=1).batch(8).plan(world=2, hosts=2)
    assert plan.reading is not None
    assert plan.reading.requests == 40  # one object per image
    assert plan.reading.later_requests == 40  # nothing keeps them
    assert plan.reading.bytes_per_row == pytest.approx(1019.5, abs=1)
    assert plan.tokens_per_step is None
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(40):
            info = tarfile.TarInfo(f"{i}.bin")
            info.size = 3000
            tar.addfile(info, io.BytesIO(bytes(3000)))
    shards = ps.read_tar(tmp_path / "a.tar", index=None).shuffle(seed=1).batch(8).plan(assume={"page_bytes": 4096})
    assert shards.reading is not None
    assert shards.reading.corpus_bytes == pytest.approx((tmp_path / "a.tar").stat().st_size, rel=0.01)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "x" * 90}) + "\n" for _ in range(50)))
    lines = ps.read_jsonl(tmp_path / "a.jsonl").batch(10).plan()
    assert lines.reading is not None
    assert lines.reading.requests == 3  # of 1, 2 and 2 steps: lines are requested ahead, and not cached
    assert lines.order == "file order"


def test_a_mixture_without_an_end_has_figures_per_step(store: Path) -> None:
    documents = ps.open_store(store).windows(32)
    plan = ps.mix([documents.shuffle(1), documents.shuffle(2)], weights=[3, 1]).batch(8).plan(world=2)
    assert plan.steps_per_epoch is None
    assert plan.steps is None
    assert plan.period == "1,000 steps"
    assert plan.tokens_per_step == 8 * 32
    assert plan.reading is not None
    assert "per 1,000 steps" in str(plan)


def test_batch_and_hosts_are_completed_or_refused(store: Path) -> None:
    windows = ps.open_store(store).windows(32)
    assert windows.plan(batch=16).batch == windows.batch(8).plan(batch=16).batch == 16
    assert windows.plan(batch=32, world=16).hosts == 2
    assert windows.plan(batch=32, hosts=4).world == 4
    for wrong, text in (
        (windows.plan, "a batch size"),
        (lambda: windows.plan(batch=9, world=2), "2 ranks can share equally"),
        (lambda: windows.plan(batch=8, world=2, hosts=4), "at most as many hosts as ranks"),
        (lambda: windows.plan(batch=0), "batch: an integer"),
        (lambda: windows.plan(batch=8, step_seconds=-1.0), "step_seconds: a number above 0"),
        (lambda: windows.plan(batch=8, assume={"latency": -1}), "latency"),
        (lambda: ps.open_store(store).batch_tokens(100, overlong="truncate").plan(batch=8), "decides it"),
    ):
        with pytest.raises(UsageError, match=text):
            wrong()
    with pytest.raises(ArgumentError, match="latency") as raised:
        windows.plan(batch=8, assume={"latncy": 1})
    assert "'latency'" in raised.value.fix
    with pytest.raises(TypeError, match="hosts"):
        windows.plan(batch=8, host=3)  # type: ignore[call-arg]


def test_numbers_alone_are_the_figures_of_a_store(store: Path) -> None:
    tokens = int(ps.open_store(store).definition.origin.n_tokens)  # type: ignore[union-attr]
    real = ps.open_store(store).windows(50).shuffle(seed=0).batch(12).plan(world=4, hosts=2, assume={"gap_bytes": 0})
    sizes = {"gap_bytes": 0, "page_bytes": PAGE, "shard_bytes": tokens * 2 // 3}
    alone = estimate_numbers(Run(12, 4, 2), tokens=tokens, length=50, assume=sizes)
    assert (alone.steps_per_epoch, alone.tokens_per_epoch, alone.dropped) == (
        real.steps_per_epoch, real.tokens_per_epoch, real.dropped,
    )  # fmt: skip
    assert alone.reading is not None
    assert real.reading is not None
    assert alone.reading.requests == pytest.approx(real.reading.requests, rel=0.2)


def test_ten_to_the_twelve_samples_on_ten_to_the_five_ranks(tmp_path: Path) -> None:
    """In its own process: peak memory below 200 MB, and a few seconds (the bound is generous for a loaded machine)."""
    script = """
import time
began = time.process_time()
from penstock.cli.main import main
main(["plan", "--samples", "1e12", "--sample-bytes", "2050", "--batch", "1e6", "--world", "1e5", "--step-seconds", "2",
      "--gpu-price", "2", "--json"])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.process_time() - began, int(peak.split()[1]) / 1000)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    shown, figures = out.stdout.strip().split("\n")
    facts, (seconds, megabytes) = json.loads(shown), map(float, figures.split())
    assert facts["steps_per_epoch"] == 10**6
    assert facts["hosts"] == 12_500
    assert megabytes < 200
    assert seconds < 10
    assert facts["reading"]["requests"] == pytest.approx(1e12, rel=0.01)  # a page has 32 samples of 10^12: no reuse
    assert facts["reading"]["amplification"] == pytest.approx(33, rel=0.02)
    assert facts["reading"]["gets_per_second"] == pytest.approx(5e5, rel=0.01)
    assert ".shuffle(seed, lanes=12500" in facts["advice"][0]


@pytest.mark.parametrize("order", ["global", "file order"])
def test_any_batch_is_planned_in_bounded_work(order: str) -> None:
    plan = estimate_numbers(Run(10**9, 10**5), samples=10**15, sample_bytes=3, order=Order(order))
    assert plan.steps_per_epoch == 10**6
    assert plan.reading is not None


def test_advice_gives_lanes_with_numbers_when_a_global_shuffle_costs_too_much() -> None:
    run = Run(4096, 512, 64, step_seconds=1.0, gpu_price=2.0)
    plan = estimate_numbers(run, tokens=5 * 10**12, length=1024)
    (advice,) = plan.advice
    assert "GET/s of the fleet (above 2,500)" in advice
    assert ".shuffle(seed, lanes=1024, block=2046, window=64)" in advice
    assert {choice.order.kind for choice in plan.choices} == {"global", "blocks", "lanes"}
    best, blocks, lanes = (choice.quality.pairs for choice in plan.choices)
    assert best < lanes < blocks
    assert plan.choices[2].amplification == 1
    slow = estimate_numbers(Run(4096, 512, 64, step_seconds=10.0, gpu_price=2.0), tokens=5 * 10**12, length=1024)
    assert slow.advice == ()
    cheap = estimate_numbers(Run(4096, 512, 64, step_seconds=10.0, gpu_price=0.01), tokens=5 * 10**12, length=1024)
    assert "of the price of the GPUs (above 1%)" in cheap.advice[0]
    unknown = estimate_numbers(Run(4096, 512, 64), tokens=5 * 10**12, length=1024)
    assert "if a step takes" in unknown.advice[0]
    small = estimate_numbers(Run(10**7, 1, 1, step_seconds=1.0), tokens=5 * 10**12, length=1024)
    assert "of cache on a host" in small.advice[0]


def test_images_as_single_objects_are_not_helped_by_lanes(tmp_path: Path) -> None:
    for i in range(64):
        (tmp_path / f"{i}.png").write_bytes(bytes(3000))
    pipeline = ps.read_images(tmp_path, labels=None).shuffle(seed=1).batch(8)
    plan = pipeline.plan(step_seconds=0.001, assume={"block_bytes": 6000, "window_blocks": 2})
    assert "tar shards" in plan.advice[0]


def test_costs_follow_from_prices() -> None:
    run = Run(1024, 64, 8, step_seconds=0.5, gpu_price=3.0)
    plan = estimate_numbers(run, samples=10**9, sample_bytes=5000, assume={"get_price": 0.005, "egress_price": 0.02})
    assert plan.reading is not None
    assert plan.cost is not None
    opening = 8 * plan.reading.opening_requests_per_host
    assert plan.cost.requests == pytest.approx((plan.reading.requests + opening) / 1000 * 0.005)
    assert plan.cost.egress == pytest.approx(plan.reading.bytes / 1e9 * 0.02)
    assert plan.cost.total == pytest.approx(plan.cost.requests + plan.cost.egress)
    assert plan.cost.gpus == pytest.approx(3.0 * 64 * (10**9 // 1024) * 0.5 / 3600)
    assert plan.cost.share == pytest.approx(plan.cost.total / plan.cost.gpus)
    assert plan.reading.gets_per_second == pytest.approx(plan.reading.requests / (10**9 // 1024) / 0.5)


def test_the_cache_that_a_host_needs_grows_with_the_lookahead() -> None:
    figures = [
        estimate_numbers(Run(1024, 8, 1, step_seconds=s), samples=10**10, sample_bytes=2000).cache for s in (5.0, 0.1)
    ]
    assert [cache.lookahead_steps for cache in figures if cache] == [16, 100]
    assert figures[0] is not None
    assert figures[1] is not None
    assert figures[1].least_bytes == pytest.approx(100 / 16 * figures[0].least_bytes, rel=1e-6)


def remote_store(s3: Any, tmp_path: Path) -> tuple[Path, str]:
    """The folder and the URL of a store of three shards of documents."""
    folder, draw = tmp_path / "store", np.random.default_rng(2)
    folder.mkdir()
    made = []
    for shard in range(3):
        with ShardWriter(folder / f"{shard:05}.tokens", vocab_size=1000, page_bytes=PAGE) as writer:
            writer.add(Ragged.of([draw.integers(0, 1000, 700).tolist() for _ in range(100)]))
        made.append(writer.finish())
    write_manifest(folder, made)
    url = str(s3.url(f"planned-{tmp_path.name}"))
    for path in sorted(folder.iterdir()):
        assert objects.put_new(f"{url}/{path.name}", path, s3.options)
    return folder, url


def test_a_run_from_an_object_store_makes_the_planned_requests(s3: Any, tmp_path: Path) -> None:
    """Steps one after another: as many requests and bytes as planned, besides opening the manifest and the shards."""
    folder, url = remote_store(s3, tmp_path)
    pipeline = ps.open_store(url, storage_options=s3.options, cache_dir=tmp_path / "cache").windows(100).shuffle(seed=5)
    plan = pipeline.batch(16).plan()
    local = ps.open_store(folder).windows(100).shuffle(seed=5).batch(16)
    assert plan.reading is not None
    assert plan.reading.exact
    assert plan.to_json()["reading"] == local.plan().to_json()["reading"]  # a plan reads no data
    loader = pipeline.batch(16).to_numpy(threads=0)
    before = metrics.counters()
    for step in range(len(loader)):
        loader.batch_at(step)
    used = metrics.since(before)["s3"]
    assert used.requests == plan.reading.requests + plan.reading.opening_requests_per_host - 1  # the manifest was read
    assert used.retries == used.hedges == 0


@pytest.mark.parametrize("rows", ["pad", "pack", "bucket"])
def test_tables_of_documents_are_part_of_the_plan(s3: Any, tmp_path: Path, rows: str) -> None:
    _, url = remote_store(s3, tmp_path)
    stored = ps.open_store(url, storage_options=s3.options, cache_dir=tmp_path / "cache")
    pipeline = {
        "pad": lambda: stored.shuffle(seed=5).batch(4).pad(to="longest"),
        "pack": lambda: stored.pack(1400).shuffle(seed=5).batch(4),
        "bucket": lambda: stored.shuffle(seed=5).bucket([500, 1000], batch_size=4),
    }[rows]()
    before = metrics.counters()
    loader = pipeline.to_numpy(threads=0)
    for step in range(len(loader)):
        loader.batch_at(step)
    used, reading = metrics.since(before)["s3"], pipeline.plan().reading
    assert reading is not None
    planned = reading.requests + reading.opening_requests_per_host - 1  # the manifest was read
    sent = reading.bytes + reading.opening_bytes_per_host
    assert used.requests == planned
    assert 0 <= used.bytes - sent <= 3 * 66_000  # the ends of the shards
    assert used.retries == used.hedges == 0


def test_more_bytes_than_addresses_are_refused() -> None:
    for samples, size in ((10**12, 10**9), (10**18, 10**6), (4 * 10**18, 2)):
        with pytest.raises(UsageError, match="at most 4.6 EB"):
            estimate_numbers(Run(1024), samples=samples, sample_bytes=size)
    assert estimate_numbers(Run(1024), samples=10**12, sample_bytes=10**6).reading is not None


def test_ranks_that_make_the_same_batch_without_a_cache_all_request_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"x": list(range(1 + i % 5))}) + "\n" for i in range(64)))
    pipeline = ps.read_jsonl(path, field=None).batch(8).pad()
    one, two = (pipeline.plan(world=world, hosts=1).reading for world in (1, 2))
    assert one is not None and two is not None
    assert two.requests == 2 * one.requests
    assert two.bytes == 2 * one.bytes
