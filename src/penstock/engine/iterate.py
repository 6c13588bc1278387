"""One `for` over a loader: takes batches from those who compute them, and changes who does."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from penstock.core.cpus import usable_cores
from penstock.core.errors import PenstockError, WorkerDied
from penstock.engine.auto_threads import RECHECK_MASK, AutoThreads
from penstock.engine.loop import Loop
from penstock.engine.moving import Child, ChildLost, Course, Loss, Taken
from penstock.engine.ordered_threads import OrderedThreads

if TYPE_CHECKING:
    from penstock.engine.loader import BatchT, Loader, Run, Started


def iterate(
    loader: Loader[BatchT],
    loop: Loop,
    moves: int,
    at: int,
    stop: int | None,
    started: Started,
) -> Run[BatchT]:
    """One `for` over a loader, from batch `at` up to batch `stop`. Dropping it, leaving the loop or Ctrl-C ends its
    threads and processes."""
    clock, stats = time.perf_counter, loader._stats
    work = _Work(loader, loop, at, stop, started)
    loop.begin(None if loader._threads or loader._workers else loader, stats)
    loader._begin_recording()
    seen: int | None = moves  # None: what is computed now is not delivered, because of a change meanwhile
    try:
        while True:
            if loader.moves != seen:
                with loader.changing:
                    seen = moves = loader.moves
                if loader._follows(loop):
                    if loop.guided:
                        return
                    at, stop = work.begin_again()
            cpu = time.thread_time() if work.measured else 0.0
            began, deliver = clock(), work.deliver
            try:
                batch = next(work.take)
            except StopIteration:
                if loader.moves == moves or not loader._follows(loop):
                    return
                seen = None
                continue
            except ChildLost as lost:
                work.take_back(at, lost)
                continue
            if deliver is None:
                now = clock()
            else:
                middle = 0.0 if at & 7 else clock()
                batch = deliver(batch)
                now = clock()
                if middle:  # one in eight is timed and counted eight times
                    stats.delivered(8 * (now - middle))
            at += 1
            step = stats.took(now - began, now)
            if work.measured or not at & RECHECK_MASK or work.course is not None:
                work.took(at, now - began, cpu, step)
            if loader.moves != moves and loader._follows(loop):
                seen = None
                continue
            if not loop.detached:  # nothing is called from the comparison to `yield`: no signal or thread comes between
                loader._step = at
                if at == stop:
                    loader._ended = True
            yield batch
    finally:
        work.close()
        loader._left(loop, moves)


class _Work:
    """Who computes the batches of one `for`.

    With `threads=None` that is the trainer's own thread while it is cheaper than handing batches over, and threads
    otherwise, if they help; or a child process, if they lengthen the trainer's own step. The batches are the same.
    """

    def __init__(self, loader: Loader[Any], loop: Loop, at: int, stop: int | None, started: Started) -> None:
        self._loader, self._loop, self._stop = loader, loop, stop
        self._threads = loader._threads or loader._settled or 0
        undecided = loader._threads is None and loader._settled is None
        self._auto = AutoThreads(usable_cores()) if undecided else None
        self.measured = undecided  # whether each batch is measured
        self.course = None if undecided else self._course(at)
        self._use(started)

    def _use(self, started: Started) -> None:
        self._items, self.take, self.deliver = started
        self._loop.inline = self.deliver is not None and not self._threads

    def took(self, at: int, wait: float, cpu: float, step: float) -> None:
        """Batch `at` - 1 was taken: the next ones may come from somebody else."""
        loader, auto = self._loader, self._auto
        if auto is not None:
            change = auto.end(wait, cpu, loader._stats.waited, step)
            self.measured = auto.busy
            if auto.settled is not None:
                loader._settled, loader._known.loss = auto.settled, auto.loss
                self._auto, self.measured = None, False
            if change is not None:
                self._threads = change
                self._use(loader._change(self._items, at, self._stop, change))
            if self._auto is None:
                self.course = self._course(at)
        elif self.course is not None:
            move = self.course.took(Taken(at, wait, step, self._end_at))
            if move is not None:
                child = self.course.child
                if not isinstance(self._items, Child):
                    self._items.close()
                if move.to_child and child is not None:
                    self._use((child, iter(child), None))
                else:
                    self._use(loader._begin(at, move.stop, self._threads))
            if self.course.over:
                self.course = None

    def begin_again(self) -> tuple[int, int | None]:
        """The position or the weights were changed: a child's plan may be another one now, so threads go on.

        Returns where they begin, and where they end.
        """
        self._end_course()
        self._items.close()
        at, self._stop = self._loader._step, self._loader._loop_end()
        self._use(self._loader._begin(at, self._stop, self._threads))
        return at, self._stop

    def take_back(self, at: int, lost: ChildLost) -> None:
        """The child is gone: its batch is computed here. If that fails as it did there, the error is this process's."""
        if isinstance(lost.error, WorkerDied):
            warnings.warn(f"penstock: batch {at} is computed in this process\n{lost}", RuntimeWarning, stacklevel=3)
        if self.course is not None:
            self.course.lost(lost)
        self._end_course()
        self._use(self._loader._begin(at, self._stop, self._threads))

    def _end_course(self) -> None:
        if self.course is not None:
            self.course.close()
            self.course = None

    def close(self) -> None:
        self._items.close()
        self._end_course()

    def _course(self, at: int) -> Course | None:
        """What decides whether batches move to a child process; None where that is no question."""
        loader, stop = self._loader, self._stop
        known = loader._known
        if not loader._may_move or not known.worth(None if stop is None else stop - at):
            return None
        if why := loader._why_not_move():
            known.give_up(why)
            return None
        return Course(known, stop, self._standby, time.monotonic)

    def _standby(self, loss: Loss) -> Child:
        try:
            return self._loader._standby(loss)
        except PenstockError as error:
            raise ChildLost(error) from error

    def _end_at(self, step: int) -> int:
        items = self._items  # not those of a `FetchingAhead`, which do not move
        assert isinstance(items, OrderedThreads)
        return items.end_at(step)
