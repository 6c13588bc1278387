"""`pipeline.plan` of remote JSON lines and tar shards: the requests and bytes that an epoch on a real server takes."""

import pytest

import penstock as ps
from penstock.storage import metrics
from penstock.storage.hedge import Hedger
from tests.remote.test_remote_formats import tar
from tests.remote.test_remote_lines import corpus, upload

__all__ = ["corpus"]  # a fixture


@pytest.fixture(autouse=True)
def no_hedges(monkeypatch):
    """A second request beside a slow one is not in the plan, and depends on how busy the machine is."""
    monkeypatch.setattr(Hedger, "allow", lambda _: False)


def counted(pipeline, world, epoch=0):
    """Requests and bytes of all steps of all ranks, one after another."""
    before = metrics.counters()
    for rank in range(world):
        loader = pipeline.shard(rank, world).to_numpy(threads=0)
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
            assert plan.reading.exact
            counts = counted(pipeline, world)
            assert (round(plan.reading.requests), round(plan.reading.bytes)) == counts, (name, world)
            assert (round(plan.reading.later_requests), round(plan.reading.later_bytes)) == counted(pipeline, world, 1)
            assert order(local).batch(12).plan(world=world, hosts=world).reading == plan.reading
    assert plan.reading.corpus_bytes == sum(path.stat().st_size for path in corpus.glob(f"*.{kind}"))
    assert "every step requests its records: the fleet fetches" in plan.advice[0]
    busy = source.shuffle(seed=3).batch(12).plan(step_seconds=1e-4, gpu_price=1e-9)
    assert "GET/s of the fleet (above 2,500)" in busy.advice[0]
    assert "a token store or Parquet files" in busy.advice[0]
    assert not busy.choices  # the formulas of blocks and lanes are those of a cache


def test_a_mixture_of_files_takes_the_planned_requests(s3, corpus, tmp_path):
    (shards := tmp_path / "tar").mkdir()
    tar(shards)
    lines = ps.read_jsonl(upload(s3, corpus, tmp_path.name + "/lines"), storage_options=s3.options)
    records = ps.read_tar(upload(s3, shards, tmp_path.name + "/tar"), storage_options=s3.options)
    branches = [lines.select("text").shuffle(seed=1), records.rename({"txt": "text"}).select("text").shuffle(seed=2)]
    pipeline = ps.mix(branches, weights=[3, 1], stop="first").batch(8)
    plan = pipeline.plan()
    assert plan.reading is not None
    assert plan.reading.exact
    assert (round(plan.reading.requests), round(plan.reading.bytes)) == counted(pipeline, 1)
