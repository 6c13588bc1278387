"""Batches of a stream that has no random access: how it is cut, which rows a rank takes, the position of a run.

A stream is a sequence of (position, element) pairs that is the same for every worker, rank and batch size. Positions
increase; some may be missing. The state is the epoch and the position at which the next batch begins, so it can be
restored on any number of workers, another world size or another batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.order.shard import equal_rows, rows_of_rank
from penstock.plan import state as states

Placed = tuple[int, Any]
Remainder = Literal["drop", "short", "pad", "repeat"]


class Round(NamedTuple):
    """One global batch of a stream: its (position, element) pairs, and whether it is the last of the epoch."""

    placed: list[Placed]
    last: bool

    @property
    def next(self) -> int:
        """The position at which the next batch begins."""
        return self.placed[-1][0] + 1


class Share(NamedTuple):
    """One rank's rows of a global batch. `valid` is False for rows that fill up a padded batch."""

    placed: list[Placed]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """Global batches of `rows` elements, of which rank `rank` of `world` takes a share.

    `remainder` decides about a last batch that is not full. "drop" leaves it out. "short" divides its rows: ranks
    differ by at most one row. "pad" fills it up with its last row, marked as not valid. "repeat" uses some of its rows
    twice, fewer than there are ranks, so that all ranks have as many, as with torch's DistributedSampler.
    """

    rows: int
    remainder: Remainder = "short"
    rank: int = 0
    world: int = 1

    def rounds(self, elements: Iterable[Placed]) -> Iterator[Round]:
        """The global batches; each is yielded once it is known whether another one follows.

        >>> [([element for _, element in made.placed], made.last) for made in Cut(2).rounds(enumerate("abcde"))]
        [(['a', 'b'], False), (['c', 'd'], False), (['e'], True)]
        """
        drop, ready, coming = self.remainder == "drop", list[Placed](), list[Placed]()
        for pair in elements:
            coming.append(pair)
            if ready and (not drop or len(coming) == self.rows):
                yield Round(ready, False)
                ready = []
            if len(coming) == self.rows:
                ready, coming = coming, []
        if coming and not drop:
            ready = coming
        if ready:
            yield Round(ready, True)

    def share(self, placed: list[Placed]) -> Share:
        """This rank's rows of a global batch.

        >>> [Cut(6, "repeat", rank, 2).share([*enumerate("abc")]).placed for rank in range(2)]
        [[(0, 'a'), (1, 'b')], [(2, 'c'), (0, 'a')]]
        """
        count = len(placed)
        if self.remainder == "repeat":
            numbers = equal_rows(count, self.rank, self.world)
            return Share([placed[i] for i in numbers.tolist()], np.ones(len(numbers), bool))
        first, last = rows_of_rank(self.rows if self.remainder == "pad" else count, self.rank, self.world)
        rows = [placed[min(i, count - 1)] for i in range(first, last)]
        return Share(rows, np.arange(first, last) < count)


class Position(NamedTuple):
    """The epoch and position of the next batch, and how many batches were taken before it.

    After the last batch of an epoch the position is still in that epoch, with `ended`: a state saved there resumes with
    nothing left of the epoch, as torchdata's does, so that a training loop counts its epochs right.
    """

    epoch: int = 0
    n: int = 0
    step: int = 0
    ended: bool = False

    def after(self, n: int, last: bool) -> Position:
        """The position after a batch that ends before position `n`."""
        return Position(self.epoch, n, self.step + 1, last)

    def at_epoch(self, epoch: int) -> Position:
        """The start of an epoch."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError("an epoch of 0 or more", got=repr(epoch))
        return Position(epoch, 0, self.step)

    def to_state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """A few numbers, the same on every rank, and what decides the stream's order and rows."""
        fields = {"step": self.step, "epoch": self.epoch, "n": self.n}
        return states.write("stream loader", fields | ({"ended": True} if self.ended else {}), identity)


def position_of(state: Mapping[str, Any]) -> Position:
    """The position in the fields of a state; early versions did not save the step."""
    step = states.number(state, "step") if "step" in state else 0
    return Position(states.number(state, "epoch"), states.number(state, "n"), step, state.get("ended") is True)
