"""Packs laid out in rows: where every piece of a document is and where it goes, for many packs in one go.

The arithmetic of a pack is a few dozen NumPy calls on tiny arrays, so it is done for hundreds of packs at once and a
batch takes its slice.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.order.balance import attention_cost
from penstock.order.lru_cache import LruCache
from penstock.order.ragged_index import I64, prefix
from penstock.order.superblocks import CACHED, SUPERBLOCK, cut_evenly
from penstock.sources.base import TokenSource
from penstock.steps.pack_tokens import Slices

I32 = NDArray[np.int32]


class Table(NamedTuple):
    """Rows of `length` places. A row is its pieces and then its padding; pieces and padding are its sequences.

    Fields that are read a few items at a time are lists: indexing a list is cheaper than indexing an array.
    """

    length: int
    offsets: list[int]  # pieces of each row
    documents: I64
    lengths: I64
    begins: I64  # first token of each piece in the stream
    at: I64  # the place of each piece, counted through all rows
    bare: I64  # the places that have no label because a document begins or ends there
    follow: list[int]  # the pieces whose document continues in another row
    labels: list[int]  # how many labels of each row count
    longest: list[int]  # the longest sequence of each row
    edges: list[int]  # sequences of each row
    sizes: I64  # of each sequence
    numbers: I32  # 1, 2, ..., and 0 for padding
    places: I32  # and of each sequence; then the end of all
    holes: Holes  # where no label counts, but for `bare`
    slices: Slices | None  # where the sequences are, if they are to be copied one by one


class Holes(NamedTuple):
    """Stretches of places, and how many of them come before each row."""

    begins: list[int]
    ends: list[int]
    offsets: list[int]


def holes_between(begins: I64, ends: I64, rows: int, length: int) -> Holes:
    """The places of each row outside of the stretches [begin, end), which are in order.

    >>> holes_between(np.array([0, 5]), np.array([3, 9]), 2, 5)
    Holes(begins=[3, 9], ends=[5, 10], offsets=[0, 1, 2])
    """
    edges = np.arange(rows + 1) * length
    at = np.searchsorted(begins, edges)
    free = np.insert(ends, at, edges), np.insert(begins, at, edges)
    a, b = free[0][:-1], free[1][1:]
    open_ = a < b
    a, b = a[open_], b[open_]
    return Holes(a.tolist(), b.tolist(), np.searchsorted(a, edges).tolist())


class PackLayout:
    """Rows [start, stop) of a table."""

    __slots__ = ("_cuts", "_last", "start", "stop", "table")

    def __init__(self, table: Table, start: int, stop: int) -> None:
        self.table, self.start, self.stop = table, start, stop
        self._last: PackLayout | None = None
        self._cuts: I32 | None = None

    def rows(self, start: int, stop: int) -> PackLayout:
        first, end, last = self.start + start, self.start + stop, self._last
        if last is None or last.start != first or last.stop != end:  # those of one batch are asked for twice
            last = self._last = PackLayout(self.table, first, end)
        return last

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The place of the first row."""
        return self.start * self.table.length

    @property
    def pieces(self) -> slice:
        return slice(self.table.offsets[self.start], self.table.offsets[self.stop])

    @property
    def sequences(self) -> slice:
        return slice(self.table.edges[self.start], self.table.edges[self.stop])

    def cuts(self) -> I32:
        """Where each sequence begins, counted from the first of these rows, and the end of them all."""
        if self._cuts is None:
            edges, start, stop = self.table.edges, self.start, self.stop
            self._cuts = self.table.places[edges[start] : edges[stop] + 1] - self.first  # an int does not widen it
        return self._cuts

    def longest(self) -> int:
        """The size of the longest sequence."""
        longest = self.table.longest[self.start : self.stop]
        return max(longest) if longest else 0

    def labels(self) -> int:
        """How many labels of these rows count."""
        return sum(self.table.labels[self.start : self.stop])

    def costs(self) -> I64:
        """The cost of attention in each row; its padding counts as a sequence."""
        edges, these = self.table.edges, self.sequences
        return attention_cost(self.table.sizes[these], np.array(edges[self.start : self.stop + 1]) - these.start)

    @property
    def follow(self) -> slice:
        """Where the pieces of these rows are among all pieces whose document continues in another row."""
        follow, offsets = self.table.follow, self.table.offsets
        return slice(bisect_left(follow, offsets[self.start]), bisect_left(follow, offsets[self.stop]))

    def holes(self) -> list[tuple[int, int]]:
        """Where no label counts, but for where documents begin or end, counted from the first of these rows."""
        begins, ends, offsets = self.table.holes
        a, b = offsets[self.start], offsets[self.stop]
        if a == b:
            return []
        first = self.first
        return [(begin - first, end - first) for begin, end in zip(begins[a:b], ends[a:b], strict=True)]


def sequences_of(offsets: I64, lengths: I64, length: int) -> tuple[I64, I64, I32, I64]:
    """The edges, sizes and numbers of the sequences of rows of pieces, and the sequence of each piece.

    >>> edges, sizes, numbers, mine = sequences_of(np.array([0, 2, 3]), np.array([3, 1, 4]), 5)
    >>> edges.tolist(), sizes.tolist(), numbers.tolist(), mine.tolist()
    ([0, 3, 5], [3, 1, 1, 4, 1], [1, 2, 0, 1, 0], [0, 1, 3])
    """
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    gaps = length - np.diff(prefix(lengths)[offsets])
    padded = gaps > 0
    before = prefix(padded.astype(np.int64))
    edges = offsets + before
    mine = np.arange(len(row)) + before[row]
    sizes = np.empty(int(edges[-1]), np.int64)
    sizes[mine] = lengths
    sizes[edges[1:][padded] - 1] = gaps[padded]
    numbers = np.zeros(len(sizes), np.int32)
    numbers[mine] = np.arange(1, len(row) + 1) - offsets[row]
    return edges, sizes, numbers, mine


class Places:
    """Where documents begin in the stream and how long they are, from tables of the documents around them.

    Positions of a block of documents are read in one call, so a batch costs the same over one shard or hundreds.
    """

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self.edges = cut_evenly(len(source), SUPERBLOCK)
        self.tables = LruCache[tuple[int, NDArray[Any]]](CACHED)

    def __call__(self, documents: I64) -> tuple[I64, I64]:
        """Begin and length of each document."""
        begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        low, high = self._blocks(documents)
        block = None if low == high else np.searchsorted(self.edges, documents, side="right") - 1
        for b in range(low, high + 1):
            mine: Any = slice(None) if block is None else np.flatnonzero(block == b)
            if block is not None and not len(mine):
                continue
            base, table = self.tables.get(b, lambda b=b: self._read(b))  # type: ignore[misc]
            local = documents[mine] - self.edges[b]
            first = table[local]
            lengths[mine] = table[local + 1] - first
            begins[mine] = first
            begins[mine] += base
        return begins, lengths

    def _blocks(self, documents: I64) -> tuple[int, int]:
        """The first and the last block that hold these documents."""
        if not len(documents):
            return 0, -1
        low, high = np.searchsorted(self.edges, [documents.min(), documents.max()], side="right") - 1
        return int(low), int(high)

    def _read(self, block: int) -> tuple[int, NDArray[Any]]:
        """Where the first document of a block begins, and how far behind it the others do."""
        starts = self.source.starts(np.arange(self.edges[block], self.edges[block + 1] + 1))
        base = int(starts[0])
        starts -= base
        return base, starts if int(starts[-1]) >= 1 << 32 else starts.astype(np.uint32)
