"""Threads that work out of order and answer in order.

Contract. If the code does otherwise, the code is wrong.
  1. Success: `compute(lo, hi)` is called for consecutive ranges covering [start, stop); every item is given once, in
  order. 2. Failure: when item k fails, all items before k are given first; then the exception is raised; nothing
  follows.
  3. Close, drop or interpreter exit: no new range is begun, threads end after the one in hand, results are freed.
  4. Bounds: no range is begun while `ahead` items or `max_bytes` bytes wait, except the one that is needed next.
  5. A thread that dies or stalls is reported by name and stack, never waited for without end.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock._errors import WorkerDied

STALL_SECONDS = 30.0  # after which a wait is reported
CHECK_SECONDS = 1.0  # how often a waiting consumer looks whether the threads live
RANGE_BYTES = 4 << 20  # tiny batches are computed together up to this many bytes...
RANGE_SECONDS = 2e-3  # ...and this much time


class _Result(NamedTuple):
    stop: int
    items: Sequence[Any]
    bytes: int
    error: BaseException | None


_open: weakref.WeakSet[Ordered] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for run in list(_open):
        run.close()


class Ordered:
    """An iterator over `compute`'s items, worked out ahead of time on threads."""

    def __init__(
        self,
        compute: Callable[[int, int], Sequence[Any]],
        start: int,
        stop: int | None,
        *,
        threads: int,
        ahead: int,
        max_bytes: int,
        size_of: Callable[[Any], int],
        timeout: float | None = None,
    ) -> None:
        self._compute, self._size_of = compute, size_of
        self._next, self._stop = start, stop
        self._taken = start  # items handed to the consumer
        self._ahead, self._max_bytes, self._timeout = ahead, max_bytes, timeout
        self._grain = 1  # items per range; grows while ranges are small and quick
        self._ready: dict[int, _Result] = {}
        self._ready_bytes = 0
        self._item_bytes = 0
        self._busy: dict[int, tuple[int, int]] = {}  # thread id -> range in hand
        self._closed = False
        self._failed = False
        self._changed = threading.Condition()  # re-entrant: a dropped run may be collected inside it
        self._items: Sequence[Any] = ()
        self._place = 0
        self._error: BaseException | None = None
        self.waited = 0.0
        self._threads = [
            threading.Thread(target=_work, args=(weakref.ref(self), self._changed), name=f"penstock-{i}", daemon=True)
            for i in range(threads)
        ]
        _open.add(self)
        for thread in self._threads:
            thread.start()

    # The consumer's side.

    def __iter__(self) -> Ordered:
        return self

    def __next__(self) -> Any:
        while self._place >= len(self._items):
            self._refill()
        item = self._items[self._place]
        self._place += 1
        self._taken += 1
        return item

    def _refill(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self.close()
            raise error
        if self._closed or (self._stop is not None and self._taken >= self._stop):
            self.close()
            raise StopIteration
        result = self._wait()
        self._items, self._place, self._error = result.items, 0, result.error

    def _wait(self) -> _Result:
        if not self._threads:
            return self._run(*self._begin())
        began = time.perf_counter()
        told = False
        with self._changed:
            self._changed.notify_all()
            while (result := self._ready.pop(self._taken, None)) is None:
                if self._closed:
                    raise StopIteration
                self._changed.wait(CHECK_SECONDS)
                waited = time.perf_counter() - began
                self._look(waited, told)
                told = told or waited > STALL_SECONDS
            self._ready_bytes -= result.bytes
            self._changed.notify_all()
        self.waited += time.perf_counter() - began
        return result

    def _look(self, waited: float, told: bool) -> None:
        """Called while waiting: are the threads alive, and is the wait still reasonable?"""
        if self._taken in self._ready:
            return
        if not any(thread.is_alive() for thread in self._threads):
            self._closed = True
            raise WorkerDied(
                "the loader's threads to be alive",
                got="all of them ended without an answer",
                where=f"batch {self._taken}",
                fix="run with threads=0 to see more",
            )
        if self._timeout is not None and waited > self._timeout:
            self._closed = True
            raise WorkerDied(
                f"batch {self._taken} within {self._timeout:g} s",
                got=f"no answer after {waited:.1f} s",
                where=self._stacks(),
                fix="mend what hangs there, or raise timeout=",
            )
        if waited > STALL_SECONDS and not told:
            warnings.warn(
                f"penstock: batch {self._taken} has taken {waited:.0f} s so far\n{self._stacks()}", stacklevel=4
            )

    def _stacks(self) -> str:
        frames = sys._current_frames()
        lines = []
        for ident, (lo, hi) in self._busy.items():
            frame = frames.get(ident)
            stack = "".join(traceback.format_stack(frame)[-4:]) if frame else ""
            lines.append(f"batches {lo} to {hi - 1} in hand at\n{stack}")
        return "\n".join(lines) or "no thread has it in hand"

    def close(self) -> None:
        """Ends the threads and frees what they made. May be called any number of times, from any thread."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._ready_bytes = 0
            self._changed.notify_all()
        self._items = ()
        if _open is None or sys.is_finalizing():
            return  # at the very end of the interpreter names are gone, and threads with them
        _open.discard(self)
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(timeout=0.2)

    def __del__(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The threads' side; `_may_begin`, `_begin` and `_publish` are called with the lock held (or without threads).

    def _over(self) -> bool:
        return self._closed or self._failed or (self._stop is not None and self._next >= self._stop)

    def _may_begin(self) -> bool:
        if not self._ready and not self._busy:
            return True
        waiting = self._next - self._taken
        held = self._ready_bytes + len(self._busy) * self._item_bytes * self._grain
        return waiting < max(self._ahead, 2 * self._grain) and held + self._item_bytes * self._grain <= self._max_bytes

    def _begin(self) -> tuple[int, int]:
        lo = self._next
        hi = lo + self._grain if self._stop is None else min(lo + self._grain, self._stop)
        self._next = hi
        return lo, hi

    def _run(self, lo: int, hi: int) -> _Result:
        began = time.perf_counter()
        items: list[Any] = []
        error: BaseException | None = None
        try:
            items = list(self._compute(lo, hi))
        except BaseException as met:  # everything, KeyboardInterrupt of a callback included, is the consumer's to see
            error = met
            if hi - lo > 1:
                items, error = self._one_by_one(lo, hi, met)
        seconds = time.perf_counter() - began
        size = self._size_of(items[0]) * len(items) if items else 0  # batches of one range are alike
        if error is None:
            self._tune(hi - lo, seconds, size)
        return _Result(hi, items, size, error)

    def _one_by_one(self, lo: int, hi: int, met: BaseException) -> tuple[list[Any], BaseException]:
        """A range failed as a whole: the items before the failing one are still owed."""
        items: list[Any] = []
        for k in range(lo, hi):
            try:
                items.extend(self._compute(k, k + 1))
            except BaseException as error:
                return items, error
        return items, met

    def _tune(self, count: int, seconds: float, size: int) -> None:
        each_bytes, each_seconds = max(1, size // count), max(1e-7, seconds / count)
        self._item_bytes = each_bytes
        fits = min(RANGE_BYTES // each_bytes, int(RANGE_SECONDS / each_seconds))
        self._grain = max(1, min(fits, self._grain * 4, 1024))


def _work(ref: weakref.ref[Ordered], changed: threading.Condition) -> None:
    """A thread's life. It holds the run only while it works, so that a dropped run can be collected."""
    me = threading.get_ident()
    while True:
        with changed:
            while True:
                run = ref()
                if run is None or run._over():
                    return
                if run._may_begin():
                    break
                del run
                changed.wait(CHECK_SECONDS)
            lo, hi = run._begin()
            run._busy[me] = (lo, hi)
        result = run._run(lo, hi)
        with changed:
            run._busy.pop(me, None)
            if result.error is not None:
                run._failed = True
            if not run._closed:
                run._ready[lo] = result
                run._ready_bytes += result.bytes
            changed.notify_all()
        del run, result
