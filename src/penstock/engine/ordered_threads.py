"""Threads that compute items out of order and deliver them in order.

Contract. If the code does otherwise, the code is wrong.
  1. Success: `compute(lo, hi)` is called for consecutive ranges that cover [start, stop). It returns all items, or the
     first ones, at least one: then it is called for the rest. Every item is delivered once, in order.
  2. Failure: when item k fails, all items before k are delivered first, then the exception is raised. Nothing follows.
  3. Close, drop or interpreter exit: no new range is started, threads end after their current range, results are freed.
  4. Bounds: no range is started while `ahead` items (or one range per thread and two more) or `max_bytes` bytes wait,
     except the item that is needed next. Sizes are measured, by the threads themselves: the consumer may be busy when
     they grow. Where they differ, or where a user's function makes the items, few are computed in one call, and a
     thread stops in the middle of its range when too many bytes wait. One item larger than `max_bytes` is computed and
     delivered alone. Besides this, each thread holds what it computes now.
     A signal that interrupts the consumer's own thread while it computes is raised at once; nothing is delivered first.
  5. A thread that dies or stalls is reported with its stack. The consumer never waits for it without a limit.

The consumer does all bookkeeping but that of bytes: it puts ranges into one queue and takes results from another. So
there is no lock, and a range costs the trainer two calls into C.
"""

from __future__ import annotations

import atexit
import os
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

from penstock.core.buffers import keep_freed_blocks
from penstock.core.errors import LimitError, UsageError, WorkerDied
from penstock.core.signals import NoMoreThreads, raised_by_handler, start_thread
from penstock.core.waits import Condition
from penstock.engine import stalls

CHECK_SECONDS = 1.0  # how often a waiting consumer checks that the threads are alive
RANGE_SECONDS = 2e-3  # small items are computed together up to this time, and up to `range_bytes`
RANGE_ITEMS = 1024
UNEVEN_ITEMS = 16  # items computed in one call where their sizes differ
GATE_SECONDS = 2e-3  # how often a thread that waits for the consumer of another process looks where it is

Items = Sequence[Any] | NDArray[Any]
Compute = Callable[[int, int], Items]


class _Sizes(NamedTuple):
    """Bytes of some items together, of the smallest and of the largest."""

    total: int = 0
    least: int = 0
    most: int = 0

    def __add__(self, other: _Sizes) -> _Sizes:  # type: ignore[override]
        least = min(self.least, other.least) if self.total else other.least
        return _Sizes(self.total + other.total, least, max(self.most, other.most))


class _Result(NamedTuple):
    lo: int
    hi: int
    items: Items
    seconds: float
    error: BaseException | None
    sizes: _Sizes = _Sizes()


class _Queues:
    """What the consumer and the threads share. Holds no reference to the consumer, so a dropped one is collected."""

    def __init__(self, compute: Compute, threads: int, size_of: Callable[[Any], int], one_size: bool) -> None:
        self.compute = compute
        self.todo: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self.done: SimpleQueue[_Result] = SimpleQueue()
        self.busy: dict[int, tuple[int, int]] = {}  # thread id -> its current range
        self.over = False
        self.pid = os.getpid()
        self.window = 1  # items that fit into the byte bound, as the sizes are now
        self.per_call = 1  # items computed in one call
        self.taken = 0  # items delivered to the consumer, as of its last range
        self.ahead_of: Callable[[int], int] | None = None  # how far an item is ahead of a consumer in another process
        self.known_bytes: Callable[[], int] | None = None  # the size of an item that another process has measured
        self.max_bytes = self.most_held = self.item_bytes = 0
        self.made = [0] * threads  # bytes of all items that each thread has computed; nobody else writes there
        self.delivered = 0  # bytes of those that the consumer has taken
        self.moved = Condition()
        self.size_of, self.one_size = size_of, one_size
        self.range_bytes = 0

    def may_start(self, item: int) -> bool:
        """Whether the bytes of the items up to this one fit into the bound."""
        ahead = item - self.taken
        if ahead and sum(self.made) - self.delivered + self.item_bytes > self.most_held:
            return False
        if self.ahead_of is None or self.known_bytes is None:
            return ahead < self.window
        size = max(self.item_bytes, self.known_bytes())
        return self.ahead_of(item) < (max(1, self.max_bytes // size) if size else 1)

    def measured(self, result: _Result) -> _Result:
        """With the sizes of its items; of items of one size only the first and the last are looked at."""
        items, count = result.items, len(result.items)
        if not count:
            return result
        if self.one_size and count > 1:
            first, last = self.size_of(items[0]), self.size_of(items[-1])
            most = max(first, last)
            return result._replace(sizes=_Sizes(count * most, min(first, last), most))
        sizes = [*map(self.size_of, items)]
        return result._replace(sizes=_Sizes(sum(sizes), min(sizes), max(sizes)))

    def wait_to_start(self, item: int) -> bool:
        """Waits until an item may be started; False if it never will."""
        while not (self.over or self.may_start(item)):
            with self.moved.lock:
                self.moved.wait(CHECK_SECONDS if self.ahead_of is None else GATE_SECONDS)
        return not self.over

    def end(self, threads: int) -> None:
        """Starts no further range; ends the threads that wait for one."""
        self.over = True
        for _ in range(threads):
            self.todo.put(None)
        self.wake()

    def wake(self, _getpid: Callable[[], int] = os.getpid) -> None:  # bound: `os` may be gone at interpreter exit
        """Lets waiting threads look again."""
        if self.pid == _getpid():  # in a forked copy there are no threads, and the lock may be held for ever
            with self.moved.lock:
                self.moved.notify_all()


_open: weakref.WeakSet[OrderedThreads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for run in list(_open):
        run.close()


class OrderedThreads:
    """An iterator over the items of `compute`, computed ahead on threads."""

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
        eager: bool = True,
        per_call: int = RANGE_ITEMS,
        range_seconds: float = RANGE_SECONDS,
        one_size: bool = False,
        ahead_of: Callable[[int], int] | None = None,
        known_bytes: Callable[[], int] | None = None,
        most_held: int | None = None,
    ) -> None:
        self._compute = compute
        self._next, self._stop = start, stop
        self._taken = start  # items delivered to the consumer
        self._ahead, self._max_bytes, self._timeout = ahead, max_bytes, timeout
        self._eager = eager  # False: threads compute only while the consumer waits
        self._range_bytes, self._range_seconds = range_bytes, range_seconds
        self._range_items = 1  # items per range; grows while ranges are small and fast
        self._item_bytes: int | None = None  # of the largest of the last results; unknown before the first
        self._item_seconds = 0.0  # of the fastest of the last results
        self._per_call = per_call  # items that may be computed in one call
        self._even = True  # whether all items so far had one size
        self._ready: dict[int, _Result] = {}  # results that came before their turn
        self._closed = False
        self._items: Items = ()
        self._place = 0
        self._error: BaseException | None = None
        self._queues = _Queues(compute, threads, size_of, one_size)
        self._queues.taken, self._queues.ahead_of = start, ahead_of
        if ahead_of is None:  # until the size of an item is known, one for each thread
            self._queues.window = max(1, threads)
        self._queues.max_bytes, self._queues.known_bytes = max_bytes, known_bytes
        self._queues.most_held = max_bytes if most_held is None else most_held
        self._queues.range_bytes = range_bytes
        self._in_hand = 0  # bytes of the result that is being delivered
        self._threads = [
            threading.Thread(target=_run_thread, args=(self._queues, i), name=f"penstock-{i}", daemon=True)
            for i in range(threads)
        ]
        _open.add(self)
        keep_freed_blocks()
        self._start_threads()
        if threads and eager:
            self._enqueue_ranges()

    def _start_threads(self) -> None:
        for i, thread in enumerate(self._threads):
            try:
                start_thread(thread)
            except NoMoreThreads as error:
                self._threads = self._threads[:i]
                self.close()
                raise LimitError(
                    "threads that can be started",
                    got=f"{error}, after {i}",
                    fix="raise ulimit -u or the limit of the container, or use threads=0",
                ) from error

    def __iter__(self) -> Iterator[Any]:
        """The same as calling `next` repeatedly, with less overhead per item."""
        while True:
            items, self._items = list(self._items[self._place :])[::-1], ()
            while items:
                self._taken += 1
                yield items.pop()  # a batch that was taken is not kept alive here
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
        if os.getpid() != self._queues.pid:
            raise forked()
        if self._error is not None:
            error, self._error = self._error, None
            self.close()
            raise error
        if self._closed or (self._stop is not None and self._taken >= self._stop):
            self.close()
            raise StopIteration
        self._queues.delivered += self._in_hand
        self._in_hand = 0
        if self._threads:
            result = self._wait()
        else:
            lo, hi = self._next_range()
            result = _compute_range(self._compute, lo, min(hi, lo + self._queues.per_call), inline=True)
            result = self._queues.measured(result)
            self._next = result.hi
            self._tune(result)
        self._items, self._place, self._error = result.items, 0, result.error
        self._in_hand = result.sizes.total
        self._queues.taken = self._taken
        if result.error is not None:
            self._queues.over = True
        elif self._threads:
            self._enqueue_ranges()

    def _wait(self) -> _Result:
        """The next result in order; results that arrive early are kept."""
        began, warned = time.perf_counter(), False
        self._queues.taken = self._taken
        self._queues.wake()
        self._enqueue_ranges()
        while (result := self._ready.pop(self._taken, None)) is None:
            try:
                come = self._queues.done.get(timeout=CHECK_SECONDS if self._timeout is None else self._timeout / 8)
            except Empty:
                waited = time.perf_counter() - began
                self._check_threads(waited, warned)
                warned = warned or waited > stalls.SECONDS
                continue
            if self._closed:
                raise StopIteration
            self._ready[come.lo] = come
            self._tune(come)
        return result

    def _check_threads(self, waited: float, warned: bool) -> None:
        """Called while waiting: raises if all threads ended or the timeout passed, warns about a stall."""
        if not any(thread.is_alive() for thread in self._threads):
            self._closed = True
            raise WorkerDied(
                "the loader's threads to be alive",
                got="all of them ended without a result",
                where=f"batch {self._taken}",
                fix="run with threads=0 to see more",
            )
        if self._timeout is not None and waited > self._timeout:
            self._closed = True
            raise WorkerDied(
                f"batch {self._taken} within {self._timeout:g} s",
                got=f"no result after {waited:.1f} s",
                where=self._stacks(),
                fix="fix what hangs there, or raise timeout=",
            )
        if waited > stalls.SECONDS and not warned:
            warnings.warn(
                f"penstock: batch {self._taken} has taken {waited:.0f} s so far\n{self._stacks()}",
                RuntimeWarning,
                stacklevel=5,
            )

    def _stacks(self) -> str:
        frames = sys._current_frames()
        lines = []
        for ident, (lo, hi) in list(self._queues.busy.items()):
            frame = frames.get(ident)
            stack = "".join(traceback.format_stack(frame)[-4:]) if frame else ""
            lines.append(f"computing batches {lo} to {hi - 1} at\n{stack}")
        return "\n".join(lines) or "no thread is computing it"

    def _enqueue_ranges(self) -> None:
        """Puts as many ranges into the queue as the bounds allow."""
        most = max(self._ahead, (len(self._threads) + 2) * self._range_items)
        most = min(most, self._queues.window)
        if not self._eager:
            most = 0
        while self._next < self._taken + most or self._next == self._taken:
            if self._stop is not None and self._next >= self._stop:
                return
            self._queues.todo.put(self._next_range())

    def end_at(self, item: int) -> int:
        """Lets it end before its `stop`: at `item`, or where it has begun to compute already. Returns where."""
        self._stop = max(item, self._next) if self._stop is None else min(self._stop, max(item, self._next))
        return self._stop

    def _next_range(self) -> tuple[int, int]:
        lo = self._next
        hi = lo + self._range_items if self._stop is None else min(lo + self._range_items, self._stop)
        self._next = hi
        return lo, hi

    def _tune(self, result: _Result) -> None:
        """Adapts the number of items per range to the size and time of one result."""
        count, sizes = len(result.items), result.sizes
        if result.error is not None or not count:
            return
        before = self._item_bytes or sizes.most
        self._even = self._even and sizes.least == sizes.most == before
        self._item_bytes = max(sizes.most, before - (before >> 3))  # what was large lately may be so again
        self._queues.item_bytes = self._item_bytes
        self._queues.window = max(1, self._max_bytes // max(1, self._item_bytes))
        seconds = result.seconds / count
        self._item_seconds = min(seconds, (self._item_seconds or seconds) * 1.25)  # other load only lengthens it
        by_bytes, by_time = self._range_bytes // max(1, self._item_bytes), int(self._range_seconds / self._item_seconds)
        wide = max(1, min(by_bytes, by_time, self._range_items * 4, RANGE_ITEMS))
        self._range_items = 1 << (wide.bit_length() - 1)  # few distinct sizes, so that buffers can be reused
        self._queues.per_call = min(self._range_items, self._per_call, RANGE_ITEMS if self._even else UNEVEN_ITEMS)

    def close(self) -> None:
        """Ends the threads and frees their results. May be called any number of times, from any thread."""
        self._closed = True
        self._queues.end(len(self._threads))
        self._ready.clear()
        self._items = ()
        if _open is None or sys.is_finalizing():
            return  # at interpreter exit module globals may be None
        _open.discard(self)
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(timeout=0.2)

    def __del__(self) -> None:
        if hasattr(self, "_threads"):
            self._queues.end(len(self._threads))


def forked() -> UsageError:
    """The error for a running iterator in a forked copy of its process."""
    return UsageError(
        "a running loader to be used by the process that began it",
        got="a forked copy of that process, which has none of its threads and shares the pipes of its children",
        fix="begin a new `for` over the loader in the forked process, or fork before the loop",
    )


def _compute_range(compute: Compute, lo: int, hi: int, inline: bool = False) -> _Result:
    """Computes a range; `inline`: in the consumer's own thread, where a signal can interrupt it."""
    began = time.perf_counter()
    items: Items = ()
    error: BaseException | None = None
    try:
        items = compute(lo, hi)
    except BaseException as first_error:  # also KeyboardInterrupt of a callback: the consumer raises it
        if inline and _interrupts(first_error):
            raise
        items, error = _one_by_one(compute, lo, hi, first_error)
        if inline and hi - lo > 1 and (error is first_error or _interrupts(error)):
            raise error from None  # not from computing these items: nothing is delivered first
    return _Result(lo, hi if error else lo + len(items), items, max(1e-7, time.perf_counter() - began), error)


def _interrupts(error: BaseException) -> bool:
    """Whether an exception is meant for the consumer: Ctrl-C, an exit, or one that a signal handler raised."""
    return not isinstance(error, Exception) or raised_by_handler(error)


def _one_by_one(compute: Compute, lo: int, hi: int, first_error: BaseException) -> tuple[list[Any], BaseException]:
    """Computes a failed range item by item: the items before the failing one are still delivered."""
    items: list[Any] = []
    for k in range(lo, hi if hi - lo > 1 else lo):
        try:
            items.extend(compute(k, k + 1))
        except BaseException as error:
            return items, error
    return items, first_error


def _run_thread(queues: _Queues, number: int) -> None:
    """What a thread runs."""
    me = threading.get_ident()
    while (range_ := queues.todo.get()) is not None and not queues.over:
        queues.busy[me] = range_
        for result in _results(queues, number, *range_):
            if queues.over:
                break
            queues.done.put(result)
            del result
        queues.busy.pop(me, None)
        if queues.over:
            return


def _results(queues: _Queues, number: int, lo: int, hi: int) -> Iterator[_Result]:
    """Computes a range in calls of few items; hands over what it has before it waits, and when that is enough."""
    held: list[Any] = []
    began, seconds, sizes = lo, 0.0, _Sizes()
    while lo < hi:
        if not queues.may_start(lo):
            if held:
                yield _Result(began, lo, held, seconds, None, sizes)
                held, began, seconds, sizes = [], lo, 0.0, _Sizes()
            if not queues.wait_to_start(lo):
                return
        result = queues.measured(_compute_range(queues.compute, lo, min(hi, lo + queues.per_call)))
        queues.made[number] += result.sizes.total
        stop = result.hi
        if not held and (stop == hi or result.error is not None):
            yield result
            return
        held.extend(result.items)
        seconds += result.seconds
        sizes += result.sizes
        if result.error is not None or stop == hi:
            yield _Result(began, stop, held, seconds, result.error, sizes)
            return
        lo = stop
        del result
        if sizes.total >= queues.range_bytes:
            yield _Result(began, lo, held, seconds, None, sizes)
            held, began, seconds, sizes = [], lo, 0.0, _Sizes()
