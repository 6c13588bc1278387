"""Which rows of some steps a rank takes: a contiguous part of each, or rows assigned by their lane or their cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.order.balance import balance_rows
from penstock.order.lanes import lane_cut
from penstock.order.shard import equal_rows, rows_of_rank

I64 = NDArray[np.int64]


class RowPositions(NamedTuple):
    """A rank's rows of some steps: their positions, the number of rows per step, and how many are not padding."""

    position: I64
    counts: I64
    real: I64


def positions_in_order(
    offsets: I64, full: int, last: int, rank: int, world: int, pad: bool, even: bool = False
) -> RowPositions:
    """A contiguous part of each step. Steps have `full` rows and start at `offsets`; the last one has `last` rows and
    is filled up with `pad`; with `even` ranks take the same number of them.

    >>> positions_in_order(np.array([0, 4]), 4, 3, rank=1, world=2, pad=True)
    RowPositions(position=array([2, 3, 6, 7]), counts=array([2, 2]), real=array([2, 1]))
    """
    start, stop = rows_of_rank(full, rank, world)
    position = (offsets[:, None] + np.arange(start, stop)).reshape(-1)
    counts = np.full(len(offsets), stop - start)
    real = counts.copy()
    if last < full:
        a, b = (start, stop) if pad else rows_of_rank(last, rank, world)
        mine = np.arange(a, b) if pad or not even else equal_rows(last, rank, world)
        position = np.concatenate([position[: (len(offsets) - 1) * (stop - start)], offsets[-1] + mine])
        counts[-1] = len(mine)
        real[-1] = np.count_nonzero(mine < last)
    return RowPositions(position, counts, real)


def rows_by_cost(costs: I64, full: int, rank: int, world: int, pad: bool) -> list[I64]:
    """The row numbers of a rank in each step of `full` rows, assigned so that ranks have similar costs.

    With `pad`, a short last step is filled up with numbers past its last row.

    >>> [rows.tolist() for rows in rows_by_cost(np.array([9, 1, 5, 5, 8, 2]), 4, rank=0, world=2, pad=True)]
    [[0, 1], [0, 2]]
    """
    out = []
    for at in range(0, len(costs), full):
        rows = balance_rows(costs[at : at + full], world)[rank]
        missing = full // world - len(rows) if pad else 0
        out.append(np.append(rows, np.full(missing, len(costs) - at)))
    return out


def rows_by_lane(
    lanes: NDArray[np.uint16], full: int, rank: int, world: int, pad: bool, even: bool = False
) -> list[I64]:
    """The row numbers of a rank in each step of `full` rows, in the order of `lanes`; `pad` and `even` as above.

    >>> lanes = np.array([0, 9, 0, 9, 0, 9], np.uint16)
    >>> [rows.tolist() for rows in rows_by_lane(lanes, 4, rank=1, world=2, pad=True)]
    [[1, 3], [2, 3]]
    """
    steps = len(lanes) // full
    lines = lanes[: steps * full].reshape(steps, full)
    if steps and (lines == lines[0]).all():  # as always when the lanes divide the batch
        out = [lane_cut(lines[0], rank, world)] * steps
    else:
        out = list(lane_cut(lines, rank, world))
    last = np.argsort(lanes[steps * full :], kind="stable")
    if len(last) and pad:
        start, stop = rows_of_rank(full, rank, world)
        out.append(np.sort(np.append(last, np.arange(len(last), full))[start:stop]))
    elif len(last):
        places = equal_rows(len(last), rank, world) if even else slice(*rows_of_rank(len(last), rank, world))
        out.append(np.sort(last[places]))
    return out


def positions_of(offsets: I64, rows: list[I64], last: int) -> RowPositions:
    """The positions of rows that `rows_by_cost` or `rows_by_lane` assigned."""
    position = np.concatenate([offset + mine for offset, mine in zip(offsets, rows, strict=True)])
    counts = np.array([len(mine) for mine in rows])
    real = counts.copy()
    real[-1] = np.count_nonzero(rows[-1] < last)
    return RowPositions(position, counts, real)
