"""The lane shuffle: a shuffle for object stores, in which each host reads its own blocks once.

Position p belongs to lane p % lanes. A lane owns blocks of consecutive records (`order.lane_blocks`), drawn anew for
each key, and goes through them in windows of `window` blocks, each window permuted. Lanes change windows at different
times, so that downloads are level. The order does not depend on who reads it; the rows of a step are assigned to ranks
by lane (`lane_cut`), so a lane stays on one host: see `fleet_amplification`.

**Mixing**: a step of `lanes` rows has one row of each lane. Records of one block are less than
`lanes * block * (window + 1)` positions apart, and at any time rows come from about `lanes * window` blocks.

About 0.3 us a row in calls of thousands; O(lanes) memory, and with blocks of different sizes O(blocks).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.lane_blocks import EqualBlocks, LaneBlocks, ListedBlocks
from penstock.order.ragged_index import I64, ranges
from penstock.order.shuffle import LARGEST, permute_each

MOST_LANES = 1 << 16
_COUNTED = 1 << 23
_GOLDEN = 0x9E3779B97F4A7C15


def permute_lanes(index: Any, n: int, lanes: int, block: int, window: int, key: int) -> I64:
    """Returns the record at each position of a lane shuffle of [0, n): a bijection for every n, lanes, block, window.

    >>> permute_lanes(np.arange(10), 10, lanes=2, block=2, window=2, key=1).tolist()
    [0, 2, 1, 4, 9, 5, 6, 8, 7, 3]
    """
    return lane_order(n, lanes, block, window, key).permute(index)


def unpermute_lanes(record: Any, n: int, lanes: int, block: int, window: int, key: int) -> I64:
    """The inverse of `permute_lanes`: returns the position of each record.

    >>> unpermute_lanes(permute_lanes([0, 5, 9], 10, 2, 2, 2, key=3), 10, 2, 2, 2, key=3).tolist()
    [0, 5, 9]
    """
    return lane_order(n, lanes, block, window, key).unpermute(record)


@lru_cache(maxsize=16)
def lane_order(n: int, lanes: int, block: int, window: int, key: int) -> LaneOrder:
    """The lane shuffle of [0, n) in blocks of `block` records."""
    _check(n, lanes, block, window)
    return LaneOrder.of(n, EqualBlocks.of(n, lanes, block, key), lanes, window, key)


def listed_lane_order(sizes: I64, lanes: int, window: int, key: int, block: int | None = None) -> LaneOrder:
    """The same where the data has blocks of its own, of `sizes` records; larger ones are cut to at most `block`.

    Sorts the blocks: keep the result while the key is the same.
    """
    n = int(sizes.sum())
    _check(n, lanes, 1 if block is None else block, window)
    return LaneOrder.of(n, ListedBlocks.of(sizes, lanes, key, block), lanes, window, key)


def _check(n: int, lanes: int, block: int, window: int) -> None:
    if not 1 <= lanes <= MOST_LANES or block < 1 or window < 1:
        raise UsageError(
            f"1 to {MOST_LANES} lanes, a block of at least 1 record and a window of at least 1 block",
            got=f"lanes={lanes}, block={block}, window={window}",
            where="shuffle by lanes",
            fix="use lanes=256, block=1024, window=64",
        )
    if n > LARGEST:
        raise UsageError("at most 2**62 records", got=str(n), where="shuffle by lanes", fix="shuffle fewer records")


@dataclass(frozen=True)
class LaneOrder:
    """One epoch of a lane shuffle. A row of a lane is a position p // lanes.

    The lane's part of the tail is put before its block `joint`, which is drawn: no record is always late in an epoch.
    """

    n: int
    lanes: int
    window: int
    key: int
    blocks: LaneBlocks
    phase: I64  # blocks in the first window of each lane
    joint: I64
    tail: I64  # tail rows of each lane
    before_tail: I64  # rows of each lane before them
    shift: int  # rows by which the tail is turned: which lane owns which part of it is drawn

    @classmethod
    def of(cls, n: int, blocks: LaneBlocks, lanes: int, window: int, key: int) -> LaneOrder:
        counts, lane = blocks.counts, np.arange(lanes)
        window = min(window, max(1, int(counts.max())))
        # Phases of any consecutive lanes are spread evenly over the window. A lane of one window needs none.
        spread = ((lane.astype(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(32)).astype(np.int64)
        phase = np.where(counts > window, 1 + (spread * window >> 32), window)
        draw = randomness.key(key, "joint") % max(1, int(counts.min()))
        joint = np.clip(draw, 0, np.maximum(counts - 1, 0))
        tail_rows = int(blocks.tail_edges[-1])
        shift = randomness.key(key, "tail") % max(1, tail_rows)
        before = blocks.start(lane, joint)
        window_key = randomness.key(key, "window")
        return cls(n, lanes, window, window_key, blocks, phase, joint, np.diff(blocks.tail_edges), before, shift)

    def permute(self, index: Any) -> I64:
        """The record at each position."""
        position = _inside(index, self.n)
        row, lane = np.divmod(position.ravel(), self.lanes)
        row = self._in_window(lane, row, inverse=False)
        before, tail = self.before_tail[lane], self.tail[lane]
        in_tail = (row >= before) & (row < before + tail)
        out = np.empty_like(row)
        head = ~in_tail
        head_row = row - np.where(row >= before + tail, tail, 0)
        out[head] = self.blocks.head_records(lane[head], head_row[head])
        if in_tail.any():
            edges = self.blocks.tail_edges
            at = edges[lane[in_tail]] + row[in_tail] - before[in_tail]
            out[in_tail] = self.blocks.tail_records((at + self.shift) % int(edges[-1]))
        return out.reshape(position.shape)

    def unpermute(self, record: Any) -> I64:
        """The position of each record."""
        records = _inside(record, self.n)
        lane, row = self.blocks.find(records.ravel())
        in_tail = np.flatnonzero(lane < 0)
        edges = self.blocks.tail_edges
        if in_tail.size:
            at = (row[in_tail] - self.shift) % int(edges[-1])
            owner = np.searchsorted(edges, at, side="right") - 1
            lane[in_tail] = owner
        after = row >= self.before_tail[lane]
        row = row + np.where(after, self.tail[lane], 0)
        if in_tail.size:
            row[in_tail] = self.before_tail[owner] + at - edges[owner]
        row = self._in_window(lane, row, inverse=True)
        return (row * self.lanes + lane).reshape(records.shape)

    def _in_window(self, lane: I64, row: I64, inverse: bool) -> I64:
        """Rows of lanes, permuted inside their windows."""
        before, tail, phase, joint = (a[lane] for a in (self.before_tail, self.tail, self.phase, self.joint))
        number = self.blocks.number_at(lane, np.where(row < before, row, np.maximum(row - tail, before)))
        number = np.where((row >= before) & (row < before + tail), joint, number)
        window = (number + self.window - phase) // self.window
        last = phase + window * self.window
        begin = self._row_of(lane, np.maximum(last - self.window, 0))
        end = self._row_of(lane, np.maximum(np.minimum(last, self.blocks.counts[lane]), 1))
        keys = randomness.keys(self.key, lane, window)
        return begin + permute_each(row - begin, end - begin, keys, inverse)

    def _row_of(self, lane: I64, number: I64) -> I64:
        """The row at which block `number` of a lane begins, or the part of the tail before it."""
        start = self.blocks.start(lane, np.minimum(number, self.blocks.counts[lane]))
        return start + np.where(number > self.joint[lane], self.tail[lane], 0)


def _inside(index: Any, n: int) -> I64:
    indices = np.asarray(index, np.int64)
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= n):
        raise UsageError(
            f"indices from 0 to {n - 1}",
            got=f"{int(indices.min())} to {int(indices.max())}",
            where="shuffle by lanes",
            fix="use positions modulo the size, and put the quotient (the epoch) into the key",
        )
    return indices


def lane_cut(lanes: NDArray[Any], rank: int, world: int) -> I64:
    """Which rows of a step a rank takes, ascending: rows sorted by their lanes, cut evenly between ranks.

    `lanes` has one number per row, or one line of them per step.

    >>> [lane_cut(np.array([0, 1, 2, 3, 0, 1, 2, 3]), rank, 2).tolist() for rank in range(2)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    rows = lanes.shape[-1]
    order = np.argsort(lanes, axis=-1, kind="stable")
    mine: I64 = np.sort(order[..., rows * rank // world : rows * (rank + 1) // world], axis=-1)
    return mine


def fleet_amplification(hosts: int, lanes: int, batch: int, block: int | None = None) -> float:
    """Bytes that all hosts together read in an epoch of a lane shuffle, divided by the bytes of the data.

    Counts the hosts that read some row of a block, on average over all blocks. Where `lanes` divides `batch` (the rows
    of a step over all ranks) this is 1 + (hosts - gcd(hosts, lanes)) / lanes; where `batch` divides `lanes` it is 1;
    otherwise lanes move between neighbouring hosts from step to step, and their blocks are read by each.
    Exact for blocks of many records; with `block`, the number of records in a block, also for small ones. The ranks
    of a host are consecutive. Takes milliseconds; where steps begin at more lanes than can be counted in seconds
    (primes, 10,000 hosts), each lane is taken to visit all hosts between its first and its last: an upper bound.

    >>> fleet_amplification(48, 256, 1536), fleet_amplification(8, 256, 1024)
    (1.125, 1.0)
    >>> round(fleet_amplification(8, 256, 1000), 2)
    1.19
    """
    for name, value in (("hosts", hosts), ("lanes", lanes), ("batch", batch)):
        if value < 1:
            raise UsageError(f"{name} of at least 1", got=str(value), where="fleet_amplification")
    # Where a step starts at lane s, its lanes have batch // lanes rows each, and the next batch % lanes one more.
    extra, starts = batch % lanes, range(0, lanes, gcd(lanes, batch))
    if len(starts) * max(lanes, hosts) > _COUNTED:
        return _most_hosts(hosts, lanes, batch)
    pairs, shares = [], []
    for start in starts:
        rows = np.full(lanes, batch // lanes)
        rows[np.arange(start, start + extra) % lanes] += 1
        lane = np.flatnonzero(rows)
        end = np.cumsum(rows[lane])
        begin = end - rows[lane]
        first, last = _host_of(begin, hosts, batch), _host_of(end - 1, hosts, batch)
        owner = np.repeat(np.arange(len(lane)), last - first + 1)
        host = ranges(first, last - first + 1)
        overlap = np.minimum(end[owner], (host + 1) * batch // hosts) - np.maximum(begin[owner], host * batch // hosts)
        pairs.append(lane[owner] * hosts + host)
        shares.append(overlap)
    pair, which = np.unique(np.concatenate(pairs), return_inverse=True)
    if block is None:
        return len(pair) / lanes
    rows_of_pair = np.bincount(which, np.concatenate(shares))
    rows_of_lane = len(starts) * batch / lanes
    return float((1 - (1 - np.minimum(1, rows_of_pair / rows_of_lane)) ** block).sum()) / lanes


def _most_hosts(hosts: int, lanes: int, batch: int) -> float:
    """The mean number of hosts between the first and the last that a lane visits.

    >>> round(_most_hosts(8, 256, 1000), 2), _most_hosts(8, 256, 1024)
    (1.19, 1.0)
    """
    lane, (each, extra) = np.arange(lanes), divmod(batch, lanes)
    # Extra rows are in `extra` consecutive lanes: before a lane at least `least`, up to and with it at most `most`.
    least, most = np.maximum(0, lane + extra - lanes), np.minimum(extra, lane + 1)
    first, last = each * lane + least, each * (lane + 1) + most - 1
    return float((_host_of(last, hosts, batch) - _host_of(first, hosts, batch) + 1).mean())


def _host_of(row: I64, hosts: int, batch: int) -> I64:
    """The host h whose rows [h * batch // hosts, (h + 1) * batch // hosts) hold this row."""
    return ((row + 1) * hosts - 1) // batch
