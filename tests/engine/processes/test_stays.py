"""Loaders that could gain from a child process, and do not move to one by themselves: the verdict says why."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.processes.can_move import MOST_BYTES, MOST_OBJECTS
from tests.engine.processes.test_moved_runs import about_to_move, numbers

LEVEL = 2
LOCK = threading.Lock()


class Own:
    def __call__(self, record: dict) -> dict:
        return record


def with_level(record: dict) -> dict:
    return {"x": record["x"] * LEVEL}


def with_lock(record: dict) -> dict:
    with LOCK:
        return record


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: numbers().map(with_level), "with_level uses LEVEL, of which a child would have a copy"),
        (lambda: numbers().map(with_lock), "with_lock uses LOCK"),
        (lambda: numbers().map(Own(), version="1"), "your own Own"),
        (lambda: ps.from_arrays({"x": np.zeros(MOST_BYTES // 8 + 1)}), "32 MB of data in memory"),
        (lambda: ps.from_arrays({"x": [str(i) for i in range(MOST_OBJECTS + 1)]}), "Python objects would be copied"),
    ],
)
def test_what_could_behave_otherwise_there_stays_and_the_verdict_says_why(make: Callable[[], Any], why: str) -> None:
    loader = about_to_move(make().batch(4).to_numpy(), won=None)
    run = iter(loader)
    next(run)
    assert loader._stats.children == ()
    verdict = loader.stats()["verdict"]
    assert "isolate=True, threads=1 moves them to a child process; the loader does not by itself: " in verdict
    assert why in verdict
    run.close()


def test_asked_for_threads_and_isolate_false_stay() -> None:
    for options in ({"isolate": False}, {"threads": 1}, {"threads": 0}, {"timeout": 60.0}):
        loader = about_to_move(numbers().batch(4).to_numpy(**options), won=None)
        run = iter(loader)
        next(run)
        next(run)
        assert loader._stats.children == (), options
        run.close()


def test_files_that_only_this_process_sees_stay() -> None:
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = fsspec.filesystem("memory")
    with files.open("/moved/a.parquet", "wb") as file:
        pq.write_table(pa.table({"text": ["one"] * 800}), file)
    try:
        loader = about_to_move(ps.read_parquet("memory://moved/a.parquet").batch(4).to_numpy())
        assert len(list(loader)) == 200
        assert loader._known.failed
    finally:
        files.rm("/moved", recursive=True)


def test_frozen_applications_embedded_interpreters_and_one_core_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = numbers().batch(4).to_numpy()
    assert loader._why_not_move() == "" or (os.cpu_count() or 1) < 2
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        assert "started again" in loader._why_not_move()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/usr/bin/blender")
        assert "(blender)" in loader._why_not_move()
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [min(before)])
        try:
            assert "one core" in loader._why_not_move()
        finally:
            os.sched_setaffinity(0, before)


def in_a_daemon(send: Any) -> None:
    loader = about_to_move(numbers().batch(4).to_numpy(), won=None)
    got = sum(int(batch["x"].sum()) for batch in loader)
    send.send((got, loader._known.failed))


def test_daemonic_processes_stay() -> None:
    """As the workers of a DataLoader: they are ended without a chance to end a child."""
    spawn = multiprocessing.get_context("spawn")
    receive, send = spawn.Pipe()
    process = spawn.Process(target=in_a_daemon, args=(send,), daemon=True)
    process.start()
    total, failed = receive.recv()
    process.join()
    receive.close()
    send.close()
    assert total == sum(range(400)) and "daemonic" in failed


class Inside:
    """A dataset whose one row comes from a loader."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Any:
        loader = about_to_move(numbers().batch(4).to_numpy(), won=None)
        return sum(int(batch["x"].sum()) for batch in loader), loader._known.failed


def test_in_the_worker_of_a_dataloader_it_stays() -> None:
    data = pytest.importorskip("torch").utils.data
    [(total, failed)] = data.DataLoader(Inside(), batch_size=None, num_workers=1)
    assert total == sum(range(400)) and "daemonic" in failed
