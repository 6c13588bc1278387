"""Ctrl-C, exceptions of signal handlers and timeouts surface at once in every mode; the loader continues exactly."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import warnings

import pytest

import penstock as ps
from penstock.engine import stalls

WANT = [list(range(i, i + 4)) for i in range(0, 64, 4)]


class Preempted(Exception):
    pass


def _raise(*_) -> None:
    raise Preempted


@pytest.fixture
def handler():
    before = signal.signal(signal.SIGUSR1, _raise)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("mode", [{"threads": 0}, {}, {"threads": 2}, {"threads": 0, "timeout": 60}], ids=str)
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, Preempted)])
@pytest.mark.parametrize("skip", [False, True])
def test_a_signal_while_a_batch_is_computed(mode: dict, number: int, kind: type, skip: bool) -> None:
    hangs = [True]

    def slow(record: dict) -> dict:
        if record["x"] == 41 and hangs:
            time.sleep(5)
        return record

    pipeline = ps.from_arrays({"x": range(64)}).map(slow, version="1")
    loader = (pipeline.skip_errors() if skip else pipeline).batch(4).to_numpy(**mode)
    timer, seen, began = threading.Timer(0.3, os.kill, (os.getpid(), number)), [], time.monotonic()
    timer.start()
    with pytest.raises(kind):
        for batch in loader:
            seen.append(batch["x"].tolist())
    assert time.monotonic() - began < 4, "raised while the batch was computed, not after it"
    hangs.clear()
    assert seen + [b["x"].tolist() for b in loader] == WANT
    assert loader.ledger.total == 0


@pytest.mark.usefixtures("handler")
def test_a_signal_between_batches_of_one_range() -> None:
    """Many batches are computed in one call; what was computed is not delivered first."""
    loader, seen = ps.from_arrays({"x": range(40_000)}).batch(4).to_numpy(threads=0), []
    with pytest.raises(Preempted):
        for batch in loader:
            seen.append(int(batch["x"][0]))
            if len(seen) == 5000:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
    assert len(seen) == 5000 == loader.step


@pytest.mark.parametrize("mode", [{"threads": 0}, {}, {"threads": 2}], ids=str)
@pytest.mark.parametrize("after_batch", [False, True])
def test_a_timeout_works_in_every_mode(mode: dict, after_batch: bool) -> None:
    def slow(columns: dict) -> dict:
        if 40 in columns["x"]:
            time.sleep(4)
        return columns

    rows = ps.from_arrays({"x": range(64)})
    pipeline = rows.batch(4).map_batches(slow) if after_batch else rows.map_batches(slow).batch(4)
    seen = []
    with pytest.raises(ps.WorkerDied, match="within 0.5 s"):
        for batch in pipeline.to_numpy(timeout=0.5, **mode):
            seen.append(batch["x"].tolist())
    assert seen == WANT[: len(seen)]
    assert len(seen) <= 10


def test_without_threads_a_timeout_does_not_compute_ahead() -> None:
    made = []

    def note(columns: dict) -> dict:
        made.append((threading.current_thread() is threading.main_thread(), int(columns["x"][0])))
        time.sleep(0.01)
        return columns

    loader = ps.from_arrays({"x": range(64)}).batch(4).map_batches(note).to_numpy(threads=0, timeout=30)
    run = iter(loader)
    time.sleep(0.1)
    assert made == []
    next(run)
    time.sleep(0.1)
    assert made == [(False, 0)]
    run.close()


@pytest.mark.parametrize("timeout", [-1, 0, "x", float("nan"), float("inf"), True, [1]])
def test_wrong_timeouts_are_refused(timeout) -> None:
    with pytest.raises(ps.UsageError, match="seconds above 0 for timeout="):
        ps.from_arrays({"x": range(8)}).batch(2).to_numpy(timeout=timeout)


@pytest.mark.parametrize("mode", [{"threads": 0}, {}, {"threads": 2}, {"workers": 1}], ids=str)
@pytest.mark.parametrize("after_batch", [False, True])
def test_a_stall_is_warned_of_in_every_mode(mode: dict, after_batch: bool, monkeypatch) -> None:
    monkeypatch.setattr(stalls, "SECONDS", 0.5)
    rows = ps.from_arrays({"x": range(64)})
    pipeline = rows.batch(4).map_batches(_stalls) if after_batch else rows.map_batches(_stalls).batch(4)
    with warnings.catch_warnings(record=True) as noted:  # starting a child may be slow too
        warnings.simplefilter("always")
        assert [batch["x"].tolist() for batch in pipeline.to_numpy(**mode)] == WANT
    texts = [str(note.message) for note in noted if "_stalls" in str(note.message)]
    assert len(texts) == 1
    assert re.match(r"penstock: batch \d+ has taken \d+ s so far", texts[0])
    assert _ends(_watchers)


def _stalls(columns: dict) -> dict:
    if 40 in columns["x"]:
        time.sleep(2.5)
    return columns


def _watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-stalls"]


def _ends(left) -> bool:
    gc.collect()  # a loader of another test may keep its own iterator
    return any(not left() or time.sleep(0.05) for _ in range(200))


def test_a_slow_trainer_is_no_stall(monkeypatch) -> None:
    """Only time inside the loader counts; many batches that are each fast are none either."""
    monkeypatch.setattr(stalls, "SECONDS", 0.4)

    def slow(columns: dict) -> dict:
        time.sleep(0.15)
        return columns

    for batch in ps.from_arrays({"x": range(24)}).batch(2).map_batches(slow).to_numpy(threads=0):
        if batch["x"][0] in (0, 10):
            time.sleep(1)
        assert _watchers()
    assert _ends(_watchers)


def test_a_dropped_iterator_is_not_watched() -> None:
    loader = ps.from_arrays({"x": range(8)}).batch(2).to_numpy(threads=0)
    run = iter(loader)
    next(run)
    assert _watchers()
    del run
    assert loader.loop is None, "collected at once, not by the garbage collector"
    assert _ends(_watchers)


def test_a_stall_of_a_stream(monkeypatch) -> None:
    monkeypatch.setattr(stalls, "SECONDS", 0.5)
    datasets = pytest.importorskip("datasets")

    def texts():
        for i in range(8):
            if i == 6:
                time.sleep(2)
            yield {"text": f"text {i}"}

    stream = datasets.IterableDataset.from_generator(texts)
    loader = ps.CapibaraDataLoader(tokenizer="bytes", dataset_name=stream, batch_size=2, max_length=8, prefetch=1)
    with pytest.warns(RuntimeWarning, match=r"batch \d has taken"):
        assert len(list(loader)) == 4
    assert _ends(_watchers)
