"""`take`, `skip` and `repeat`: arithmetic on positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks


def _whole(step: Step, field: str, least: int) -> None:
    verb = step.name
    integer_field(step, field, least, f"an integer of at least {least} in .{verb}()", f".{verb}({least})")


@dataclass(frozen=True)
class Take(Step):
    """The first `count` rows."""

    by_position: ClassVar[bool] = True
    count: int

    def __post_init__(self) -> None:
        _whole(self, "count", 1)

    @property
    def keeps_order(self) -> bool:
        return True

    def build(self, child: Node, context: Context) -> Node:
        node = WrapperNode(child)
        node.size = self.count if child.size is None else min(self.count, child.size)
        return node


@dataclass(frozen=True)
class Skip(Step):
    """All but the first `count` rows."""

    by_position: ClassVar[bool] = True
    count: int

    def __post_init__(self) -> None:
        _whole(self, "count", 0)

    def build(self, child: Node, context: Context) -> Node:
        if child.size is not None and self.count >= child.size:
            raise UsageError(f"fewer than {child.size} rows in .skip()", got=str(self.count), fix="skip less")
        return _Skipped(child, self.count)


class _Skipped(WrapperNode):
    def __init__(self, child: Node, count: int) -> None:
        super().__init__(child)
        self.count = count
        self.size = None if child.size is None else child.size - count

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(position + self.count, epoch)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        return self.child.lanes(position + self.count, epoch)


@dataclass(frozen=True)
class Repeat(Step):
    """Repeats the rows: `times` passes in one epoch, or endlessly. Each pass counts as an epoch below."""

    by_position: ClassVar[bool] = True
    times: int | None = None

    def __post_init__(self) -> None:
        if self.times is not None:
            integer_field(self, "times", 1, "an integer of at least 1 in .repeat()", ".repeat(2); .repeat() is endless")

    def build(self, child: Node, context: Context) -> Node:
        if child.size is None:
            raise UsageError("a sequence with an end before .repeat()", got="an endless one", fix="leave .repeat() out")
        return _Repeated(child, child.size, self.times)


class _Repeated(WrapperNode):
    def __init__(self, child: Node, rows: int, times: int | None) -> None:
        super().__init__(child)
        self.rows = rows
        self.times = times
        self.size = None if times is None else rows * times
        self.facts = replace(self.facts, spares=child.facts.spares)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        turn = position // self.rows
        first = int(turn[0]) if len(turn) else 0
        inner: Epoch = turn if self.times is None else turn + epoch * self.times
        if not isinstance(epoch, int) or (len(turn) and int(turn[-1]) != first) or (turn != first).any():
            return self.child.pick(position - turn * self.rows, inner)
        only = first if self.times is None else first + epoch * self.times
        return self.child.pick(position - first * self.rows, only)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        turn = position // self.rows
        inner = turn if self.times is None else turn + epoch * self.times
        return self.child.lanes(position - turn * self.rows, inner)
