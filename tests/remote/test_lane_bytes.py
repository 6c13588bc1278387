"""What a fleet fetches of a store in an epoch of lanes from a real server: the formula, within 1 %."""

from math import gcd
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.storage import coalesce, page_fetch
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter
from tests.storage.remote_stores import upload

PAGE = 4096  # 16 times less than by default, so that a store of 36 blocks has 47 MB
LANES, BLOCKS, BLOCK, LENGTH, BATCH = 12, 36, 5120, 128, 768  # a block is 1.25 MiB: longer than a request reads over


@pytest.fixture(scope="module")
def store(s3, tmp_path_factory):
    """36 blocks of rows, in two shards; returns its URL."""
    folder = tmp_path_factory.mktemp("stores") / "lanes"
    folder.mkdir()
    tokens = np.random.default_rng(0).integers(0, 60_000, BLOCKS * BLOCK * LENGTH + 1, np.uint16)
    infos = []
    for number, part in enumerate(np.split(tokens, [20 * BLOCK * LENGTH])):
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=60_000, page_bytes=PAGE) as shard:
            shard.add(Ragged(part, np.array([0, len(part)])))
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return upload(folder, s3.url("lane-bytes"), s3.options)


@pytest.mark.parametrize("hosts", [1, 3, 8, 48])
def test_a_fleet_fetches_what_the_formula_says(s3, store, tmp_path: Path, monkeypatch, hosts):
    monkeypatch.setattr(coalesce, "AGAIN", PAGE)  # one page, as by default
    fetched, read_many = [], page_fetch.read_many

    def count(reads, *arguments, **more):
        fetched.extend(read.stop - read.start for read in reads)
        return read_many(reads, *arguments, **more)

    monkeypatch.setattr(page_fetch, "read_many", count)
    rows = 0
    for host in range(hosts):
        opened = ps.open_store(store, storage_options=s3.options, cache_dir=tmp_path / f"host-{host}")
        pipeline = opened.windows(LENGTH).shuffle(seed=5, lanes=LANES, block=BLOCK, window=2)
        loader = pipeline.batch(BATCH, remainder="short").shard(host, hosts).to_numpy()
        rows += sum(len(batch["input_ids"]) for batch in loader)
    assert rows == BLOCKS * BLOCK
    formula = 1 + (hosts - gcd(hosts, LANES)) / LANES
    assert sum(fetched) / (BLOCKS * BLOCK * LENGTH * 2) == pytest.approx(formula, rel=0.01)
