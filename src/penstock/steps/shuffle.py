"""`shuffle`: a keyed permutation, computed where it is needed; no list of indices is ever made.

Costs about 0.1 us a row and no memory whatever the size. Each epoch has its own order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.blocks import permute_blocks
from penstock.order.shuffle import permute
from penstock.order.superblocks import WINDOW, shuffle_windows
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks

FEW = 3  # epochs in one call up to which a permutation for each is quicker


@dataclass(frozen=True)
class Shuffle(Step):
    """Global shuffle, or with `block` and `window` one that keeps reads of an object store near each other."""

    by_position: ClassVar[bool] = True
    reorders: ClassVar[bool] = True
    seed: int = 0
    block: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        integer_field(self, "seed", None, "an integer for seed= in .shuffle()", ".shuffle(seed=7), or no .shuffle()")

    @property
    def run_seed(self) -> int:
        return int(self.seed)

    def build(self, child: Node, context: Context) -> Node:
        if child.size is None:
            raise UsageError(
                "a sequence with an end before .shuffle()",
                got="an endless one",
                fix="shuffle first: .shuffle().repeat(), or shuffle each source before penstock.mix()",
            )
        return Shuffled(child, child.size, self, context.place)


class Shuffled(WrapperNode):
    """The child's rows in an order drawn for each epoch; rows that come in stretches (packs) stay near each other."""

    def __init__(self, child: Node, size: int, step: Shuffle, place: int) -> None:
        super().__init__(child)
        self.rows = size
        self.step = step
        self.base = randomness.key(step.seed, "shuffle", place)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        if isinstance(epoch, np.ndarray):
            return self.child.pick(self._permute_each(position, epoch), epoch)
        return self.child.pick(self._permute(position, epoch), epoch)

    def _permute_each(self, position: I64, epoch: I64) -> I64:
        """Positions of several epochs at once: a permutation for each epoch, or one call with a key per position."""
        passes, which = np.unique(epoch, return_inverse=True)
        if len(passes) > FEW and self.step.block is None:
            keys = np.array([randomness.key(self.base, int(e)) for e in passes], np.uint64)
            return permute(position, self.rows, keys[which])
        order = np.empty_like(position)
        for number, e in enumerate(passes):
            where = np.flatnonzero(which == number)
            order[where] = self._permute(position[where], int(e))
        return order

    def _permute(self, position: I64, epoch: int) -> I64:
        key = randomness.key(self.base, epoch)
        if self.step.block is None:
            if self.child.facts.stretches is not None:
                return shuffle_windows(position, self.child.facts.stretches, self.step.window or WINDOW, key)
            return permute(position, self.rows, key)
        window = self.step.window or 16
        return permute_blocks(position, self.rows, self.step.block, window, key)
