"""Threads that work out of order and answer in order.

Contract. If the code does otherwise, the code is wrong.
  1. Success: `compute(lo, hi)` is called for consecutive ranges covering [start, stop); every item is given once, in
  order. 2. Failure: when item k fails, all items before k are given first; then the exception is raised; nothing
  follows.
  3. Close, drop or interpreter exit: no new range is begun, threads end after the one in hand, results are freed.
  4. Bounds: no range is begun while `ahead` items (or a range for each thread and two more) or `max_bytes` bytes wait,
  except the one that is needed next.
  5. A thread that dies or stalls is reported by name and stack, never waited for without end.

All bookkeeping is the consumer's: it hands out ranges through one queue and takes answers from another, so that nothing
is locked and a thread costs the trainer no more than two calls into C for each range.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from numpy.typing import NDArray

from penstock.core.errors import WorkerDied

STALL_SECONDS = 30.0  # after which a wait is reported
CHECK_SECONDS = 1.0  # how often a waiting consumer looks whether the threads live
RANGE_SECONDS = 2e-3  # tiny items are computed together up to this much time, and to `range_bytes`

Items = Sequence[Any] | NDArray[Any]
Compute = Callable[[int, int], Items]


class _Result(NamedTuple):
    lo: int
    hi: int
    items: Items
    seconds: float
    error: BaseException | None


class _Desk:
    """What the consumer and the threads share. It knows nothing of the consumer, so that a dropped one is collected."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.todo: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self.done: SimpleQueue[_Result] = SimpleQueue()
        self.busy: dict[int, tuple[int, int]] = {}  # thread id -> range in hand
        self.over = False

    def end(self, threads: int) -> None:
        """No range is begun any more; threads that wait for one go home."""
        self.over = True
        for _ in range(threads):
            self.todo.put(None)


_open: weakref.WeakSet[Ordered] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for run in list(_open):
        run.close()


class Ordered:
    """An iterator over `compute`'s items, worked out ahead of time on threads."""

    def __init__(
        self,
        compute: Compute,
        start: int,
        stop: int | None,
        *,
        threads: int,
        ahead: int,
        max_bytes: int,
        size_of: Callable[[Any], int],
        range_bytes: int = 4 << 20,
        timeout: float | None = None,
    ) -> None:
        self._compute, self._size_of = compute, size_of
        self._next, self._stop = start, stop
        self._taken = start  # items handed to the consumer
        self._ahead, self._max_bytes, self._timeout = ahead, max_bytes, timeout
        self._range_bytes = range_bytes
        self._grain = 1  # items per range; grows while ranges are small and quick
        self._item_bytes: int | None = None  # unknown before the first answer
        self._ready: dict[int, _Result] = {}  # answers that came before their turn
        self._closed = False
        self._items: Items = ()
        self._place = 0
        self._error: BaseException | None = None
        self._desk = _Desk(compute)
        self._threads = [
            threading.Thread(target=_work, args=(self._desk,), name=f"penstock-{i}", daemon=True)
            for i in range(threads)
        ]
        _open.add(self)
        for thread in self._threads:
            thread.start()
        if threads:
            self._hand_out()

    # The consumer's side.

    def __iter__(self) -> Iterator[Any]:
        """The same as `next` again and again, with less work for each item."""
        while True:
            items, self._items = self._items[self._place :], ()
            for item in items:
                self._taken += 1
                yield item
            try:
                self._refill()
            except StopIteration:
                return

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
        if self._threads:
            result = self._wait()
        else:
            result = _answer(self._compute, *self._begin())
            self._tune(result)
        self._items, self._place, self._error = result.items, 0, result.error
        if result.error is not None:
            self._desk.over = True
        elif self._threads:
            self._hand_out()

    def _wait(self) -> _Result:
        """The answer whose turn it is; those that come meanwhile are kept."""
        began, told = time.perf_counter(), False
        self._hand_out()
        while (result := self._ready.pop(self._taken, None)) is None:
            try:
                come = self._desk.done.get(timeout=CHECK_SECONDS if self._timeout is None else self._timeout / 8)
            except Empty:
                waited = time.perf_counter() - began
                self._look(waited, told)
                told = told or waited > STALL_SECONDS
                continue
            if self._closed:
                raise StopIteration
            self._ready[come.lo] = come
            self._tune(come)
        return result

    def _look(self, waited: float, told: bool) -> None:
        """Called while waiting: are the threads alive, and is the wait still reasonable?"""
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
                f"penstock: batch {self._taken} has taken {waited:.0f} s so far\n{self._stacks()}", stacklevel=5
            )

    def _stacks(self) -> str:
        frames = sys._current_frames()
        lines = []
        for ident, (lo, hi) in list(self._desk.busy.items()):
            frame = frames.get(ident)
            stack = "".join(traceback.format_stack(frame)[-4:]) if frame else ""
            lines.append(f"batches {lo} to {hi - 1} in hand at\n{stack}")
        return "\n".join(lines) or "no thread has it in hand"

    def _hand_out(self) -> None:
        """Ranges for the threads, as many as the bounds allow."""
        most = max(self._ahead, (len(self._threads) + 2) * self._grain)
        if self._item_bytes is None:
            most = min(most, len(self._threads))
        elif self._item_bytes:
            most = min(most, self._max_bytes // self._item_bytes)
        while self._next < self._taken + most or self._next == self._taken:
            if self._stop is not None and self._next >= self._stop:
                return
            self._desk.todo.put(self._begin())

    def _begin(self) -> tuple[int, int]:
        lo = self._next
        hi = lo + self._grain if self._stop is None else min(lo + self._grain, self._stop)
        self._next = hi
        return lo, hi

    def _tune(self, result: _Result) -> None:
        """How many items the next ranges have, from one answer."""
        count = len(result.items)
        if result.error is not None or not count:
            return
        self._item_bytes = self._size_of(result.items[0])  # batches of one range are alike
        by_bytes, by_time = self._range_bytes // max(1, self._item_bytes), int(RANGE_SECONDS * count / result.seconds)
        wide = max(1, min(by_bytes, by_time, self._grain * 4, 1024))
        self._grain = 1 << (wide.bit_length() - 1)  # of few sizes, so that their memory can serve again

    def close(self) -> None:
        """Ends the threads and frees what they made. May be called any number of times, from any thread."""
        self._closed = True
        self._desk.end(len(self._threads))
        self._ready.clear()
        self._items = ()
        if _open is None or sys.is_finalizing():
            return  # at the very end of the interpreter names are gone, and threads with them
        _open.discard(self)
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(timeout=0.2)

    def __del__(self) -> None:
        if hasattr(self, "_threads"):
            self._desk.end(len(self._threads))


def _answer(compute: Compute, lo: int, hi: int) -> _Result:
    began = time.perf_counter()
    items: Items = ()
    error: BaseException | None = None
    try:
        items = compute(lo, hi)
    except BaseException as met:  # everything, KeyboardInterrupt of a callback included, is the consumer's to see
        items, error = _one_by_one(compute, lo, hi, met)
    return _Result(lo, hi, items, max(1e-7, time.perf_counter() - began), error)


def _one_by_one(compute: Compute, lo: int, hi: int, met: BaseException) -> tuple[list[Any], BaseException]:
    """A range failed as a whole: the items before the failing one are still owed."""
    items: list[Any] = []
    for k in range(lo, hi if hi - lo > 1 else lo):
        try:
            items.extend(compute(k, k + 1))
        except BaseException as error:
            return items, error
    return items, met


def _work(desk: _Desk) -> None:
    """A thread's life."""
    me = threading.get_ident()
    while (given := desk.todo.get()) is not None and not desk.over:
        desk.busy[me] = given
        result = _answer(desk.compute, *given)
        desk.busy.pop(me, None)
        if desk.over:
            return
        desk.done.put(result)
        del result
