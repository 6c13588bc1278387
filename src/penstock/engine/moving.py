"""Decides with `threads=None` whether a loader moves its work to a child process: from measured steps, without a clock.

A *period* is the time from one batch to the next: the wait for it and the trainer's own step. Threads that take turns
with the trainer for the GIL lengthen its step; a child does not, but costs its start, its memory and a copy of each
batch. So it is tried where the trainer loses enough and the run is long enough: threads and child compute in turns
(threads, child, threads, child), and the child stays if both its turns had clearly shorter periods than both turns of
the threads. A trainer that becomes faster or slower by itself does not look like that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol, runtime_checkable


@dataclass(frozen=True)
class Rules:
    """When a child is tried, and when it stays."""

    lost: float = 0.03  # the part of its step that the trainer loses, from which a child is tried
    gain: float = 0.02  # by which part the periods of both its turns must be shorter than those of both of threads
    turn: int = 16  # batches that are measured in each turn...
    settling: int = 4  # ...after these, which are not
    trials: int = 2  # in the life of a loader
    again_after: int = 1000  # batches between two trials
    payback: float = 10.0  # what a child saves in the rest of the epoch, at least, in times of its start
    waits: float = 0.05  # the part of a period for which the trainer may wait for the child, over `watched` batches
    watched: int = 64
    start_seconds: float = 1.0  # of a child, as long as none was started
    most_start_seconds: float = 30.0

    @property
    def batches(self) -> int:
        """Batches of a trial."""
        return 4 * (self.turn + self.settling)


RULES = Rules()


@dataclass(frozen=True)
class Loss:
    """What a trainer loses to the work beside it: the seconds of its own step alone, of a batch, and lost per batch."""

    step: float
    cost: float
    lost: float
    threads: int = 1  # beside the trainer; 0: it computes batches itself

    @property
    def share(self) -> float:
        """The part by which the trainer's period is longer than its own step."""
        return self.lost / self.step if self.step else 0.0

    @property
    def period(self) -> float:
        return self.step + self.lost


def pays(loss: Loss, left: int | None, start_seconds: float, rules: Rules = RULES) -> bool:
    """Whether a child is worth a try: the trainer loses enough, and the `left` batches (None: no end) are many.

    >>> pays(Loss(step=14e-3, cost=8e-3, lost=2e-3), None, 1.0)
    True
    >>> pays(Loss(step=14e-3, cost=8e-3, lost=2e-3), 100, 1.0)
    False
    """
    if loss.share < rules.lost or loss.lost <= 0:
        return False
    return left is None or (left >= 4 * rules.batches and left * loss.lost >= rules.payback * start_seconds)


def child_threads(loss: Loss, cores: int) -> int:
    """Threads of the child: one where it keeps up with the trainer, so that it disturbs it least."""
    return 1 if loss.cost < 0.8 * loss.step else cores


def better(turns: Sequence[Sequence[float]], rules: Rules = RULES) -> bool:
    """Whether a child stays, by the periods of turns of threads, child, threads, child.

    >>> better([[16.0] * 9, [14.0] * 9, [16.1] * 9, [14.2] * 9])
    True
    >>> better([[16.0] * 9, [15.0] * 9, [14.0] * 9, [13.0] * 9])
    False
    """
    first, moved, second, again = map(median, turns)
    return max(moved, again) <= (1 - rules.gain) * min(first, second)


@dataclass
class Experience:
    """What a loader has found out about child processes; it holds for later epochs."""

    rules: Rules = RULES
    loss: Loss | None = None  # None: not measured
    won: bool | None = None  # whether the last trial was for a child; None: there was none
    trials: int = 0
    start_seconds: float = 0.0  # of the last child
    failed: str = ""  # why no child will be started again
    moved: bool = False  # whether a child computes now

    def worth(self, left: int | None) -> bool:
        """Whether to start a child, with `left` batches to come."""
        if self.loss is None or self.failed or (not self.won and self.trials >= self.rules.trials):
            return False
        return pays(self.loss, left, self.start_seconds or self.rules.start_seconds, self.rules)

    def tried(self, won: bool) -> None:
        """A trial has ended."""
        self.won, self.trials = won, self.trials + 1

    def give_up(self, why: str) -> None:
        """No child is started again."""
        self.failed, self.won = why, False

    @property
    def verdict(self) -> str:
        """What the verdict of `stats()` says about it; "" if the trainer loses too little to mention."""
        loss = self.loss
        if loss is None or loss.share < self.rules.lost:
            return ""
        how = "beside the loader's threads" if loss.threads else "by computing the batches in its own thread"
        if self.moved:
            return f"a child process computes the batches: the trainer's step took {loss.share:.0%} longer {how}"
        text = f"the trainer's own step takes {loss.share:.0%} longer {how}"
        if self.trials:
            return f"{text}; a child process was tried, and is no faster"
        why = f"; the loader does not by itself: {self.failed}" if self.failed else ""
        return f"{text}: isolate=True, threads=1 moves them to a child process{why}"


@runtime_checkable
class Child(Protocol):
    """A child process that computes the steps that it is asked for, and iterates over their batches."""

    def __iter__(self) -> Iterator[Any]: ...

    def is_ready(self) -> bool: ...

    def begin(self, start: int, stop: int | None) -> None: ...

    def close(self) -> None: ...


class ChildLost(Exception):
    """The child died, hangs, raised or could not be started; `error` says how."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Taken(NamedTuple):
    """A batch that the trainer took: the number of the next one, the seconds it waited, its own step before that."""

    at: int
    waited: float
    step: float
    end_at: Callable[[int], int]  # lets the threads end early; returns where they do


class Move(NamedTuple):
    """Who computes the next steps: the child or threads, up to a step."""

    to_child: bool
    stop: int | None


class Course:
    """The course of one `for` whose work may move: `took` gets each batch, and says when somebody else goes on.

    `over` when nothing will move any more. `start` starts a child; `clock` returns seconds.
    """

    def __init__(
        self, known: Experience, stop: int | None, start: Callable[[Loss], Child], clock: Callable[[], float]
    ) -> None:
        self.child: Child | None = None
        self._known, self._stop, self._start, self._clock = known, stop, start, clock
        self._cut = False  # whether the threads end before the epoch does
        self._at = Taken(0, 0.0, 0.0, lambda step: step)
        self.over = False
        self._run = self._all()
        next(self._run)

    def took(self, taken: Taken) -> Move | None:
        """The trainer took a batch: who computes the next ones, if somebody else."""
        try:
            return self._run.send(taken)
        except StopIteration:
            self.close()
            self.over = True
            return None
        except ChildLost as lost:
            return self.lost(lost)

    def lost(self, lost: ChildLost) -> Move | None:
        """The child is gone: threads go on."""
        self._known.give_up(f"{lost.error}".partition("\n")[0])
        self.close()
        self.over = True
        return Move(False, self._stop) if self._cut else None

    def _all(self) -> Generator[Move | None, Taken, None]:
        known, rules = self._known, self._known.rules
        yield from self._take()
        while known.worth(None if self._stop is None else self._stop - self._at.at):
            assert known.loss is not None
            child = self.child = self._start(known.loss)
            began = self._clock()
            while not child.is_ready():
                if self._clock() - began > rules.most_start_seconds:
                    known.give_up(f"it had not started after {rules.most_start_seconds:g} seconds")
                    return
                yield from self._take()
            known.start_seconds = self._clock() - began
            if known.won:
                first = self._end_threads(self._at.at + rules.settling)
                child.begin(first, self._stop)
                yield from self._until(first)
                yield from self._watch(Move(True, self._stop))
            elif (yield from self._turns(child)):
                yield from self._watch()
            self.close()
            move = Move(False, self._stop) if self._cut else None
            self._cut = False
            yield from self._until(self._at.at + rules.again_after, move)

    def close(self) -> None:
        """Ends the child."""
        self._known.moved = False
        if self.child is not None:
            self.child.close()
            self.child = None

    def _turns(self, child: Child) -> Generator[Move | None, Taken, bool]:
        """A trial: threads, child, threads, child. True if the child goes on, until the end of the epoch."""
        rules = self._known.rules
        size = rules.settling + rules.turn
        if not self._has_room(4 * size):
            return False
        at = self._end_threads(self._at.at + size)  # nothing that threads have computed is thrown away
        if not self._has_room(at - self._at.at + 4 * size):
            yield from self._until(at)
            return False
        child.begin(at, at + size)
        before = yield from self._until(at)
        moved = yield from self._until(at := at + size, Move(True, at))
        child.begin(at + size, at + 2 * size + rules.settling)  # it computes a few ahead while the threads begin
        after = yield from self._until(at := at + size, Move(False, at))
        again = yield from self._until(at := at + size, Move(True, at + rules.settling))
        won = better((before, moved, after, again), rules)
        self._known.tried(won)
        if won:
            child.begin(at + rules.settling, self._stop)
        else:
            yield from self._until(at + rules.settling)
        return won

    def _watch(self, move: Move | None = None) -> Generator[Move | None, Taken, None]:
        """Follows the child; returns when the trainer waits for it, and is not faster than it was beside threads."""
        known, rules = self._known, self._known.rules
        known.moved = True
        while True:
            waited = 0.0
            periods = []
            for _ in range(rules.watched):
                periods.append((yield from self._take(move)))
                waited, move = waited + self._at.waited, None
            slow = known.loss is None or median(periods) >= known.loss.period
            if slow and waited > rules.waits * sum(periods):
                return known.tried(False)

    def _end_threads(self, step: int) -> int:
        self._cut = True
        return self._at.end_at(step)

    def _has_room(self, batches: int) -> bool:
        return self._stop is None or self._stop - self._at.at > batches + self._known.rules.settling

    def _take(self, move: Move | None = None) -> Generator[Move | None, Taken, float]:
        """Waits for the next batch; returns its period."""
        self._at = yield move
        return self._at.waited + self._at.step

    def _until(self, step: int, move: Move | None = None) -> Generator[Move | None, Taken, list[float]]:
        """Waits until the trainer has reached a step; returns the periods without the first ones."""
        periods = []
        while self._at.at < step:
            periods.append((yield from self._take(move)))
            move = None
        return periods[self._known.rules.settling :]
