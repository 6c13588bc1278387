"""Chosen documents of token sources as one token source: what `concat`, `filter(exact=True)`, `split`, `sample`, `take`
and the like leave of them, in their order.

Nothing is copied. Documents of full sources one after another cost nothing: positions are sums of positions of the
sources. For other choices the lengths of all documents are read once, and their positions are kept: 8 bytes a document,
but of more than four million only the position of every 64th, one bit a document, and lengths are read again when they
are needed. A window is cut out of the documents it lies in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, Ragged, scatter
from penstock.core.errors import UsageError
from penstock.core.hashing import content_id
from penstock.order.ragged_index import I64, prefix, ranges
from penstock.sources.base import ColumnReader, SpanReader, TokenParts, TokenSource
from penstock.store.doctable import DocTable, OffsetTable, check_range
from penstock.store.gather import by_part, gather_rows

KEPT = 1 << 22  # documents whose positions are all kept
BLOCK = 64  # of more: documents between two positions that are kept
AT_ONCE = 1 << 20  # documents whose lengths are read in one call


class Records(NamedTuple):
    """Which record of which source some documents are."""

    source: I64
    record: I64


class _Pieces(NamedTuple):
    """Ranges of the stream, cut where documents end: piece j is in range `of[j]`, and `local` in its source."""

    of: I64
    source: I64
    local: I64
    lengths: I64


class TokenDocuments:
    """A `TokenSource` of `size` documents of `sources`; `records` says which (None: all, one source after another)."""

    def __init__(
        self,
        sources: Sequence[TokenSource],
        size: int,
        records: Callable[[I64], Records] | None,
        locate: Callable[[int], dict[str, Any]],
    ) -> None:
        self.sources, self._size, self._locate = list(sources), size, locate
        same_tokenizer(self.sources)
        edges = prefix(np.array([len(source) for source in self.sources], np.int64))
        self._table: DocTable
        self.in_full = records is None
        if records is None:
            self._table = _JoinedTable(self.sources, edges)
            self.records: Callable[[I64], Records] = lambda documents: _in_order(edges, documents)
        else:
            self.records = records
            self._table = counted_table(self._lengths, size)
        self.n_tokens = int(self._table.starts(np.array([size]))[0])
        kind = np.result_type(*(source.dtype for source in self.sources))
        self.dtype = kind if kind.kind in "iu" else np.dtype(np.int64)
        sizes = [source.vocab_size for source in self.sources]
        self.vocab_size = None if None in sizes else max(size for size in sizes if size is not None)
        self.columns = _shared_columns(self.sources)

    def __len__(self) -> int:
        return self._size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Documents as a ragged column `input_ids`, and the other columns."""
        starts, lengths = self.starts(indices), self.lengths(indices)
        out: Columns = {"input_ids": Ragged(self.spans(starts, lengths), prefix(lengths))}
        return out | {name: self.column(name, indices) for name in self.columns}

    def fingerprint(self) -> str:
        parts: list[Any] = [source.fingerprint() for source in self.sources]
        for start in range(0, self._size, AT_ONCE):
            parts += [each.tobytes() for each in self.records(np.arange(start, min(self._size, start + AT_ONCE)))]
        return f"token-documents:{content_id(parts)}"

    def describe(self) -> dict[str, Any]:
        first = self.sources[0].describe()
        kind = str(first.get("kind", "tokens")) if len(self.sources) == 1 else f"tokens of {len(self.sources)} sources"
        kept = {name: first.get(name) for name in ("tokenizer", "eos_id")}
        return {"kind": kind, "records": self._size, "tokens": self.n_tokens, "vocab_size": self.vocab_size} | kept

    def locate(self, index: int) -> dict[str, Any]:
        return self._locate(int(check_range([index], self._size, "documents")[0]))

    def lengths(self, indices: NDArray[np.int64]) -> I64:
        return self._lengths(check_range(indices, self._size, "documents"))

    def starts(self, indices: NDArray[np.int64]) -> I64:
        return self._table.starts(check_range(indices, self._size + 1, "documents"))

    def documents_at(self, positions: NDArray[np.int64]) -> I64:
        return self._table.find(check_range(positions, self.n_tokens, "positions"))

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        starts = check_range(starts, max(0, self.n_tokens - length + 1), "starts of windows")
        out = np.empty((len(starts), length), self.dtype)
        if not out.size:
            return out
        first, last = self.documents_at(starts), self.documents_at(starts + length - 1)
        source, record = self.records(first)
        together = first == last
        if self.in_full:
            together = source == self.records(last).source
        inner = np.flatnonzero(together)
        inside = starts[inner] - self.starts(first[inner])
        for k, where in by_part(source[inner]):
            begin = self.sources[k].starts(record[inner[where]]) + inside[where]
            out[inner[where]] = self.sources[k].gather(begin, length)
        rest = np.flatnonzero(~together)
        out[rest] = self.spans(starts[rest], np.full(len(rest), length)).reshape(len(rest), length)
        return out

    def spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
        """Ranges of the stream of any lengths, one after another."""
        pieces = self._pieces(starts, lengths)
        edges = prefix(pieces.lengths)
        out = np.empty(int(edges[-1]), self.dtype)
        for k, where in by_part(pieces.source):
            found = read_pieces(self.sources[k], pieces.local[where], pieces.lengths[where])
            if isinstance(where, slice):
                out[edges[where.start] : edges[where.stop]] = found
            else:
                out[ranges(edges[where], pieces.lengths[where])] = found
        return out

    def ranges(self, starts: I64, lengths: I64) -> Iterator[tuple[int, I64, I64]]:
        """The same ranges in the sources: the number of a source, positions in it and lengths."""
        pieces = self._pieces(starts, lengths)
        for k, where in by_part(pieces.source):
            yield k, pieces.local[where], pieces.lengths[where]

    def column(self, name: str, indices: NDArray[np.int64]) -> Column:
        """One column of some documents."""
        source, record = self.records(check_range(indices, self._size, "documents"))
        parts = []
        for k, where in by_part(source):
            one = self.sources[k]
            assert isinstance(one, ColumnReader)  # checked in `_shared_columns`
            places = np.arange(len(source))[where]
            parts.append((places, {name: one.column(name, record[where])}))
        return scatter(parts, len(source))[name] if parts else np.empty(0)

    def _lengths(self, documents: I64) -> I64:
        source, record = self.records(documents)
        out = np.empty(len(documents), np.int64)
        for k, where in by_part(source):
            out[where] = self.sources[k].lengths(record[where])
        return out

    def _pieces(self, starts: I64, lengths: I64) -> _Pieces:
        """Ranges inside the stream, cut where documents end; empty ranges and documents have no piece."""
        full = np.flatnonzero(lengths)
        starts, ends = starts[full], starts[full] + lengths[full]
        first = self.documents_at(starts)
        counts = self.documents_at(ends - 1) - first + 1
        documents = ranges(first, counts)
        of = np.repeat(np.arange(len(full)), counts)
        begins, sizes = self.starts(documents), self._lengths(documents)
        low, high = np.maximum(begins, starts[of]), np.minimum(begins + sizes, ends[of])
        kept = np.flatnonzero(high > low)
        source, record = self.records(documents[kept])
        local = (low - begins)[kept]
        for k, where in by_part(source):
            local[where] += self.sources[k].starts(record[where])
        return _Pieces(full[of[kept]], source, local, (high - low)[kept])


class _JoinedTable:
    """The document table of full sources, one after another."""

    def __init__(self, sources: Sequence[TokenSource], edges: I64) -> None:
        self.sources, self.edges = sources, edges
        self.tokens = prefix(np.array([source.n_tokens for source in sources], np.int64))

    def __len__(self) -> int:
        return int(self.edges[-1])

    def starts(self, indices: I64) -> I64:
        out = np.full(len(indices), self.tokens[-1])
        inner = np.flatnonzero(indices < len(self))
        source, record = _in_order(self.edges, indices[inner])
        for k, where in by_part(source):
            out[inner[where]] = self.sources[k].starts(record[where]) + self.tokens[k]
        return out

    def find(self, positions: I64) -> I64:
        source = np.searchsorted(self.tokens, positions, "right") - 1
        out = self.edges[source]
        for k, where in by_part(source):
            out[where] += self.sources[k].documents_at(positions[where] - self.tokens[k])
        return out


def counted_table(lengths: Callable[[I64], I64], size: int) -> DocTable:
    """The document table of `size` documents whose lengths are known."""
    if size > KEPT:
        return _BlockTable(lengths, size)
    parts = [lengths(np.arange(a, min(size, a + AT_ONCE))) for a in range(0, size, AT_ONCE)]
    return OffsetTable(prefix(np.concatenate([np.empty(0, np.int64), *parts])))


class _BlockTable:
    """A document table that keeps the position of the first document of each block."""

    def __init__(self, lengths: Callable[[I64], I64], size: int) -> None:
        self.lengths, self.size = lengths, size
        blocks = -(-size // BLOCK)
        self.before = np.zeros(blocks + 1, np.int64)
        for start in range(0, blocks, AT_ONCE // BLOCK):
            some = np.arange(start, min(blocks, start + AT_ONCE // BLOCK))
            self.before[some + 1] = self._ends(some)[:, -1]
        np.cumsum(self.before, out=self.before)

    def __len__(self) -> int:
        return self.size

    def starts(self, indices: I64) -> I64:
        block, inside = np.divmod(indices, BLOCK)
        unique, where = np.unique(block, return_inverse=True)
        begins = np.zeros((len(unique), BLOCK + 1), np.int64)
        begins[:, 1:] = self._ends(unique)
        return self.before[block] + begins[where, inside]

    def find(self, positions: I64) -> I64:
        block = np.searchsorted(self.before, positions, "right") - 1
        unique, where = np.unique(block, return_inverse=True)
        ends = self._ends(unique)
        out = np.empty(len(positions), np.int64)
        for at in range(0, len(positions), AT_ONCE // BLOCK):  # a row of a block's documents for each position
            some = slice(at, at + AT_ONCE // BLOCK)
            local = positions[some] - self.before[block[some]]
            out[some] = block[some] * BLOCK + (ends[where[some]] <= local[:, None]).sum(axis=1)
        return out

    def _ends(self, blocks: I64) -> I64:
        """Where each document of these blocks ends, counted from the start of its block; an array of BLOCK columns."""
        documents = blocks[:, None] * BLOCK + np.arange(BLOCK)
        sizes = np.zeros(documents.shape, np.int64)
        known = documents < self.size
        sizes[known] = self.lengths(documents[known])
        return np.cumsum(sizes, axis=1)


def read_pieces(source: TokenSource, starts: I64, lengths: I64) -> NDArray[Any]:
    """The tokens of pieces of documents, one after another."""
    if isinstance(source, TokenParts):
        return gather_rows(source, starts, lengths)[0]
    if isinstance(source, SpanReader):
        return source.spans(starts, lengths)
    edges = prefix(lengths)
    out = np.empty(int(edges[-1]), source.dtype)
    for length in np.unique(lengths).tolist():  # a source of the user's: one call for each length
        mine = np.flatnonzero(lengths == length)
        out[edges[mine][:, None] + np.arange(length)] = source.gather(starts[mine], length)
    return out


def same_tokenizer(sources: Sequence[TokenSource]) -> None:
    """Refuses token sources that disagree on tokenizer, vocabulary or end token."""
    kinds = [_identity(one) for one in sources]
    for kind in kinds[1:]:
        if kind != kinds[0]:
            raise UsageError(
                "tokens of one tokenizer",
                got=f"{kinds[0]} and {kind}",
                fix="tokenise the texts again with one tokenizer: penstock prepare, or .tokenize()",
            )


def _identity(source: TokenSource) -> str:
    facts = source.describe()
    known = facts.get("tokenizer")
    name = (
        " ".join(f"{k} {v}" for k, v in known.items() if k in ("kind", "name", "sha256"))
        if isinstance(known, dict)
        else ""
    )
    return (
        f"{name or 'tokens of an unknown tokenizer'}, vocabulary {source.vocab_size}, end token {facts.get('eos_id')}"
    )


def _shared_columns(sources: Sequence[TokenSource]) -> tuple[str, ...]:
    """The columns besides the tokens, which must be the same in all sources."""
    each = [tuple(source.columns) if isinstance(source, ColumnReader) else () for source in sources]
    for number, names in enumerate(each):
        if set(names) != set(each[0]):
            raise UsageError(
                f"the same columns from every source: {sorted(each[0])}",
                got=f"{sorted(names)} from source {number}",
                fix='write each with the columns to keep: .select("input_ids", ...).write("folder", "store")',
            )
    return each[0]


def _in_order(edges: I64, documents: I64) -> Records:
    source = np.searchsorted(edges, documents, "right") - 1
    return Records(source, documents - edges[source])
