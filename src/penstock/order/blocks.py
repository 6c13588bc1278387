"""A two-level shuffle for storage where random access is expensive: blocks, then items inside windows of blocks.

Blocks of `block` consecutive items are permuted; that order is cut into windows of `window` blocks, and the items of
each window are permuted. A reader therefore needs `window` blocks at a time, and each block in one window only.

**Mixing radius**: items of one block end up less than `window * block` positions apart, for any n; items of different
blocks share a batch only if their blocks fall into one window, which changes with the key. `window * block >= n`
is a full shuffle. Costs about twice a plain `permute` and no memory that depends on n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.shuffle import LARGEST, permute, unpermute

I64 = NDArray[np.int64]


def permute_blocks(index: Any, n: int, block: int, window: int, key: int) -> I64:
    """Returns the item at each position of a two-level shuffle of [0, n): a bijection for every n, block and window.

    >>> permute_blocks(np.arange(10), 10, block=3, window=2, key=1)
    array([7, 8, 6, 9, 2, 0, 3, 4, 1, 5])
    """
    order = _block_order(n, block, window, key)
    position = _checked(index, n)
    at = order.window_of(order.padded(position))
    local = order.shuffled_inside(position - order.start_of(at), at)
    slot, offset = np.divmod(order.padded(local + order.start_of(at)), order.block)
    return permute(slot, order.blocks, order.key) * order.block + offset


@dataclass(frozen=True)
class _BlockOrder:
    """Positions of the permuted blocks. The shorter last block may be in any slot: it is in `short_slot`.

    *Padded* positions are the positions as they would be if that block were full.
    """

    n: int
    block: int
    window: int
    key: int
    blocks: int
    missing: int
    short_slot: int

    def padded(self, position: I64) -> I64:
        end_of_short = self.short_slot * self.block + self.block - self.missing
        return position + np.where(position >= end_of_short, self.missing, 0)

    def window_of(self, padded: I64) -> I64:
        return padded // (self.block * self.window)

    def start_of_slot(self, slot: I64) -> I64:
        return slot * self.block - np.where(slot > self.short_slot, self.missing, 0)

    def start_of(self, window: I64) -> I64:
        return self.start_of_slot(np.minimum(window * self.window, self.blocks))

    def shuffled_inside(self, local: I64, window: I64) -> I64:
        # Windows have at most three sizes: full, the one with the short block, the last.
        size = self.start_of(window + 1) - self.start_of(window)
        keys = randomness.keys(randomness.key(self.key, "window"), window)
        out = np.empty_like(local)
        for n in np.unique(size).tolist():
            here = size == n
            out[here] = permute(local[here], n, keys[here])
        return out


def _block_order(n: int, block: int, window: int, key: int) -> _BlockOrder:
    if block < 1 or window < 1:
        raise UsageError(
            "a block of at least 1 item and a window of at least 1 block",
            got=f"block={block}, window={window}",
            where="shuffle by blocks",
            fix="use block=1024, window=64, or leave both out for a full shuffle",
        )
    if n > LARGEST:
        raise UsageError("at most 2**62 items", got=str(n), where="shuffle by blocks", fix="shuffle fewer items")
    block, window = min(block, max(n, 1)), min(window, max(-(-n // block), 1))  # keeps the arithmetic inside 64 bits
    blocks = -(-n // block)
    missing = blocks * block - n
    block_key = randomness.key(key, "blocks")
    short_slot = int(unpermute([blocks - 1], blocks, block_key)[0]) if blocks else 0
    return _BlockOrder(n, block, window, block_key, blocks, missing, short_slot)


def _checked(index: Any, n: int) -> I64:
    indices = np.asarray(index, np.int64)
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= n):
        raise UsageError(
            f"indices from 0 to {n - 1}",
            got=f"{int(indices.min())} to {int(indices.max())}",
            where="shuffle by blocks",
            fix="use positions modulo the size, and put the quotient (the epoch) into the key",
        )
    return indices
