"""Columns beside the tokens in packs and windows: weights, tags, labels of one's own, one value for each token.

A column is cut where the tokens are cut, and padded where they are padded. A column with one number for each document
is repeated for each of its tokens. Lengths are compared for every document that is read. A piece of a document reads
the column of the full document, so this is for documents, not for one book of a million tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.order.ragged_index import I64, prefix, ranges
from penstock.sources.base import ColumnReader, TokenSource
from penstock.steps.facts import RowFacts
from penstock.steps.loss_runs import IGNORE, RUNS
from penstock.steps.need_tokens import own_documents
from penstock.steps.node import ContentNode, Node, Reads
from penstock.steps.picks import Picks
from penstock.steps.rows import ChangedRows, Memory, Read, Rows

Fill = int | float | bool
Fills = tuple[tuple[str, Fill], ...]  # the columns, and what each is padded with


class Placed(NamedTuple):
    """Pieces of documents, and where each is among the places of some rows, counted through all of them."""

    documents: I64
    starts: I64  # the first token, counted from the beginning of its document
    lengths: I64
    at: I64


def as_fills(columns: Sequence[str] | Mapping[str, Fill] | Fills, verb: str, made: Sequence[str]) -> Fills:
    """The columns and their padding, from names or {name: padding}; `made` are names that the verb makes itself.

    >>> as_fills(["weights", "labels"], "pack", ["input_ids"]), as_fills({"tags": -1}, "pack", [])
    ((('weights', 0), ('labels', -100)), (('tags', -1),))
    """
    expected = f"names of columns in .{verb}(columns=), or {{name: padding}}"
    if isinstance(columns, str) or not isinstance(columns, Mapping | Sequence):
        raise UsageError(expected, got=repr(columns), fix='columns=["weights"]')
    if isinstance(columns, Mapping):
        found = tuple(columns.items())
    else:
        found = tuple(c if isinstance(c, tuple) else (c, IGNORE if c == "labels" else 0) for c in columns)
    for name, fill in found:
        if not isinstance(name, str) or not isinstance(fill, int | float):
            raise UsageError(expected, got=repr({name: fill}), fix='columns={"weights": 0}')
        if name in made:
            own = name == "labels" and verb == "pack"
            fix = "labels=None, to use your own labels" if own else "leave it out, or rename the column"
            raise UsageError(f"columns that .{verb}() does not make itself", got=repr(name), fix=fix)
    if len({name for name, _ in found}) != len(found):
        raise UsageError(f"each column once in .{verb}(columns=)", got=repr([name for name, _ in found]))
    return found


class Aligned(ContentNode):
    """A node of rows of tokens, with columns beside them; `pieces` says which documents its rows hold."""

    def __init__(
        self, child: Node, source: TokenSource, fills: Fills, width: int, verb: str, pieces: Callable[[Picks], Placed]
    ) -> None:
        super().__init__(child)
        self.facts = _facts(child, fills)
        self.source, self.fills, self.width, self.verb, self.pieces = source, fills, width, verb, pieces
        self.reader = _reader(source, fills, verb)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        read = self.child.open(picks)
        return lambda start, stop: AlignedRows(read(start, stop), self)

    def reads(self, picks: Picks) -> Iterator[Reads]:
        names, leaves = tuple(name for name, _ in self.fills), list(self.leaves())

        def documents() -> I64:
            return np.unique(self.pieces(picks).documents)

        for each in self.child.reads(picks):
            mine = own_documents(self.source, leaves, each.leaf, documents)
            yield each._replace(documents=mine, columns=tuple({*each.columns, *names}))

    def explain(self, picks: Picks) -> dict[str, Any]:
        return self.child.explain(picks) | {"columns": [name for name, _ in self.fills]}

    def columns(self, picks: Picks) -> Columns:
        """The columns of these rows."""
        pieces = self.pieces(picks)
        unique, each = np.unique(pieces.documents, return_inverse=True)
        tokens = self.source.lengths(unique)
        places = len(picks) * self.width
        target = ranges(pieces.at, pieces.lengths)
        out: Columns = {}
        for name, fill in self.fills:
            column = _numbers(self.reader.column(name, unique))
            if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biuf":
                values = np.repeat(column[each], pieces.lengths)
            else:
                ragged = self._checked(name, column, unique, tokens)
                values = ragged.values[ranges(ragged.offsets[:-1][each] + pieces.starts, pieces.lengths)]
            if name == "labels" and values.dtype.kind in "iu":
                values = values.astype(np.int64)
            filled = np.full(places, self._padding(name, fill, values.dtype), values.dtype)
            filled[target] = values
            out[name] = filled.reshape(len(picks), self.width)
        return out

    def _checked(self, name: str, column: Column, documents: I64, tokens: I64) -> Ragged:
        if isinstance(column, np.ndarray) and column.ndim == 2 and column.dtype.kind in "biuf":
            column = Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])
        if not isinstance(column, Ragged) or column.dtype.kind not in "biuf":
            shape = "" if isinstance(column, Ragged) else f", shape {column.shape[1:]}"
            raise UsageError(
                f"one number for each token, or for each document, in column {name!r} of .{self.verb}(columns=)",
                got=f"{column.dtype}{shape}",
                fix="leave the column out, or make numbers of it before the tokens are stored",
            )
        wrong = np.flatnonzero(column.lengths != tokens)
        if len(wrong):
            document = int(documents[wrong[0]])
            raise DataError(
                f"as many values in column {name!r} as tokens: {int(tokens[wrong[0]])}",
                got=f"{int(column.lengths[wrong[0]])} values",
                where=f"document {document}: {self.source.locate(document)}",
                fix="an end token counts too: use eos=False where the column has no value for it",
            )
        return column

    def _padding(self, name: str, fill: Fill, dtype: np.dtype[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            padding = np.array(fill).astype(dtype)
        if padding != fill and not (np.isnan(fill) and dtype.kind == "f"):
            raise UsageError(
                f"padding that column {name!r} of {dtype} can hold in .{self.verb}(columns=)",
                got=repr(fill),
                fix=f"columns={{{name!r}: 0}}, or store the column as another type",
            )
        return padding


class AlignedRows(ChangedRows):
    """Rows with columns beside their tokens, read with them."""

    __slots__ = ("beside",)

    def __init__(self, rows: Rows, node: Aligned) -> None:
        super().__init__(rows)
        self.beside = node.columns(rows.picks)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + sum(column.nbytes for column in self.beside.values())

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        beside = {name: np.asarray(column)[start:stop] for name, column in self.beside.items()}
        return self.rows.columns(start, stop, memory) | beside


def window_pieces(source: TokenSource, starts: I64, length: int) -> Placed:
    """The documents in windows of the stream, which they cover without gaps."""
    first, last = source.documents_at(starts), source.documents_at(starts + length - 1)
    counts = last - first + 1
    documents = ranges(first, counts)
    begins = source.starts(documents)
    row = np.repeat(np.arange(len(starts)), counts)
    ends = np.minimum(begins + source.lengths(documents), starts[row] + length)
    inside = np.maximum(starts[row] - begins, 0)
    lengths = ends - begins - inside
    return Placed(documents, inside, lengths, prefix(lengths)[:-1])


def _numbers(column: Column) -> Column:
    """Truth values, which a store holds as objects, as an array or ragged column of them."""
    if isinstance(column, np.ndarray) and column.dtype == object and len(column):
        if all(isinstance(value, bool) for value in column):
            return column.astype(np.bool_)
        if all(isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.bool_ for value in column):
            return Ragged.of(list(column), np.dtype(np.bool_))
    return column


def _facts(child: Node, fills: Fills) -> RowFacts:
    """Labels of one's own are not token ids: they keep 64 bits, whatever the type of ids, so that none overflows."""
    facts = replace(child.facts, one_copy=False, by_document=True)
    if any(name == "labels" for name, _ in fills):
        facts = replace(facts, ids=facts.ids - {"labels"}, own_labels=False)
    return facts


def _reader(source: TokenSource, fills: Fills, verb: str) -> ColumnReader:
    known = [name for name in source.columns if name != RUNS] if isinstance(source, ColumnReader) else []
    missing = [name for name, _ in fills if name not in known]
    if missing or not isinstance(source, ColumnReader):
        raise UsageError(
            f"columns of the token store in .{verb}(columns=)",
            got=f"{missing[0]!r}; it has {', '.join(map(repr, known)) or 'none'}",
            where=str(source.describe().get("path", "")),
            fix='write tokens with their columns first: pipeline.write("folder", "store"), then open_store("folder")',
        )
    return source
