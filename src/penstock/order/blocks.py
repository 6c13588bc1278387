"""A shuffle in two levels for storage where a read far away is dear: blocks first, then items inside windows of blocks.

The blocks of `block` consecutive items are put in a random order; that order is cut in windows of `window` blocks, and
the items of each window are shuffled among themselves. A reader therefore touches `window` blocks at a time and every
block in one window only.

**Mixing radius**: items of one block end up less than `window * block` positions apart, whatever n; items of different
blocks meet in a batch only if their blocks fall into one window, which is redrawn with every key. `window * block >= n`
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
    """The item at each position of a two-level shuffle of [0, n): a bijection for every n, block and window.

    >>> permute_blocks(np.arange(10), 10, block=3, window=2, key=1)
    array([7, 8, 6, 9, 2, 0, 3, 4, 1, 5])
    """
    layout = _lay_out(n, block, window, key)
    position = _checked(index, n)
    at = layout.window_of(layout.padded(position))
    local = layout.shuffled_inside(position - layout.start_of(at), at, inverse=False)
    slot, offset = np.divmod(layout.padded(local + layout.start_of(at)), layout.block)
    return permute(slot, layout.blocks, layout.key) * layout.block + offset


def unpermute_blocks(value: Any, n: int, block: int, window: int, key: int) -> I64:
    """The inverse of `permute_blocks`: at which position each item stands.

    >>> unpermute_blocks([7, 8, 5], 10, block=3, window=2, key=1)
    array([0, 1, 9])
    """
    layout = _lay_out(n, block, window, key)
    block_id, offset = np.divmod(_checked(value, n), layout.block)
    slot = unpermute(block_id, layout.blocks, layout.key)
    at = slot // layout.window
    local = layout.start_of_slot(slot) + offset - layout.start_of(at)
    return layout.shuffled_inside(local, at, inverse=True) + layout.start_of(at)


@dataclass(frozen=True)
class _Layout:
    """Where the shuffled blocks lie. The ragged last block may land in any slot; `short_slot` is where.

    Positions are real (no holes); *padded* positions are what they would be if the ragged block were full.
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

    def shuffled_inside(self, local: I64, window: I64, inverse: bool) -> I64:
        # Windows have one of at most three sizes: full, the one with the ragged block, the last.
        size = self.start_of(window + 1) - self.start_of(window)
        keys = randomness.keys(randomness.key(self.key, "window"), window)
        out = np.empty_like(local)
        for n in np.unique(size).tolist():
            here = size == n
            out[here] = (unpermute if inverse else permute)(local[here], n, keys[here])
        return out


def _lay_out(n: int, block: int, window: int, key: int) -> _Layout:
    if block < 1 or window < 1:
        raise UsageError(
            "a block of at least 1 item and a window of at least 1 block",
            got=f"block={block}, window={window}",
            where="shuffle by blocks",
            fix="take block=1024, window=64, or leave both out for a full shuffle",
        )
    if n > LARGEST:
        raise UsageError("at most 2**62 items", got=str(n), where="shuffle by blocks", fix="shuffle fewer items")
    block, window = min(block, max(n, 1)), min(window, max(-(-n // block), 1))  # keeps the arithmetic inside 64 bits
    blocks = -(-n // block)
    missing = blocks * block - n
    block_key = randomness.key(key, "blocks")
    short_slot = int(unpermute([blocks - 1], blocks, block_key)[0]) if blocks else 0
    return _Layout(n, block, window, block_key, blocks, missing, short_slot)


def _checked(index: Any, n: int) -> I64:
    given = np.asarray(index, np.int64)
    if given.size and (int(given.min()) < 0 or int(given.max()) >= n):
        raise UsageError(
            f"indices from 0 to {n - 1}",
            got=f"{int(given.min())} to {int(given.max())}",
            where="shuffle by blocks",
            fix="take positions modulo the size, and the quotient into the key",
        )
    return given
