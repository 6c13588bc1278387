"""An exception of a signal handler leaves no lock taken for ever, wherever it comes."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import penstock
from penstock.core.waits import Condition, Event
from penstock.storage.cache_budget import CacheBudget
from penstock.storage.page_cache import PageCache
from penstock.storage.ranges_ahead import RangesAhead
from penstock.storage.reading_alone import ReadingAlone

SOURCES = Path(penstock.__file__).parent
RANGES = np.array([(0, 8 * n, 8 * n + 8) for n in range(3)])


class Preempted(Exception):
    pass


def interrupted(work: Callable[[], object], times: int = 300) -> int:
    """Calls `work` again and again in this thread, which a handler interrupts at other moments each time."""
    armed, seen = False, 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        if armed:
            raise Preempted

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for turn in range(times):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + (turn % 60) * 3e-6)
                while True:
                    work()
            except Preempted:
                armed = False
                seen += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return seen


def another_thread(work: Callable[[], object]) -> bool:
    """Whether another thread can do this."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def claimed(ranges: RangesAhead) -> None:
    fetch = ranges.claim(RANGES, 1, lambda wanted: [b"12345678"] * len(wanted))
    fetch()


def test_ranges_that_were_requested_ahead() -> None:
    """Claimed in a thread, which no handler interrupts, and taken in the main one."""
    ranges = RangesAhead()

    def take() -> None:
        ranges.take(RANGES)
        ranges.forget()

    assert interrupted(take) == 300
    assert another_thread(lambda: claimed(ranges))
    assert ranges.take(RANGES) == [b"12345678"] * 3


def test_a_page_cache(tmp_path: Path) -> None:
    cache = PageCache(str(tmp_path / "cache"))
    found = cache.open("a" * 32, 1 << 20, 1 << 12)
    try:
        assert interrupted(lambda: (cache.in_work(found), cache.wait_for(found, np.arange(0), 0.0))) == 300
        assert another_thread(lambda: cache.in_work(found))
    finally:
        cache.close()


def test_one_reader_at_a_time(tmp_path: Path) -> None:
    budget = CacheBudget(str(tmp_path / "control"))
    alone = ReadingAlone(budget._fd, 1 << 20)

    def read() -> None:
        with alone.read():
            alone.enter()

    assert interrupted(read) == 300
    read()  # ends what the last exception left
    assert another_thread(read)
    budget.close()


def test_conditions_and_events() -> None:
    changed, event = Condition(), Event()

    def look() -> None:
        with changed.lock:
            changed.notify_all()
        event.wait(0)

    assert interrupted(look) == 300
    assert another_thread(look) and another_thread(event.set)
    assert event.wait() and event.is_set()
    with pytest.raises(TypeError, match="with condition.lock"), changed:
        pass


def test_no_other_part_uses_those_of_threading() -> None:
    used = re.compile(r"threading\.(Condition|Event|Semaphore|BoundedSemaphore|Barrier)\b")
    found = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if used.search(path.read_text())}
    assert found == {"core/waits.py"}  # which derives from one
