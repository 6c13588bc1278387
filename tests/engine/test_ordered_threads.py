"""The contract in the docstring of `engine/ordered_threads.py`, point by point."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Sequence

import pytest

from penstock.core.errors import WorkerDied
from penstock.engine import ordered_threads, stalls
from penstock.engine.ordered_threads import OrderedThreads


def make(compute, start: int = 0, stop: int | None = 100, **options) -> OrderedThreads:
    settings = {"threads": 2, "ahead": 4, "max_bytes": 1 << 20, "size_of": lambda item: 8} | options
    return OrderedThreads(compute, start, stop, **settings)


def numbers(lo: int, hi: int) -> Sequence[int]:
    return list(range(lo, hi))


def loader_threads() -> list[threading.Thread]:
    # One whose start a signal cut short, in a test before, has no number and stays among Python's threads for ever; so
    # do those that wait for requests to object stores.
    mine = [t for t in threading.enumerate() if t.name.startswith("penstock-") and t.ident is not None]
    return [t for t in mine if not t.name.startswith("penstock-storage")]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == []


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_every_item_once_in_order(threads: int) -> None:
    assert list(make(numbers, 7, 500, threads=threads)) == list(range(7, 500))


def test_order_holds_when_later_work_ends_first() -> None:
    def slow_when_even(lo: int, hi: int) -> list[int]:
        time.sleep(0.004 if lo % 2 == 0 else 0)
        return list(range(lo, hi))

    assert list(make(slow_when_even, stop=60, threads=4)) == list(range(60))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_items_before_a_failure_come_first_and_nothing_after(threads: int) -> None:
    def fails_at_41(lo: int, hi: int) -> list[int]:
        if lo <= 41 < hi:
            raise ValueError("item 41")
        return list(range(lo, hi))

    run = make(fails_at_41, threads=threads)
    got = []
    with pytest.raises(ValueError, match="item 41"):
        for item in run:
            got.append(item)
    assert got == list(range(41))
    with pytest.raises(StopIteration):
        next(run)


def test_closing_ends_the_threads() -> None:
    run = make(numbers, stop=None)
    assert next(run) == 0
    run.close()
    assert loader_threads() == []
    run.close()


def test_dropping_ends_the_threads() -> None:
    run = make(numbers, stop=None)
    assert [next(run) for _ in range(5)] == list(range(5))
    del run  # the fixture sees the threads go


def test_no_more_than_ahead_is_computed() -> None:
    begun: list[int] = []

    def slow(lo: int, hi: int) -> list[int]:
        begun.append(hi)
        time.sleep(0.01)
        return list(range(lo, hi))

    run = make(slow, stop=None, ahead=3)
    assert next(run) == 0
    time.sleep(0.3)
    assert max(begun) <= 1 + 3 + 1
    run.close()


def test_bytes_are_bounded_but_the_next_item_always_comes() -> None:
    begun: list[int] = []

    def big(lo: int, hi: int) -> list[bytes]:
        begun.append(lo)
        time.sleep(0.003)
        return [b"x" * 1000] * (hi - lo)

    run = make(big, stop=40, ahead=30, max_bytes=2500, size_of=len)
    next(run)
    time.sleep(0.3)
    assert max(begun) <= 5, "about two items of 1000 bytes may wait in 2500"
    assert len(list(run)) == 39
    run = make(big, stop=10, max_bytes=10, size_of=len)
    assert len(list(run)) == 10, "one item larger than the bound still passes"


def test_items_that_grow_while_the_consumer_is_busy_are_bounded() -> None:
    """The consumer measures nothing meanwhile: ranges of small items that are under way end by themselves."""
    made: list[int] = []

    def grows(lo: int, hi: int) -> list[bytes]:
        items = [b"x" * (10 if i < 3000 else 1000) for i in range(lo, hi)]
        made.extend(map(len, items))
        return items

    run = make(grows, stop=8000, max_bytes=20_000, size_of=len, per_call=4)
    taken = 0
    while len(made) < 2990:
        taken += len(next(run))
    time.sleep(0.3)
    assert sum(made) - taken <= 20_000 + 2 * 4 * 1000, "besides the bound each thread may have computed one call"
    assert taken + sum(map(len, run)) == 3000 * 10 + 5000 * 1000
    run.close()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_items_of_any_sizes_come_in_order_under_a_small_bound(threads: int) -> None:
    sizes = [10 ** (i * 7919 % 5) for i in range(3000)]
    run = make(lambda lo, hi: sizes[lo:hi], stop=len(sizes), threads=threads, max_bytes=5000, size_of=lambda size: size)
    assert list(run) == sizes


def test_a_hang_is_reported_with_its_stack() -> None:
    held = threading.Event()

    def hangs(lo: int, hi: int) -> list[int]:
        held.wait(20)
        return [lo]

    run = make(hangs, timeout=0.2)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="within 0.2 s") as caught:
        next(run)
    assert time.monotonic() - began < 4
    assert "held.wait(20)" in str(caught.value)
    assert "computing batches 0 to 0" in str(caught.value)
    held.set()


def test_a_stall_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SECONDS", 0.05)
    monkeypatch.setattr(ordered_threads, "CHECK_SECONDS", 0.02)

    def slow(lo: int, hi: int) -> list[int]:
        time.sleep(0.4)
        return [lo]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert list(make(slow, stop=1)) == [0]
    assert len(told) == 1
    assert "batch 0 has taken" in str(told[0].message)


def test_dead_threads_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_threads, "_run_thread", lambda *_: None)
    run = make(numbers)
    with pytest.raises(WorkerDied, match="threads to be alive"):
        next(run)


def test_small_items_are_computed_together() -> None:
    calls: list[int] = []

    def count(lo: int, hi: int) -> list[int]:
        calls.append(hi - lo)
        return list(range(lo, hi))

    assert list(make(count, stop=2000, threads=0)) == list(range(2000))
    assert calls[0] == 1, "the first batch is not kept waiting"
    assert max(calls) > 50


def test_other_load_on_the_machine_does_not_shrink_the_ranges() -> None:
    run = make(numbers, threads=0, stop=None)
    for seconds in [1e-5] * 6 + [1.0]:  # the last one was interrupted by other processes
        run._tune(ordered_threads._Result(0, 8, list(range(8)), 8 * seconds, None))
    assert run._range_items > 32
    for _ in range(60):  # and these are slow indeed
        run._tune(ordered_threads._Result(0, 8, list(range(8)), 8.0, None))
    assert run._range_items == 1
    run.close()


def test_a_consumer_in_another_process_holds_work_back_by_the_bytes_of_its_items() -> None:
    """Of items of 50 bytes two fit into 100, however many items may be ahead."""
    started, consumed = list[int](), 0

    def compute(lo: int, hi: int) -> Sequence[int]:
        started.extend(range(lo, hi))
        return list(range(lo, hi))

    run = make(
        compute, ahead=50, max_bytes=100, size_of=lambda item: 50, per_call=1,
        ahead_of=lambda item: item - consumed, known_bytes=lambda: 50,
    )  # fmt: skip
    assert [next(run), next(run)] == [0, 1]
    time.sleep(0.2)  # a third item would be started meanwhile
    assert sorted(started) == [0, 1]
    consumed = 10
    assert next(run) == 2
    run.close()


def test_an_interrupted_range_is_not_computed_again() -> None:
    """Ctrl-C in the consumer's own thread comes at once: nothing is computed or delivered first."""
    calls = list[tuple[int, int]]()

    def compute(lo: int, hi: int) -> Sequence[int]:
        calls.append((lo, hi))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ordered_threads._compute_range(compute, 0, 64, inline=True)
    assert calls == [(0, 64)]
