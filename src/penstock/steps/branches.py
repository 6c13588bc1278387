"""Several nodes as one sequence: the base of `mix`, `concat` and `interleave`.

A step says which child each position comes from, and which row of it (`place`); the rest is the same for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, scatter
from penstock.core.errors import BadRecords, PenstockError, UsageError, UserCodeError
from penstock.core.signals import surface
from penstock.sources.base import TokenSource
from penstock.sources.token_documents import same_tokenizer
from penstock.steps.facts import Bounds, RowFacts
from penstock.steps.node import Fetched, Node, Reads, SourceNode
from penstock.steps.picks import I64, Epoch, Picks, rows_at
from penstock.steps.replacement import places_of

SPREAD = 40503  # 2**16 divided by the golden ratio: multiples of it, modulo 2**16, are spread evenly


class Place(NamedTuple):
    """Where rows come from: the number of the child, the row of it, and the pass over it."""

    child: I64
    row: I64
    epoch: Epoch


class Branches(Node):
    """Rows of several nodes, which must have the same columns."""

    where_from: ClassVar[str]  # what `explain` calls the number of the child
    noun: ClassVar[str]  # for errors: "a mixture"

    def __init__(self, children: Sequence[Node], size: int | None) -> None:
        self.children, self.size = list(children), size
        facts = [child.facts for child in children]
        per_batch = facts[0].per_batch
        self.facts = RowFacts(
            ids=frozenset().union(*(f.ids for f in facts)),
            bounds=Bounds(min(f.bounds.least for f in facts), max(f.bounds.most for f in facts)),
            own_labels=all(f.own_labels for f in facts),
            certain=all(f.certain for f in facts),
            weighs=all(f.weighs for f in facts),
            lanes=any(f.lanes for f in facts),
            width=facts[0].width if all(f.width == facts[0].width for f in facts) else None,
            spares=self if any(f.spares is not None for f in facts) else None,
            per_batch=per_batch if all(f.per_batch == per_batch for f in facts) else None,
            by_document=any(f.by_document for f in facts),
            moves=any(f.moves for f in facts),
            rejects=any(f.rejects for f in facts),
            draws=any(f.draws for f in facts),
            sources=sum(f.sources for f in facts),
        )
        counts = [sum(1 for _ in c.leaves()) for c in children]
        self.first = [next(c.leaves()).number for c in children]
        self.last = np.add(self.first, counts, dtype=np.int64)  # ascending: leaves are numbered in order
        self._names: dict[str, None] | None = None  # the columns of the first rows that were read
        self._types: dict[str, tuple[str, Node]] = {}  # of these columns, and the source that they are from
        self._compared = bytearray(len(self.children))  # sources whose columns were compared with these

        self._all_compared = False

    def inputs(self) -> Sequence[Node]:
        return self.children

    @abstractmethod
    def place(self, position: I64, epoch: Epoch) -> Place:
        """Where the rows at these positions come from."""

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        found = self.place(position, epoch)
        record, passes, leaf = (np.empty(len(position), np.int64) for _ in range(3))
        for k, where in groups(found.child):
            turn = found.epoch[where] if isinstance(found.epoch, np.ndarray) else found.epoch
            inner = self.children[k].pick(found.row[where], one_epoch(turn))
            record[where], passes[where] = inner.record, inner.epoch
            leaf[where] = self.first[k] if inner.leaf is None else inner.leaf
        return Picks(record, passes, leaf)

    def fetch(self, picks: Picks) -> Fetched:
        parts: list[tuple[I64, Columns]] = []
        used = picks
        if not self._all_compared and len(picks):
            self._compare_first_rows()
        record, compared = picks.record, self._compared
        for k, places in self._numbered(picks):
            child = self.children[k]
            if isinstance(child, SourceNode):  # its rows are what is asked for: nothing but `read`
                try:
                    columns = child.columns_of(record[places])
                except (BadRecords, UserCodeError):
                    with rows_at(places):
                        raise
                if not compared[k]:
                    self._check_columns(columns, child)
                    compared[k] = 1
                parts.append((places, columns))
                continue
            asked = picks.rows(places)
            with rows_at(places):
                columns, inner = child.fetch(asked)
            where = places if len(inner) == len(places) else places[places_of(asked, inner)]  # fewer: some were dropped
            if not len(where):
                continue
            self._check_columns(columns, child)
            parts.append((where, columns))
            if inner is not asked:
                used = used.put(where, inner)
        if sum(len(where) for where, _ in parts) == len(picks):
            return Fetched(scatter(parts, len(picks)), used)
        places = np.sort(np.concatenate([np.empty(0, np.int64), *(where for where, _ in parts)]))
        kept = [(np.searchsorted(places, where), columns) for where, columns in parts]
        return Fetched(scatter(kept, len(places)) if kept else {}, used.rows(places))

    def schema(self) -> Callable[[], Columns] | None:
        known = [child.schema() for child in self.children]
        return None if None in known else known[0]

    def compare_schemas(self) -> None:
        """Compares the types of columns of all children that know them, before any record is read."""
        for child in self.children:
            schema = child.schema()
            if schema is not None and (columns := schema()):
                self._check_types(columns, child)

    def _compare_first_rows(self) -> None:
        """Compares what the function of each child makes of its first row, so that no order of reading hides one."""
        self._all_compared = True
        if self.schema() is not None:
            return  # compared when the pipelines were combined
        self.compare_schemas()
        for k, child in enumerate(self.children):
            if self._compared[k] or child.facts.certain or child.facts.rejects or child.size == 0:
                continue
            first = child.pick(np.zeros(1, np.int64), 0)
            if first.leaf is None:
                first = replace(first, leaf=np.array([self.first[k]]))
            try:
                columns, used = child.fetch(first)
            except PenstockError as error:
                surface(error)
                continue  # this row is not asked for: it is reported when it is
            if len(used):
                self._check_columns(columns, child)

    def _check_columns(self, columns: Columns, child: Node) -> None:
        """All children must have the same columns, also where their rows are never in the same batch."""
        self._check_types(columns, child)
        if self._names is None:
            self._names = dict.fromkeys(sorted(columns))
        if columns.keys() != self._names.keys():
            raise UsageError(
                f"the same columns from every source of {self.noun}: {list(self._names)}",
                got=f"{sorted(columns)} from source {self.children.index(child)}",
                fix=_same_columns(self._names.keys() & columns.keys()),
            )

    def _check_types(self, columns: Columns, child: Node) -> None:
        for name, column in columns.items():
            found = self._final_type(name, column)
            known, source = self._types.setdefault(name, (found, child))
            if known != found:
                same_tokenizer([leaf.source for leaf in self.leaves() if isinstance(leaf.source, TokenSource)])
                raise UsageError(
                    f"column {name!r} of one type from every source of {self.noun}",
                    got=f"{known} from source {self.children.index(source)}, {found} from {self.children.index(child)}",
                    fix=f"bring it to one type with .map(), such as float(record[{name!r}]), or .drop() it",
                )

    def _final_type(self, name: str, column: Column) -> str:
        """The type of a column in a batch. Token ids, and other unsigned integers, all become that of `ids=`."""
        dtype = column.dtype
        if dtype.kind == "O" and len(column) and isinstance(column[0], np.ndarray):
            dtype = column[0].dtype  # of several shapes; those of one shape are stacked
        ids = dtype.kind in "iu" if name in self.facts.ids else dtype.kind == "u" and dtype.itemsize > 1
        return "ids" if ids else str(dtype)

    def count_labels(self, picks: Picks) -> int:
        return sum(child.count_labels(picks.rows(where)) for child, where in self._parts(picks))

    def costs(self, picks: Picks) -> I64:
        out = np.zeros(len(picks), np.int64)
        for child, where in self._parts(picks):
            out[where] = child.costs(picks.rows(where))
        return out

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        """Rows of a source without lanes are spread evenly between those of the others."""
        found = self.place(position, epoch)
        out = (found.row * SPREAD).astype(np.uint16)
        for k, child in enumerate(self.children):
            if child.facts.lanes:
                where = np.flatnonzero(found.child == k)
                turn = found.epoch[where] if isinstance(found.epoch, np.ndarray) else found.epoch
                out[where] = child.lanes(found.row[where], turn)
        return out

    def near(self, picks: Picks) -> tuple[I64, I64]:
        """Replacements come from the same source; from any where it has no lanes."""
        first, count = np.zeros((2, len(picks)), np.int64)
        for child, where in self._parts(picks):
            if child.facts.spares is not None:
                first[where], count[where] = child.facts.spares.near(picks.rows(where))
        return first, count

    def _parts(self, picks: Picks) -> Iterator[tuple[Node, I64]]:
        """The children that have some of these rows, and which."""
        for k, where in self._numbered(picks):
            yield self.children[k], where

    def _numbered(self, picks: Picks) -> Iterator[tuple[int, I64]]:
        """The numbers of the children that have some of these rows, and which."""
        return groups(np.searchsorted(self.last, picks.column("leaf"), "right"))

    def reads(self, picks: Picks) -> Iterator[Reads]:
        for child, where in self._parts(picks):
            yield from child.reads(picks.rows(where))

    def left_out(self) -> dict[str, int]:
        """Of one pass over each."""
        parts = [child.left_out() for child in self.children]
        return {name: sum(part.get(name, 0) for part in parts) for name in dict.fromkeys(n for p in parts for n in p)}

    def explain(self, picks: Picks) -> dict[str, Any]:
        leaf = int(picks.column("leaf")[0])
        k = int(np.searchsorted(self.last, leaf, "right"))
        return {self.where_from: k} | self.children[k].explain(picks)

    def encoded(self, picks: Picks) -> dict[str, Any]:
        return next(self._parts(picks))[0].encoded(picks)

    def leaves(self) -> Iterator[SourceNode]:
        for child in self.children:
            yield from child.leaves()


def _same_columns(shared: Set[str]) -> str:
    """What to write so that all sources have the same columns."""
    kept = f".select({', '.join(map(repr, sorted(shared)))}) in each keeps what they share, " if shared else ""
    return f"{kept}.map() adds a column, .rename() gives it another name"


def groups(source: I64) -> Iterator[tuple[int, I64]]:
    """Yields each number that occurs, in ascending order, with its places: the cost does not depend on the others.

    >>> [(k, where.tolist()) for k, where in groups(np.array([7, 2, 7]))]
    [(2, [1]), (7, [0, 2])]
    """
    order = np.argsort(source, kind="stable")
    found = source[order]
    edges = [0, *(np.flatnonzero(found[1:] != found[:-1]) + 1).tolist(), len(found)]
    for low, high in pairwise(edges):
        if high > low:
            yield int(found[low]), order[low:high]


def one_epoch(turn: Epoch) -> Epoch:
    """A single number when all passes are the same, so that one permutation is enough."""
    if isinstance(turn, np.ndarray) and len(turn) and (turn == turn[0]).all():
        return int(turn[0])
    return turn
