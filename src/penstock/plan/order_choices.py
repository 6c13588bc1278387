"""What each order would cost: a global shuffle, a shuffle of blocks, lanes, in requests, bytes, cache and mixing.

Closed forms (see docs/explanation/order.md). For N rows on H hosts, in blocks of b rows that are fetched as one:
- blocks: every host touches a block unless none of its b rows fall to it: fleet bytes / corpus = about H (1-(1-1/H)^b)
- lanes: a lane's blocks are read by the hosts that share the lane: fleet bytes / corpus = 1 + (H - gcd(H, L)) / L
  if the number of lanes L divides the batch
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, isqrt

import numpy as np
from numpy.typing import NDArray

from penstock.order.lanes import MOST_LANES as ALL_LANES
from penstock.order.lanes import fleet_amplification
from penstock.plan.assumptions import Assumptions
from penstock.plan.shuffle_quality import Quality, block_quality, lane_quality

MOST_LANES = 1024  # that are advised, unless there are more hosts
_PLACES = 64

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """How rows are ordered: "global", "blocks", "lanes", "file order", or "windows of packs"."""

    kind: str
    block: int = 0  # rows
    window: int = 0  # blocks
    lanes: int = 0


@dataclass(frozen=True)
class Choice:
    """An order, and what an epoch of it costs the fleet. `verb` is how to ask for it."""

    order: Order
    verb: str
    requests: float
    bytes: float
    amplification: float  # bytes that the fleet fetches / bytes of the corpus
    cache_bytes: float  # that a host needs
    quality: Quality


def block_amplification(hosts: int, block: int, window: int, batch: int) -> float:
    """Fleet bytes / corpus of a shuffle of blocks of `block` rows inside windows of `window` blocks.

    A host reads a block unless all of the block's rows fall to others; its rows of a window are those that its part of
    each step covers.

    >>> round(block_amplification(8, 512, 16, 1024), 4), round(block_amplification(64, 512, 16, 1024), 2)
    (8.0, 63.98)
    """
    rows, edges = window * block, np.arange(hosts + 1) * batch // hosts
    shares = np.diff(edges)

    def before(position: int) -> I64:
        turns, rest = divmod(position, batch)
        return turns * shares + np.clip(rest - edges[:-1], 0, shares)

    places = range(0, rows * min(_PLACES, batch // gcd(rows, batch)), rows)
    mine = np.array([before(place + rows) - before(place) for place in places])
    missed = np.maximum(0.0, 1 - mine / (rows - (block - 1) / 2)) ** block  # drawn without replacement
    return float((1 - missed).sum(axis=1).mean())


def lanes_for(batch: int, hosts: int) -> int:
    """The number of lanes to advise: one that divides the batch and reads the corpus once, if there is any.

    Among the divisors of the batch up to 1,024 (or the hosts, if they are more) the one with the least amplification
    to 2%, of those the largest: more lanes mix better and suit more numbers of hosts.

    >>> lanes_for(4096, 64), lanes_for(1000, 8), lanes_for(1_000_000, 12_500), lanes_for(7, 2)
    (1024, 1000, 12500, 7)
    """
    limit = max(MOST_LANES, min(hosts, ALL_LANES))
    small = [d for d in range(1, min(limit, isqrt(batch)) + 1) if batch % d == 0]
    divisors = {d for s in small for d in (s, batch // s) if d <= limit}
    return min(divisors, key=lambda lanes: (round((hosts - gcd(hosts, lanes)) / lanes * 50), -lanes))


def lanes_held(lanes: int, hosts: int) -> int:
    """Lanes that a host reads; where hosts do not divide them, also those that it shares with its neighbours."""
    return lanes // hosts if lanes % hosts == 0 else min(lanes, lanes // hosts + 2)


def rows_per_block(row_bytes: float, assumed: Assumptions, unit: int = 0) -> int:
    """Rows of a block of about `block_bytes`, or of `unit` bytes that are always fetched as one."""
    return max(1, round(max(assumed.block_bytes, unit) / max(row_bytes, 1e-9)))


def block_choice(
    rows: int, row_bytes: float, batch: int, hosts: int, objects: int, order: Order, assumed: Assumptions
) -> Choice:
    """The cost of a shuffle of blocks."""
    block = min(order.block, rows)
    amplification = block_amplification(hosts, block, min(order.window, -(-rows // block)), batch)
    quality = block_quality(rows, batch, block, order.window)
    verb = f".shuffle(seed, block={block}, window={order.window})"
    return _choice(order, verb, rows, row_bytes, block, amplification, order.window, quality, objects, assumed)


def lane_choice(
    rows: int, row_bytes: float, batch: int, hosts: int, objects: int, order: Order, assumed: Assumptions
) -> Choice:
    """The cost of a lane shuffle."""
    block = min(order.block, rows)
    amplification = fleet_amplification(hosts, order.lanes, batch)
    quality = lane_quality(rows, batch, block, order.window, order.lanes)
    held = lanes_held(order.lanes, hosts)
    verb = f".shuffle(seed, lanes={order.lanes}, block={block}, window={order.window})"
    return _choice(order, verb, rows, row_bytes, block, amplification, held * order.window, quality, objects, assumed)


def _choice(
    order: Order, verb: str, rows: int, row_bytes: float, block: int, amplification: float, held: int,
    quality: Quality, objects: int, assumed: Assumptions,
) -> Choice:  # fmt: skip
    blocks = -(-rows // block)
    per_block = max(-(-int(block * row_bytes) // assumed.get_bytes), block * objects / rows)
    return Choice(
        order, verb, blocks * per_block * amplification, rows * row_bytes * amplification, amplification,
        held * block * row_bytes, quality,
    )  # fmt: skip
