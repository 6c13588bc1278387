"""Which blocks of consecutive records each lane owns in one epoch.

Every lane has n // lanes records, or one more, for any n. Blocks are permuted, lane l takes blocks l, l + lanes,
l + 2 * lanes ... of that order, as many as fit into it in one piece (its *head*). The blocks that are left over,
fewer than one per lane where blocks are equal, are laid end to end (the *tail*) and cut: each lane takes what it still
misses. Lanes that share a block of the tail are neighbours, so the same host usually has them.

A lane without a block would repeat the order of the file, so blocks are cut smaller where there are fewer blocks than
lanes: to at most n // lanes records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.core.randomness import key as make_key
from penstock.order.ragged_index import I64, prefix, ranges
from penstock.order.shuffle import permute, unpermute


class BlockEdges(Protocol):
    """Where the blocks of lanes begin and end; the same in every epoch."""

    def around(self, record: I64) -> tuple[I64, I64]:
        """The first record of the block of each record, and the number of its records."""
        ...


@dataclass(frozen=True)
class EqualEdges:
    n: int
    block: int

    def around(self, record: I64) -> tuple[I64, I64]:
        first = record // self.block * self.block
        return first, np.minimum(self.n - first, self.block)


@dataclass(frozen=True)
class ListedEdges:
    first: I64  # record of each block, and the end

    def around(self, record: I64) -> tuple[I64, I64]:
        block = np.searchsorted(self.first, record, side="right") - 1
        first = self.first[block]
        return first, self.first[block + 1] - first


def equal_edges(n: int, lanes: int, block: int) -> EqualEdges:
    """Blocks of `block` records; smaller where that is less than one for each lane.

    >>> equal_edges(100, 4, 30).around(np.array([26, 99]))
    (array([25, 75]), array([25, 25]))
    """
    return EqualEdges(n, min(block, max(1, n // lanes)))


def listed_edges(sizes: I64, lanes: int, block: int | None) -> ListedEdges:
    """Blocks of `sizes` records, cut where they have more than `block`, or where that is less than one for each lane.

    >>> listed_edges(np.array([5, 0, 2]), 2, 3).first.tolist()
    [0, 3, 5, 7]
    """
    n, sizes = int(sizes.sum()), sizes[sizes > 0]
    most = n if block is None else block
    return ListedEdges(_pieces(sizes, min(most, max(1, n // lanes)) if len(sizes) < lanes else most))


class LaneBlocks(Protocol):
    """The blocks of every lane. A *head row* is a row of a lane's head, counted from the start of the head."""

    @property
    def counts(self) -> I64:
        """Blocks in the head of each lane."""
        ...

    @property
    def tail_edges(self) -> I64:
        """Lane l owns rows [tail_edges[l], tail_edges[l + 1]) of the tail."""
        ...

    def start(self, lane: I64, number: I64) -> I64:
        """Head rows of a lane before its block `number`; `counts[lane]` stands for the end of the head."""
        ...

    def number_at(self, lane: I64, row: I64) -> I64:
        """Which of the lane's blocks holds this head row."""
        ...

    def head_records(self, lane: I64, row: I64) -> I64: ...

    def tail_records(self, row: I64) -> I64: ...

    def find(self, record: I64) -> tuple[I64, I64]:
        """(lane, head row) of each record, or (-1, row of the tail)."""
        ...


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of `block` records; the last one may be shorter. Closed form: no memory that depends on n."""

    n: int
    lanes: int
    block: int
    key: int
    full: int  # blocks of full size
    each: int  # of them in each head
    counts: I64
    tail_edges: I64

    @classmethod
    def of(cls, n: int, lanes: int, block: int, key: int) -> EqualBlocks:
        block = equal_edges(n, lanes, block).block
        full = n // block
        each = full // lanes
        tail = _cut_evenly(n - each * lanes * block, lanes)
        return cls(n, lanes, block, make_key(key, "blocks"), full, each, np.full(lanes, each), tail)

    def start(self, lane: I64, number: I64) -> I64:
        return number * self.block

    def number_at(self, lane: I64, row: I64) -> I64:
        return row // self.block

    def head_records(self, lane: I64, row: I64) -> I64:
        number, offset = np.divmod(row, self.block)
        return permute(lane + number * self.lanes, self.full, self.key) * self.block + offset

    def tail_records(self, row: I64) -> I64:
        number, offset = np.divmod(row, self.block)
        number += self.each * self.lanes
        block = number.copy()  # the short block comes last
        inner = number < self.full
        block[inner] = permute(number[inner], self.full, self.key)
        return block * self.block + offset

    def find(self, record: I64) -> tuple[I64, I64]:
        block, offset = np.divmod(record, self.block)
        number = block.copy()
        inner = block < self.full
        number[inner] = unpermute(block[inner], self.full, self.key)
        head = number < self.each * self.lanes
        lane = np.where(head, number % self.lanes, -1)
        return lane, np.where(head, number // self.lanes, number - self.each * self.lanes) * self.block + offset


@dataclass(frozen=True)
class ListedBlocks:
    """Blocks of different sizes, as a source declares them (row groups, shards): some 40 bytes per block."""

    lanes: int
    counts: I64
    tail_edges: I64
    head_edges: I64  # of the blocks of all heads, laid end to end
    head_first: I64  # first record of each
    lane_first: I64  # which of them is the first of each lane, and the end
    tail_block_edges: I64
    tail_first: I64
    first: I64  # of all blocks in record order: first record, and the end
    place: I64  # of each block: its number among the heads' blocks, or -1 - its number in the tail

    @classmethod
    def of(cls, sizes: I64, lanes: int, key: int, block: int | None = None) -> ListedBlocks:
        """`sizes`: records of each block, in their order. Blocks of more than `block` records are cut."""
        n = int(sizes.sum())
        first = listed_edges(sizes, lanes, block).first
        blocks = len(first) - 1
        order = permute(np.arange(blocks), blocks, make_key(key, "blocks"))
        # Lane by lane: block i of the order is in lane i % lanes.
        lane = np.arange(blocks) % lanes
        by_lane = np.argsort(lane, kind="stable")
        order, lane = order[by_lane], lane[by_lane]
        size = np.diff(first)[order]
        lane_first = np.searchsorted(lane, np.arange(lanes + 1))
        edges = prefix(size)
        room = np.diff(_cut_evenly(n, lanes))
        head = edges[1:] - edges[lane_first[lane]] <= room[lane]
        counts = np.bincount(lane[head], minlength=lanes)
        head_rows = np.bincount(lane[head], size[head], minlength=lanes).astype(np.int64)
        place = np.empty(blocks, np.int64)
        place[order[head]] = np.arange(np.count_nonzero(head))
        place[order[~head]] = -1 - np.arange(np.count_nonzero(~head))
        return cls(
            lanes, counts, prefix(room - head_rows), prefix(size[head]), first[order[head]], prefix(counts),
            prefix(size[~head]), first[order[~head]], first, place,
        )  # fmt: skip

    def start(self, lane: I64, number: I64) -> I64:
        begin = self.lane_first[lane]
        rows: I64 = self.head_edges[begin + number] - self.head_edges[begin]
        return rows

    def number_at(self, lane: I64, row: I64) -> I64:
        begin = self.lane_first[lane]
        block: I64 = np.searchsorted(self.head_edges, self.head_edges[begin] + row, side="right") - 1
        return block - begin

    def head_records(self, lane: I64, row: I64) -> I64:
        row = self.head_edges[self.lane_first[lane]] + row
        block = np.searchsorted(self.head_edges, row, side="right") - 1
        return self.head_first[block] + row - self.head_edges[block]

    def tail_records(self, row: I64) -> I64:
        block = np.searchsorted(self.tail_block_edges, row, side="right") - 1
        return self.tail_first[block] + row - self.tail_block_edges[block]

    def find(self, record: I64) -> tuple[I64, I64]:
        block = np.searchsorted(self.first, record, side="right") - 1
        offset, place = record - self.first[block], self.place[block]
        head = place >= 0
        inner, tail = np.where(head, place, 0), np.where(head, 0, -1 - place)
        lane = np.where(head, np.searchsorted(self.lane_first, inner, side="right") - 1, -1)
        before = self.head_edges[self.lane_first[lane]]
        start = self.tail_block_edges[tail]
        start[head] = self.head_edges[inner[head]] - before[head]
        return lane, start + offset


def _cut_evenly(n: int, parts: int) -> I64:
    """Edges of `parts` parts of [0, n); the first n % parts are one longer than the others.

    >>> _cut_evenly(7, 3).tolist()
    [0, 3, 5, 7]
    """
    number = np.arange(parts + 1)
    return number * (n // parts) + np.minimum(number, n % parts)


def _pieces(sizes: I64, most: int) -> I64:
    """First record of each piece, and the end, when blocks of `sizes` records are cut into pieces of at most `most`.

    >>> _pieces(np.array([5, 2]), 3).tolist()
    [0, 3, 5, 7]
    """
    parts = -(-sizes // most)
    small, larger = sizes // parts, sizes % parts
    number = ranges(np.zeros(len(sizes), np.int64), parts)
    return prefix(np.repeat(small, parts) + (number < np.repeat(larger, parts)))
