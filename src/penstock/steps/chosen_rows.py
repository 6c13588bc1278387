"""Rows that were chosen once, for what is in them: `filter(exact=True)`, and the parts of `split`.

Which rows they are is known before the step is built (`preparation.choose_rows` finds them once), so an epoch holds
each of them exactly once, and a row depends on its position alone. Costs one bit of memory per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.order.row_set import RowSet
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks


@dataclass(frozen=True)
class ExactFilter(Step):
    """The rows for which `function` returned True, and which no step before it rejects."""

    by_position: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    function: Callable[..., Any]
    batched: bool
    version: str | None
    kept: RowSet

    @property
    def name(self) -> str:
        return "filter"

    def build(self, child: Node, context: Context) -> Node:
        return Chosen(child, self.kept)

    def __str__(self) -> str:
        return f"{super().__str__()}, exact=True"


@dataclass(frozen=True)
class SplitPart(Step):
    """The rows of one part of a split by the values of a column."""

    by_position: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    part: str
    column: str
    kept: RowSet

    @property
    def name(self) -> str:
        return "split"

    def build(self, child: Node, context: Context) -> Node:
        return Chosen(child, self.kept)


class Chosen(WrapperNode):
    """The rows of a set, in their order."""

    def __init__(self, child: Node, kept: RowSet) -> None:
        super().__init__(child)
        if not len(kept):
            raise UsageError("at least one row that is kept", got="none", fix="loosen the filter, or check the data")
        self.kept, self.size = kept, len(kept)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(self.kept.rows(position), epoch)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        return self.child.lanes(self.kept.rows(position), epoch)
