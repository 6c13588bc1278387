"""`sample`: a fixed random subset of the rows, without replacement; also the parts of a random `split`.

Row n is a keyed permutation of n: no list of rows is made, and the subset is the same in every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.shuffle import permute
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks


@dataclass(frozen=True)
class Sample(Step):
    """Rows [start, start + count) of a fixed permutation by `seed`."""

    by_position: ClassVar[bool] = True
    count: int
    seed: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        share = f'; .split({{"part": {self.count}, "rest": None}})["part"]' if isinstance(self.count, float) else ""
        integer_field(self, "count", 1, "an integer of at least 1 in .sample()", f".sample(1000, seed=7){share}")
        integer_field(self, "seed", None, "an integer for seed= in .sample()", ".sample(1000, seed=7)")
        integer_field(self, "start", 0, "an integer of at least 0 for start")

    def build(self, child: Node, context: Context) -> Node:
        if child.size is None:
            raise UsageError(
                "a sequence with an end before .sample()", got="an endless one", fix="add .take(n), or sample first"
            )
        if self.start + self.count > child.size:
            raise UsageError(
                f"at most {child.size} rows in .sample(), which takes each row once",
                got=str(self.start + self.count),
                fix=f".sample({child.size}), or .repeat() before it",
            )
        return _Sampled(child, self, child.size)


class _Sampled(WrapperNode):
    def __init__(self, child: Node, step: Sample, rows: int) -> None:
        super().__init__(child)
        self.rows, self.start, self.size = rows, step.start, step.count
        self.key = randomness.key(step.seed, "sample")

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(self._rows(position), epoch)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        return self.child.lanes(self._rows(position), epoch)

    def _rows(self, position: I64) -> I64:
        return permute(position + self.start, self.rows, self.key)
