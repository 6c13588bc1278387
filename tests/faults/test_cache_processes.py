"""Processes that share a page cache, some of them killed at random moments: every batch is right, the bound holds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.store.reader import TokenStore
from penstock.store.remote_store import RemoteStore
from tests.storage.remote_stores import disk_bytes, make, upload

ROOT = Path(__file__).parents[2]
BOUND = 1_300_000  # the store has 1.4 MB; three ranks read about 300 KB at once


@pytest.fixture(scope="module")
def pair(s3, tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("stores") / "corpus", documents=1500, shards=7)
    return folder, upload(folder, s3.url("processes"), s3.options)


def start(pair: Any, s3: Any, cache: Path, rank: int, world: int, epochs: int = 1) -> subprocess.Popen[str]:
    options = {"storage_options": s3.options, "cache_dir": str(cache), "cache_bytes": BOUND}
    job = {
        "url": pair[1], "folder": str(pair[0]), "rank": rank, "world": world, "epochs": epochs, "options": options,
    }  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.storage.remote_stores", json.dumps(job)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0 and "same" in out, errors[-3000:]


def test_ranks_that_share_a_small_cache_make_the_right_batches(pair, s3, tmp_path):
    processes = [start(pair, s3, tmp_path / "c", rank, 3, epochs=2) for rank in range(3)]
    most = 0
    while any(p.poll() is None for p in processes):
        most = max(most, disk_bytes(tmp_path / "c"))
        time.sleep(0.05)
    for process in processes:
        finish(process)
    assert 0 < most <= BOUND


def kill_some(pair: Any, s3: Any, cache: Path, kills: int, seed: int) -> None:
    """Kills a process `kills` times, each at a random batch, beside another one that lives."""
    dice = random.Random(seed)
    survivor = start(pair, s3, cache, 0, 2, epochs=3)
    for number in range(kills):
        victim = start(pair, s3, cache, 1, 2, epochs=50)
        assert victim.stdout is not None
        for _ in range(dice.randrange(1, 12)):
            assert victim.stdout.readline()
        time.sleep(dice.random() * 0.05)
        victim.kill()
        victim.communicate()
        assert disk_bytes(cache) <= BOUND, number
    finish(survivor)
    finish(start(pair, s3, cache, 1, 2))
    assert disk_bytes(cache) <= BOUND
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=cache, cache_bytes=BOUND)
    local = TokenStore(pair[0])
    for at in range(0, local.n_tokens - 500, 50_000):
        starts = np.arange(at, min(at + 50_000, local.n_tokens - 500), 1000)
        np.testing.assert_array_equal(store.gather(starts, 500), local.gather(starts, 500))
    assert not store.cache.budget.stale and disk_bytes(cache) <= BOUND


def test_killed_processes_leave_a_cache_that_is_right(pair, s3, tmp_path):
    kill_some(pair, s3, tmp_path / "c", kills=3, seed=1)


@pytest.mark.soak
def test_fifty_killed_processes_leave_a_cache_that_is_right(pair, s3, tmp_path):
    kill_some(pair, s3, tmp_path / "c", kills=50, seed=2)
