"""Packs laid out in rows: where every piece of a document is and where it goes, for many packs in one go.

The arithmetic of a pack is a few dozen NumPy calls on tiny arrays, so it is done for hundreds of packs at once and a
batch takes its slice. Copying the tokens is one slice per piece where pieces are long, and index arithmetic where not.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock.order._pieces import I64, prefix, ranges
from penstock.order._recent import Recent
from penstock.order._superblocks import CACHED, SUPERBLOCK, cut_evenly
from penstock.sources.base import TokenSource
from penstock.store.gather import Parts, gather_rows

COPY_ABOVE = 24  # mean tokens of a piece above which one copy each beats index arithmetic


Gap = tuple[int, int, int]


class Table(NamedTuple):
    """Rows of `length` places. A row is its pieces and then its padding; pieces and padding are its sequences.

    What is asked for a few rows at a time is kept in lists: their items cost less than those of arrays.
    """

    length: int
    offsets: list[int]  # pieces of each row
    documents: I64
    starts: I64  # first token of each piece in its document
    lengths: I64
    begins: I64  # and in the stream
    at: I64  # the place of each piece, counted through all rows
    follow: list[int]  # the pieces whose document goes on in another row
    labels: list[int]  # how many labels of each row count
    longest: list[int]  # the longest sequence of each row
    gaps: list[int]  # the padding of each row
    edges: list[int]  # sequences of each row
    sizes: NDArray[np.int32]  # of each sequence
    numbers: NDArray[np.int32]  # 1, 2, ..., and 0 for padding
    places: NDArray[np.int32]


class PackLayout:
    """Rows [start, stop) of a table."""

    __slots__ = ("start", "stop", "table")

    def __init__(self, table: Table, start: int, stop: int) -> None:
        self.table, self.start, self.stop = table, start, stop

    def rows(self, start: int, stop: int) -> PackLayout:
        return PackLayout(self.table, self.start + start, self.start + stop)

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

    def begins(self) -> NDArray[np.int32]:
        """Where each sequence begins, counted from the first of these rows."""
        return self.table.places[self.sequences] - self.first  # an int does not widen the array

    def longest(self) -> int:
        """The size of the longest sequence."""
        return max(self.table.longest[self.start : self.stop], default=0)

    def labels(self) -> int:
        """How many labels of these rows count."""
        return sum(self.table.labels[self.start : self.stop])

    def follow(self) -> list[int]:
        """The pieces whose document goes on in another row, counted from the first of these rows."""
        a, follow = self.pieces.start, self.table.follow
        return [p - a for p in follow[bisect_left(follow, a) : bisect_left(follow, self.pieces.stop)]]

    def padding(self) -> list[Gap]:
        """Where the padding of each row that has some begins and ends, and the number of pieces before it."""
        length, gaps, offsets = self.table.length, self.table.gaps[self.start : self.stop], self.table.offsets
        first = offsets[self.start]
        return [
            ((r + 1) * length - gap, (r + 1) * length, offsets[self.start + r + 1] - first)
            for r, gap in enumerate(gaps)
            if gap
        ]


def sequences_of(offsets: I64, lengths: I64, length: int) -> tuple[I64, I64, NDArray[np.int32], NDArray[np.int32], I64]:
    """The padding of rows of pieces, the edges, sizes and numbers of their sequences, and the sequence of each piece.

    >>> gaps, edges, sizes, numbers, mine = sequences_of(np.array([0, 2, 3]), np.array([3, 1, 4]), 5)
    >>> gaps.tolist(), edges.tolist(), sizes.tolist(), numbers.tolist(), mine.tolist()
    ([1, 1], [0, 3, 5], [3, 1, 1, 4, 1], [1, 2, 0, 1, 0], [0, 1, 3])
    """
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    gaps = length - np.diff(prefix(lengths)[offsets])
    padded = gaps > 0
    before = prefix(padded.astype(np.int64))
    edges = offsets + before
    mine = np.arange(len(row)) + before[row]
    sizes = np.empty(int(edges[-1]), np.int32)
    sizes[mine] = lengths
    sizes[edges[1:][padded] - 1] = gaps[padded]
    numbers = np.zeros(len(sizes), np.int32)
    numbers[mine] = np.arange(1, len(row) + 1) - offsets[row]
    return gaps, edges, sizes, numbers, mine


class Places:
    """Where documents begin in the stream and how long they are, from tables of the documents around them.

    The source is asked for a whole stretch of documents at once, so a batch costs the same over one shard or hundreds.
    """

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self.edges = cut_evenly(len(source), SUPERBLOCK)
        self.tables = Recent[tuple[int, NDArray[Any]]](CACHED)

    def __call__(self, documents: I64) -> tuple[I64, I64]:
        """Begin and length of each document."""
        begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        block = np.searchsorted(self.edges, documents, side="right") - 1
        low, high = (int(block.min()), int(block.max())) if len(block) else (0, -1)
        for b in range(low, high + 1):
            mine: Any = slice(None) if low == high else np.flatnonzero(block == b)
            if low != high and not len(mine):
                continue
            base, table = self.tables.get(b, lambda b=b: self._read(b))  # type: ignore[misc]
            local = documents[mine] - self.edges[b]
            first = table[local]
            lengths[mine] = table[local + 1] - first
            begins[mine] = first
            begins[mine] += base
        return begins, lengths

    def _read(self, block: int) -> tuple[int, NDArray[Any]]:
        """Where the first document of a block begins, and how far behind it the others do."""
        starts = self.source.starts(np.arange(self.edges[block], self.edges[block + 1] + 1))
        base = int(starts[0])
        starts -= base
        return base, starts if int(starts[-1]) >= 1 << 32 else starts.astype(np.uint32)


class Tokens:
    """The tokens of rows: pieces of the stream one after another, padding between them."""

    def __init__(self, source: TokenSource, length: int, pad_id: int) -> None:
        self.source = source
        self.own = hasattr(source, "bounds") and hasattr(source, "ready")
        fits = pad_id <= np.iinfo(source.dtype).max
        self.dtype = source.dtype if fits else np.dtype(np.int64)
        self.pad = np.full(length, pad_id, self.dtype)

    def __call__(self, layout: PackLayout, padding: list[Gap], follow: list[int]) -> tuple[NDArray[Any], Any]:
        """The tokens of these rows, one after another, and the token after each piece whose document goes on."""
        table, pieces, size = layout.table, layout.pieces, len(layout) * layout.table.length
        begins, lengths = table.begins[pieces], table.lengths[pieces]
        if self.own and size >= COPY_ABOVE * len(lengths) and self.dtype == self.source.dtype:
            return self._join(begins, lengths, follow, padding)
        out = np.empty(size, self.dtype)
        for a, b, _ in padding:
            out[a:b] = self.pad[: b - a]
        out[ranges(table.at[pieces] - layout.first, lengths)] = self._gather(begins, lengths)
        return out, self.source.gather(begins[follow] + lengths[follow], 1)[:, 0] if follow else ()

    def _join(self, begins: I64, lengths: I64, follow: list[int], padding: list[Gap]) -> tuple[NDArray[Any], list[int]]:
        """One copy of each piece, all in one call: the processor then waits for many pieces of memory at once."""
        parts = cast("Parts", self.source)
        checked = lengths
        if follow:
            checked = lengths.copy()
            checked[follow] += 1
        if len(parts.bounds) == 2:
            view, ends = parts.ready(0, begins, checked).array(0).data, (begins + lengths).tolist()
            rows = [view[a:b] for a, b in zip(begins.tolist(), ends, strict=True)]
            after = [view[ends[i]] for i in follow]
        else:
            part = np.searchsorted(parts.bounds, begins, "right") - 1
            local = begins - parts.bounds[part]
            table, numbers, ends = parts.ready(part, local, checked), part.tolist(), (local + lengths).tolist()
            views = {p: table.array(p).data for p in set(numbers)}
            rows = [views[p][a:b] for p, a, b in zip(numbers, local.tolist(), ends, strict=True)]
            after = [views[numbers[i]][ends[i]] for i in follow]
        for a, b, before in reversed(padding):
            rows.insert(before, self.pad[: b - a].data)
        return np.frombuffer(bytearray().join(rows), self.dtype), after

    def _gather(self, begins: I64, lengths: I64) -> NDArray[Any]:
        """The tokens of pieces one after another."""
        if self.own:
            return gather_rows(cast("Parts", self.source), begins, lengths)[0]
        edges = prefix(lengths)
        out = np.empty(int(edges[-1]), self.source.dtype)
        for length in np.unique(lengths).tolist():  # a source of somebody else's: one call for each length
            mine = np.flatnonzero(lengths == length)
            out[edges[mine][:, None] + np.arange(length)] = self.source.gather(begins[mine], length)
        return out
