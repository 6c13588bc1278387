"""Packs laid out in rows: where every piece of a document is and where it goes, for many packs in one go.

The arithmetic of a pack is a few dozen NumPy calls on tiny arrays, so it is done for hundreds of packs at once and a
batch takes its slice. Copying the tokens is one slice per piece where pieces are long, and one gather where not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock.order._pieces import I64, prefix, ranges
from penstock.order._recent import Recent
from penstock.order._superblocks import CACHED, SUPERBLOCK, cut_evenly
from penstock.sources.base import TokenSource
from penstock.store.gather import Parts, gather_rows

COPY_ABOVE = 24  # mean tokens of a piece above which one copy each beats index arithmetic


class Table(NamedTuple):
    """Rows of `length` places. A row is its pieces and then its padding; pieces and padding are its sequences."""

    length: int
    offsets: I64  # pieces of each row
    documents: I64
    starts: I64  # first token of each piece in its document
    lengths: I64
    begins: I64  # and in the stream
    at: I64  # the place of each piece, counted through all rows
    ends: NDArray[np.bool_]  # whether the last token of a piece has no label
    labels: I64  # how many labels of each row count
    gaps: I64  # the padding of each row
    edges: I64  # sequences of each row
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
        offsets = self.table.offsets
        return slice(int(offsets[self.start]), int(offsets[self.stop]))

    @property
    def sequences(self) -> slice:
        edges = self.table.edges
        return slice(int(edges[self.start]), int(edges[self.stop]))

    def labels(self) -> int:
        """How many labels of these rows count."""
        return int(self.table.labels[self.start : self.stop].sum())

    def padding(self) -> list[tuple[int, int]]:
        """Where the padding of each row begins and ends, where there is some."""
        length, gaps = self.table.length, self.table.gaps[self.start : self.stop].tolist()
        ends = range(length, length * len(gaps) + 1, length)
        return [(end - gap, end) for gap, end in zip(gaps, ends, strict=True) if gap]


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


def copy_pieces(
    source: TokenSource, begins: I64, lengths: I64, out: NDArray[Any], at: I64, follow: I64
) -> NDArray[Any]:
    """Copies pieces of the stream to their places in `out`; gives the token after each piece of `follow`."""
    own = hasattr(source, "bounds") and hasattr(source, "ready")
    if not own or len(out) < COPY_ABOVE * len(lengths) or out.dtype != source.dtype:
        out[ranges(at, lengths)] = _tokens(source, begins, lengths, own)
        return source.gather(begins[follow] + lengths[follow], 1)[:, 0]
    parts = cast("Parts", source)
    part = np.searchsorted(parts.bounds, begins, "right") - 1
    local = begins - parts.bounds[part]
    checked = lengths
    if len(follow):
        checked = lengths.copy()
        checked[follow] += 1
    table = parts.ready(part if len(parts.bounds) > 2 else 0, local, checked)
    numbers = part.tolist()
    # Slices of a memoryview cost half as much as those of an array, and a few dozen a batch are what there is to save.
    views = {p: table.array(p).data for p in set(numbers)}
    target = out.data
    for p, to, start, n in zip(numbers, at.tolist(), local.tolist(), lengths.tolist(), strict=True):
        target[to : to + n] = views[p][start : start + n]
    ends = zip(part[follow].tolist(), (local[follow] + lengths[follow]).tolist(), strict=True)
    return np.array([views[p][end] for p, end in ends], np.int64)


def _tokens(source: TokenSource, begins: I64, lengths: I64, own: bool) -> NDArray[Any]:
    """The tokens of pieces one after another."""
    if own:
        return gather_rows(cast("Parts", source), begins, lengths)[0]
    edges = prefix(lengths)
    out = np.empty(int(edges[-1]), source.dtype)
    for length in np.unique(lengths).tolist():  # a source of somebody else's: one call for each length
        mine = np.flatnonzero(lengths == length)
        out[edges[mine][:, None] + np.arange(length)] = source.gather(begins[mine], length)
    return out
