"""How well an order mixes: how many places of the corpus a step can draw from, and how often it draws one place twice.

A *place* is a block of `block` consecutive records: neighbours are often alike (one web site, one book, one class). Two
figures, both expectations over seeds: `pool`, the blocks that are being drawn from at one time, and `pairs`, the pairs
of rows of one step that come from the same block. A global shuffle is the best that an order can be.
"""

from __future__ import annotations

from typing import NamedTuple


class Quality(NamedTuple):
    """`pool`: blocks that rows are drawn from at a time; `pairs`: pairs of rows of a step from the same block."""

    pool: int
    pairs: float


def global_quality(rows: int, step: int, block: int) -> Quality:
    """Of a shuffle of all rows.

    >>> pool, pairs = global_quality(1_000_000, step=1_000, block=100)
    >>> pool, round(pairs, 2)
    (10000, 49.45)
    """
    return Quality(_up(rows, block), step * (min(block, rows) - 1) / 2 * _share(step, rows))


def block_quality(rows: int, step: int, block: int, window: int) -> Quality:
    """Of a shuffle of blocks, with rows shuffled inside windows of `window` blocks."""
    block = min(block, rows)
    pool = min(window, _up(rows, block))
    return Quality(pool, step * (block - 1) / 2 * _share(step, min(window * block, rows)))


def lane_quality(rows: int, step: int, block: int, window: int, lanes: int) -> Quality:
    """Of a lane shuffle: a step takes its rows from all lanes equally, each of which shuffles inside windows.

    Lanes begin with windows of different sizes, from 1 block to `window`, so there is about one window more in each.
    """
    block = max(1, min(block, rows // lanes))
    per_lane, blocks = max(1.0, step / lanes), max(1, rows // (block * lanes))
    windows = 1.0 if blocks <= window else blocks / window + 1 - 1 / window
    pairs = min(lanes, step) * per_lane * (block - 1) / 2 * _share(per_lane, blocks / windows * block)
    return Quality(min(lanes * min(window, blocks), _up(rows, block)), pairs)


def file_order_quality(rows: int, step: int, block: int) -> Quality:
    """Of rows in the order of the files: all neighbours are together."""
    step, most = min(step, rows), min(step, block)
    pairs = (
        (most - 1) * step
        - (1 + step / block) * most * (most - 1) / 2
        + (most - 1) * most * (2 * most - 1) / (6 * block)
    )
    return Quality(_up(step, block), pairs)


def _share(drawn: float, pool: float) -> float:
    """Of the other rows of a row's block, the share that is in the same step, if `drawn` rows come from `pool`."""
    return min(1.0, (drawn - 1) / max(1.0, pool - 1))


def _up(count: int, size: int) -> int:
    return -(-count // size)
