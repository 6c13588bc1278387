"""`interleave`: one row of each pipeline in turn.

Which source a position has is arithmetic: sources end one after another, and between two such ends the same sources
take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.steps.branches import Branches, Place
from penstock.steps.node import Node
from penstock.steps.picks import I64, Epoch

AtEnd = Literal["continue", "stop", "restart"]


class Turns(NamedTuple):
    """Stretches of rounds with the same sources: the first position and the first round of each, and its sources."""

    starts: I64
    rounds: I64
    sources: list[NDArray[np.int64]]

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Turns:
        """
        >>> turns = Turns.of([2, 1, 3])
        >>> [turns.at(np.arange(6))[i].tolist() for i in (0, 1)]
        [[0, 1, 2, 0, 2, 2], [0, 0, 0, 1, 1, 2]]
        """
        rows = np.asarray(sizes, np.int64)
        rounds = np.concatenate([[0], np.unique(rows[rows > 0])]).astype(np.int64)
        sources = [np.flatnonzero(rows > begun) for begun in rounds[:-1].tolist()]
        lengths = np.diff(rounds) * np.array([len(some) for some in sources], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(starts, rounds, sources)

    def at(self, position: I64) -> tuple[I64, I64]:
        """The source of each position, and the row of it."""
        stretch = np.searchsorted(self.starts, position, "right") - 1
        source, row = np.empty_like(position), np.empty_like(position)
        for number in np.unique(stretch).tolist():
            where = np.flatnonzero(stretch == number)
            some = self.sources[number]
            turn, which = np.divmod(position[where] - self.starts[number], len(some))
            source[where], row[where] = some[which], turn + self.rounds[number]
        return source, row


class Interleaved(Branches):
    """Rows of the children in turn; `at_end` is what happens when one of them ends."""

    where_from: ClassVar[str] = "interleave_source"
    noun: ClassVar[str] = "penstock.interleave()"

    def __init__(self, children: Sequence[Node], at_end: AtEnd) -> None:
        finite = [child.size for child in children if child.size is not None]
        endless = len(finite) < len(children)
        if endless and at_end == "restart":
            raise UsageError(
                'pipelines with an end in penstock.interleave(at_end="restart")',
                got="an endless one",
                fix='at_end="continue" or "stop"; or add .take(n)',
            )
        if at_end == "restart" and 0 in finite:
            raise UsageError(
                'at least one row in every pipeline of penstock.interleave(at_end="restart")',
                got="none in one of them",
                fix='leave it out, or at_end="continue"',
            )
        count, shortest, longest = len(children), min(finite, default=0), max(finite, default=0)
        self.at_end, self.longest = at_end, longest
        sizes = [child.size for child in children]
        self.rows = np.array([0 if size is None else size for size in sizes], np.int64)
        size: int | None
        if at_end == "stop":
            size = None if not finite else shortest * count + sizes.index(shortest)
        elif at_end == "restart":
            size = longest * count
        else:
            size = None if endless else int(self.rows.sum())
        # An endless source never ends: its turns go on past the end of all others.
        self.turns = Turns.of([longest + 1 if size is None else size for size in sizes])
        super().__init__(children, size)

    def place(self, position: I64, epoch: Epoch) -> Place:
        if self.at_end == "continue":
            return Place(*self._in_turn(position), epoch)
        row, source = np.divmod(position, len(self.children))
        if self.at_end == "stop":
            return Place(source, row, epoch)
        rows = self.rows[source]
        turn = row // rows
        passes = -(-self.longest // rows)
        return Place(source, row - turn * rows, turn + epoch * passes)

    def _in_turn(self, position: I64) -> tuple[I64, I64]:
        if self.size is not None:
            return self.turns.at(position)
        # Past the last end only the endless ones are left.
        last = self.turns.sources[-1]
        begin, first = int(self.turns.starts[-2]), int(self.turns.rounds[-2])
        source, row = self.turns.at(np.minimum(position, self.turns.starts[-1] - 1))
        late = np.flatnonzero(position >= begin)
        turn, which = np.divmod(position[late] - begin, len(last))
        source[late], row[late] = last[which], turn + first
        return source, row
