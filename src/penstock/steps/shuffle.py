"""`shuffle`: a keyed permutation, computed where it is needed; no list of indices is ever made.

Costs about 0.1 us a row and no memory whatever the size. Each epoch has its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.blocks import permute_blocks
from penstock.order.lane_blocks import BlockEdges, equal_edges, listed_edges
from penstock.order.lanes import MOST_LANES, LaneOrder, lane_order, listed_lane_order
from penstock.order.lru_cache import LruCache
from penstock.order.shuffle import permute
from penstock.order.superblocks import WINDOW, shuffle_windows
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks, in_each_epoch

BLOCK, LANE_WINDOW = 1024, 64  # of a lane shuffle, where the source declares no blocks
KEPT_ORDERS = 4
FIX = ".shuffle(seed=7, lanes=256, block=1024, window=64), or leave them out for a full shuffle"
FEW = 3  # epochs in one call up to which a permutation for each is quicker than a key for each position


@dataclass(frozen=True)
class Shuffle(Step):
    """Global shuffle; with `block` and `window` one that keeps reads near each other; with `lanes` also on many hosts.

    `block` is a number of rows and `window` a number of blocks. With `lanes`, blocks that the source declares (row
    groups, tar shards, stretches of packs) stay in one piece unless `block` is smaller; where there are none, the
    default is 1024 rows. The default of `window` is 64 blocks of that many rows, and 4 blocks of the source's own.
    """

    by_position: ClassVar[bool] = True
    seed: int = 0
    block: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        integer_field(self, "seed", None, "an integer for seed= in .shuffle()", ".shuffle(seed=7), or no .shuffle()")
        for name in ("block", "window", "lanes"):
            if getattr(self, name) is not None:
                integer_field(self, name, 1, f"an integer of at least 1 for {name}= in .shuffle()", FIX)
        if self.lanes is not None and self.lanes > MOST_LANES:
            raise UsageError(f"at most {MOST_LANES} for lanes= in .shuffle()", got=str(self.lanes), fix=FIX)

    def spec(self) -> dict[str, Any]:
        """Without `lanes` as it was before there were any: earlier states still load."""
        return {name: value for name, value in super().spec().items() if name != "lanes" or value is not None}

    @property
    def follows_blocks(self) -> bool:
        return self.lanes is not None

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
        node = Shuffled(child, child.size, self, context.place)
        if node.facts.spares is not None:
            child.draw_spares(node.facts.spares)
        return node


class _SameBlock:
    """Rejected records are replaced by records of their block."""

    def __init__(self, edges: BlockEdges) -> None:
        self.edges = edges

    def near(self, picks: Picks) -> tuple[I64, I64]:
        return self.edges.around(picks.record)


class Shuffled(WrapperNode):
    """The child's rows in an order drawn for each epoch; rows that come in stretches (packs) stay near each other."""

    def __init__(self, child: Node, size: int, step: Shuffle, place: int) -> None:
        super().__init__(child)
        self.rows = size
        self.step = step
        self.base = randomness.key(step.seed, "shuffle", place)
        sizes = child.facts.stretches if child.facts.blocks is None else child.facts.blocks
        # None where no blocks are declared, or a step has changed the rows.
        self.blocks = sizes if sizes is not None and int(sizes.sum()) == size else None
        self.facts = replace(self.facts, lanes=step.lanes is not None, moves=True)
        if step.lanes is not None and child.facts.numbered:
            self.facts = replace(self.facts, spares=_SameBlock(self._block_edges(step.lanes)))
        self.orders = LruCache[LaneOrder](KEPT_ORDERS)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        plain = self.step.block is None and self.step.lanes is None and self.child.facts.stretches is None
        if plain and isinstance(epoch, np.ndarray) and epoch.size and np.ptp(epoch) >= FEW:
            passes, which = np.unique(epoch, return_inverse=True)
            keys = np.array([randomness.key(self.base, int(e)) for e in passes], np.uint64)
            return self.child.pick(permute(position, self.rows, keys[which]), epoch)
        return self.child.pick(in_each_epoch(position, epoch, self._permute), epoch)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        lanes = self.step.lanes or 1
        places = (np.arange(lanes) * MOST_LANES // lanes).astype(np.uint16)
        found: NDArray[np.uint16] = places[position - position // lanes * lanes]
        return found

    def _block_edges(self, lanes: int) -> BlockEdges:
        if self.blocks is None:
            return equal_edges(self.rows, lanes, self.step.block or BLOCK)
        return listed_edges(self.blocks, lanes, self.step.block)

    def lane_order(self, epoch: int) -> LaneOrder:
        """The order of one epoch of a lane shuffle."""
        lanes, block, window = self.step.lanes or 1, self.step.block, self.step.window
        key, sizes = randomness.key(self.base, "lanes", epoch), self.blocks
        if sizes is None:
            return lane_order(self.rows, lanes, block or BLOCK, window or LANE_WINDOW, key)
        return self.orders.get(epoch, lambda: listed_lane_order(sizes, lanes, window or WINDOW, key, block))

    def _permute(self, position: I64, epoch: int) -> I64:
        if self.step.lanes is not None:
            return self.lane_order(epoch).permute(position)
        key = randomness.key(self.base, epoch)
        if self.step.block is None:
            if self.child.facts.stretches is not None:
                return shuffle_windows(position, self.child.facts.stretches, self.step.window or WINDOW, key)
            return permute(position, self.rows, key)
        window = self.step.window or 16
        return permute_blocks(position, self.rows, self.step.block, window, key)
