"""`batch`: how many rows make a step, and what happens to those left over at the end of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.core.errors import UsageError
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node

Remainder = Literal["drop", "pad", "short"]


@dataclass(frozen=True)
class Batch(Step):
    """`size` rows a step over all ranks together, or `per_rank` rows on each.

    The rows left over at the end of an epoch: "drop" them, "pad" the last batch (column `valid` is True for real rows,
    and the labels of the others are -100), or return a "short" one. With fewer rows than ranks in a short batch, some
    ranks get arrays of 0 rows. Use "pad" if every rank needs rows.

    `balance` assigns the packs of a step to ranks by the cost of their attention, instead of in their order. The rows
    of a step do not change, so a restored run may use another value.
    """

    size: int | None = None
    per_rank: int | None = None
    remainder: Remainder = "drop"
    balance: bool = False

    def __post_init__(self) -> None:
        if (self.size is None) == (self.per_rank is None):
            raise UsageError("either .batch(size) or .batch(per_rank=...)", got=f"{self.size!r} and {self.per_rank!r}")
        field = "size" if self.per_rank is None else "per_rank"
        integer_field(self, field, 1, "an integer of at least 1 in .batch()", ".batch(32)")
        if self.remainder not in get_args(Remainder):
            raise UsageError(
                'remainder="drop", "pad" or "short" in .batch()', got=repr(self.remainder), fix='remainder="drop"'
            )

    def rows(self, world: int) -> int:
        """Rows of the global batch."""
        if self.per_rank is not None:
            return self.per_rank * world
        size = self.size or 0
        if size % world:
            low, high = size // world * world, (size // world + 1) * world
            raise UsageError(
                f"a global batch that {world} ranks can share equally",
                got=f".batch({size})",
                fix=f".batch({low or high}), .batch({high}), or .batch(per_rank={-(-size // world)})",
            )
        return size

    @property
    def batch(self) -> Batch:
        return self

    def build(self, child: Node, context: Context) -> Node:
        return child
