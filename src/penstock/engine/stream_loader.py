"""The loader over a stream that has no random access: iterates, saves and restores its position, finds any batch.

The promise is narrower than a pipeline's. The order of an epoch is the same every time, for any number of workers and
ranks; a state resumes exactly, by reading over the records before it; ranks and workers never share a record. A batch
by number is found by reading the stream from its beginning. The length is unknown.

Each `for` runs to the end of the current epoch; the next `for` is the next epoch. After leaving a loop early, the next
`for` continues there. Iterators that are alive at the same time are independent; the position is that of the batch
taken last. `load_state_dict`, and `set_epoch` to another epoch, take effect at the next batch of a running loop.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

from penstock.core.errors import UsageError
from penstock.engine import stalls
from penstock.engine.loop import Loop
from penstock.engine.stats import Stats
from penstock.plan import state as states
from penstock.plan.same_step import refuse_different_steps
from penstock.plan.step_ranges import row_number
from penstock.plan.stream_batches import Cut, Placed, Position, Round, Share, position_of


class Made(NamedTuple):
    """A batch, and the position after it. `batch` is None if there is nothing to deliver: all records were skipped."""

    next: int
    last: bool
    batch: Any
    tokens: int = 0


class BatchedStream(Protocol):
    """A stream of records and how batches are made of them."""

    def elements(self, start: int, epoch: int) -> Iterator[Placed]:
        """(position, element) pairs of all ranks, from a position of an epoch on."""
        ...

    def make(self, share: Share, epoch: int) -> tuple[Any, int]:
        """The batch of one rank's rows (None if all were skipped), and its tokens where they are counted."""
        ...

    def locate(self, placed: Placed) -> dict[str, Any]:
        """Where an element comes from."""
        ...

    def origin(self) -> Mapping[str, Any]:
        """What decides order and rows; written into the state."""
        ...

    def check_origin(self, state: dict[str, Any]) -> None:
        """Raises for a state of another stream."""
        ...


Run = Callable[[int, int], Iterator[Made]]  # the batches of an epoch, from a position on


class StreamLoader:
    """Batches of a stream. `cut` returns how it is cut; `run` computes batches ahead of use, else none are."""

    def __init__(self, stream: BatchedStream, cut: Callable[[], Cut], run: Run | None = None, epoch: int = 0) -> None:
        self.stream, self._cut, self._run = stream, cut, run or self.batches
        self._position = Position(epoch)
        self._restored = False  # whether the position comes from a saved state, and nothing was taken since
        self._moves = 0  # how often running loops were moved to another position
        self._changing = threading.RLock()  # held while they are
        self._stats = Stats()
        self.tokens = 0

    @property
    def step(self) -> int:
        """The number of batches taken before the next one."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._position.epoch + self._position.ended

    def __len__(self) -> int:
        raise TypeError("a stream has no length: count its batches, or use data with random access")

    def __iter__(self) -> Generator[Any, None, None]:
        if self._position.ended and not self._restored:
            self.next_epoch()
        loop = Loop(independent=True)
        run = self._iterate(self._position, self._moves, loop)
        loop.run = weakref.ref(run)
        return run

    def _iterate(self, at: Position, moves: int, loop: Loop) -> Generator[Any, None, None]:
        """One `for`, from a position on."""
        self._restored = False
        loop.inline = True  # whoever computes the batches, nobody else watches them
        loop.begin(self, self._stats)
        run = self._begin(at)
        try:
            while True:
                began = time.perf_counter()
                if moves != self._moves and not at.ended:
                    _close(run)
                    with self._changing:
                        at, moves, self._restored = self._position, self._moves, False
                    run = self._begin(at)
                made = next(run, None)
                if made is None:
                    break
                after = at.after(made.next, made.last)
                if moves != self._moves:  # by a signal handler or another thread, while the batch was computed
                    continue
                at = self._position = after  # nothing is called after the comparison: nobody comes in between
                self._restored = False
                self.tokens += made.tokens
                now = time.perf_counter()
                self._stats.took(now - began, now)
                if made.batch is not None:
                    yield made.batch
        finally:
            _close(run)
            stalls.unwatch(loop.run)
        if not at.n:
            raise UsageError("at least one batch in the stream", got="none", fix="a smaller batch, or another split")
        if self._position is at:  # not moved by anyone else since
            self._position = at.at_epoch(at.epoch + 1)

    def _begin(self, at: Position) -> Iterator[Made]:
        return iter(()) if at.ended else self._run(at.epoch, at.n)

    def batches(self, epoch: int, start: int) -> Iterator[Made]:
        """The batches of this rank, from a position of an epoch on, computed in the calling thread."""
        cut = self._cut()
        return (self._made(each, cut, epoch) for each in cut.rounds(self.stream.elements(start, epoch)))

    def _made(self, each: Round, cut: Cut, epoch: int) -> Made:
        began = time.perf_counter()
        share = cut.share(each.placed)
        batch, tokens = self.stream.make(share, epoch)
        self._stats.add(1, len(share.placed), 0.0, time.perf_counter() - began, 0.0)
        return Made(each.next, each.last, batch, tokens)

    def batch_at(self, step: int) -> Any:
        """The batch of a step, counted over complete epochs, found by reading the stream from its beginning."""
        epoch, each = self._round_at(step)
        return self._made(each, self._cut(), epoch).batch

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`."""
        epoch, each = self._round_at(step)
        placed = self._cut().share(each.placed).placed
        row = row_number(row, len(placed), step)
        return {"step": step, "row": row, "epoch": epoch, "from": self.stream.locate(placed[row])}

    def _round_at(self, step: int) -> tuple[int, Round]:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise UsageError("a step number of at least 0", got=repr(step), fix="steps count from 0 over all epochs")
        left, epoch = step, 0
        while True:
            count = 0
            for each in islice(self._cut().rounds(self.stream.elements(0, epoch)), left + 1):
                if count == left:
                    return epoch, each
                count += 1
            if not count:
                raise UsageError("a step of the stream", got=str(step))
            left, epoch = left - count, epoch + 1

    def next_epoch(self) -> None:
        """Skips the rest of the current epoch; does nothing before its first batch, or after a restore."""
        if self._position.n and not self._restored:
            self._position = self._position.at_epoch(self._position.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position just restored in that epoch is kept.

        A running loop over the same epoch is not disturbed; one over another epoch goes on at the start of this one.
        """
        at = self._position.at_epoch(epoch)
        if self._restored and epoch == self._position.epoch:
            return
        with self._changing:
            self._moves += epoch != self._position.epoch
            self._position, self._restored = at, False

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain JSON, the same on every rank."""
        return self._position.to_state(self.stream.origin())

    def load_state_dict(self, state: Any) -> None:
        """Resumes from a saved state; workers, ranks and batch size may differ from those it was saved with."""
        saved = states.read(state, "stream loader")
        position = position_of(saved)
        self.stream.check_origin(saved)
        if (world := self._cut().world) > 1:
            refuse_different_steps(json.dumps(self.stream.origin(), sort_keys=True, default=str), saved, world)
        with self._changing:
            self._moves += 1  # first: from here on no loop delivers a batch, until it has seen the new position
            self._position, self._restored = position, True

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict."""
        return self._stats.summary()


def _close(run: Iterator[Made]) -> None:
    """Ends a run at once, with its threads or workers, instead of when it is collected."""
    if isinstance(run, Generator):
        run.close()
