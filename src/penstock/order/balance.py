"""Assigns the rows of a global batch to ranks, with equal row counts and nearly equal work.

The order fixes the rows of a step; only this assignment depends on the world size. Pure functions of the costs;
a few microseconds per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.order.ragged_index import I64
from penstock.order.superblocks import require


def attention_cost(lengths: Any, offsets: Any = None, *, quadratic: int = 1, linear: int = 0) -> I64:
    """Estimates the work of each row: the sum over its pieces of `quadratic * length**2 + linear * length`, exact.

    With `offsets` (as in `Pieces`) row i consists of lengths[offsets[i]:offsets[i + 1]]; without, each length is one
    row. A transformer layer of width d does about 24 * d**2 operations per token and 4 * d per pair of tokens, so
    `linear=6 * d` is a good estimate (12 * d when attention skips the causal half).

    >>> attention_cost([4, 2, 2], [0, 1, 3], linear=1).tolist()
    [20, 12]
    """
    size = np.asarray(lengths, np.int64)
    cost = quadratic * size * size + linear * size
    if offsets is None:
        return cost
    edges = np.asarray(offsets, np.int64)
    running = np.zeros(len(cost) + 1, np.int64)
    np.cumsum(cost, out=running[1:])
    return running[edges[1:]] - running[edges[:-1]]


def balance_rows(costs: Any, world: int) -> list[I64]:
    """Returns the rows of each rank, ascending: every row once, row counts equal or one apart.

    Assigns rows from the costliest down in two ways and keeps the one whose busiest rank has less work: to the rank
    with the least work so far, and in snake order (0..world-1, then back). The second bounds the busiest rank by the
    mean plus the cost of one row. Ties are broken by number, so every host computes the same assignment.

    >>> [rows.tolist() for rows in balance_rows([9, 1, 5, 5, 8, 2], world=2)]
    [[0, 1, 3], [2, 4, 5]]
    """
    require("world", world, least=1)
    cost = np.asarray(costs)
    if cost.ndim != 1 or cost.dtype.kind not in "iuf":
        raise UsageError("a flat array of costs", got=f"{cost.dtype} array of shape {cost.shape}")
    if cost.size and not (np.isfinite(cost).all() and cost.min() >= 0):
        raise UsageError("costs that are finite and not negative", got=str(cost[~(np.isfinite(cost) & (cost >= 0))][0]))
    order = np.argsort(-cost.astype(np.float64) if cost.dtype.kind == "f" else -cost.astype(np.int64), kind="stable")
    candidates = [_least_loaded(cost, order, world), _snake(order, world)]
    return min(candidates, key=lambda ranks: max(_loads(cost, ranks)))


def _loads(cost: NDArray[Any], ranks: Sequence[Any]) -> list[Any]:
    # Hosts that differ in the last bit would choose different assignments; fsum rounds once, the same everywhere.
    total = fsum if cost.dtype.kind == "f" else sum
    return [total(cost[np.asarray(rows, np.int64)].tolist()) for rows in ranks]


def _snake(order: NDArray[Any], world: int) -> list[I64]:
    place = np.arange(len(order))
    rank = place % world
    rank = np.where(place // world % 2, world - 1 - rank, rank)
    return [np.sort(order[rank == r]).astype(np.int64) for r in range(world)]


def _least_loaded(cost: NDArray[Any], order: NDArray[Any], world: int) -> list[I64]:
    room = [len(order) // world + (r < len(order) % world) for r in range(world)]
    ranks: list[list[int]] = [[] for _ in range(world)]
    heap: list[tuple[Any, int]] = [(0, r) for r in range(world) if room[r]]
    for row, value in zip(order.tolist(), cost[order].tolist(), strict=True):
        load, r = heappop(heap)
        ranks[r].append(row)
        if len(ranks[r]) < room[r]:
            heappush(heap, (load + value, r))
    return [np.sort(np.array(rows, np.int64)) for rows in ranks]
