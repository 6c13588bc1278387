"""`window_shuffle`: rows move at most 1.5 windows from where they were; for streams, which are read in order.

What a shuffle buffer does, without a buffer in the state: see `order.window_shuffle`. Each epoch has its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.window_shuffle import permute_near
from penstock.sources.base import HeldRecords
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks, in_each_epoch

HELD = 4  # windows that a stream must hold: two that are open, and what threads read ahead


@dataclass(frozen=True)
class WindowShuffle(Step):
    """Shuffles rows within windows of `size` rows that overlap."""

    by_position: ClassVar[bool] = True
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        integer_field(self, "size", 1, "an integer of at least 1 for size= in .window_shuffle()", "size=1000")
        integer_field(self, "seed", None, "an integer for seed= in .window_shuffle()", "seed=7")

    @property
    def name(self) -> str:
        return "window_shuffle"

    @property
    def run_seed(self) -> int:
        return int(self.seed)

    def build(self, child: Node, context: Context) -> Node:
        if child.size is None:
            raise UsageError(
                "a sequence with an end before .window_shuffle()",
                got="an endless one",
                fix="shuffle first: .window_shuffle(1000).repeat()",
            )
        for leaf in child.leaves():
            source = leaf.source
            needed = min(HELD * self.size, len(source))
            if isinstance(source, HeldRecords) and source.held_records < needed:
                raise UsageError(
                    f"a stream that holds {HELD} windows for .window_shuffle({self.size}), or it is read many times",
                    got=f"buffer={source.held_records}",
                    fix=f"from_stream(..., buffer={HELD * self.size}), or a smaller window",
                )
        return _NearlyInOrder(child, child.size, self, randomness.key(self.seed, "window_shuffle", context.place))


class _NearlyInOrder(WrapperNode):
    def __init__(self, child: Node, size: int, step: WindowShuffle, base: int) -> None:
        super().__init__(child)
        self.rows, self.window, self.base = size, step.size, base
        self.facts = replace(self.facts, moves=True)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(in_each_epoch(position, epoch, self._permute), epoch)

    def _permute(self, position: I64, epoch: int) -> I64:
        return permute_near(position, self.rows, self.window, randomness.key(self.base, epoch))
