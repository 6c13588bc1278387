"""`flat_map`: a record becomes several rows, or none.

Row n is found without reading others: from the count where every record has the same, else from an index of 8 bytes a
record that was made once. Rows of a record that are read together cost one call of the function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from penstock.core import randomness
from penstock.core.column_types import ColumnTypes
from penstock.core.columns import Columns, from_rows, row
from penstock.core.errors import BadRecords, UserCodeError
from penstock.core.functions import function_name, has_parameter
from penstock.core.hashing import content_id
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import I64, Picks, row_keys
from penstock.steps.renumbered import Renumbered, own_picks, refuse_rejected
from penstock.steps.replacement import locate, rows_asked
from penstock.steps.user_functions import check_function, each_row, failed_on_row, naming_rows

FlatFunction = Callable[..., Any]


@dataclass(frozen=True)
class RowCounts:
    """How many rows each record becomes."""

    data: bytes

    @cached_property
    def edges(self) -> I64:
        """The first row of each record, and the number of all rows."""
        return np.concatenate([[0], np.cumsum(np.frombuffer(self.data, "<u4"), dtype=np.int64)])

    def spec(self) -> str:
        return content_id([self.data])

    def __repr__(self) -> str:
        return f"{len(self.data) // 4:,} records"


class _FlatStep(Step):
    """What both ways of counting share."""

    changes_content: ClassVar[bool] = True
    function: FlatFunction

    @property
    def keeps_order(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "flat_map"

    @property
    def draws(self) -> bool:
        return has_parameter(self.function, "rng")


@dataclass(frozen=True)
class FlatMap(_FlatStep):
    """`function(record) -> records`, always `count` of them."""

    function: FlatFunction
    count: int
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(self.function, "flat_map")
        integer_field(
            self, "count", 1, "an integer of at least 1 for count= in .flat_map()", "count=4, or leave it out"
        )

    def build(self, child: Node, context: Context) -> Node:
        refuse_rejected(child, ".flat_map()", "steps before it")
        return _FlatMapped(child, self.function, self.count, randomness.key(context.seed, self.name, context.place))


@dataclass(frozen=True)
class CountedFlatMap(_FlatStep):
    """`function(record) -> records`, as many as were counted; none where a step before it rejects the record."""

    exact: ClassVar[bool] = True
    function: FlatFunction
    counts: RowCounts
    version: str | None = None

    def build(self, child: Node, context: Context) -> Node:
        base = randomness.key(context.seed, self.name, context.place)
        return _FlatMapped(child, self.function, self.counts.edges, base)


class _FlatMapped(Renumbered):
    def __init__(self, child: Node, function: FlatFunction, count: int | I64, base: int) -> None:
        super().__init__(child)
        self.function, self.count, self.base = function, count, base
        if isinstance(count, int):
            self.size = None if child.size is None else child.size * count
        else:
            self.size = int(count[-1])
        self.random = has_parameter(function, "rng")
        self.facts = replace(self.facts, own_labels=False, bounds=child.facts.bounds._replace(most=0), even=False)
        self.types = ColumnTypes("flat_map")

    def parent(self, row: I64) -> I64:
        if isinstance(self.count, int):
            return row // self.count
        return np.searchsorted(self.count, row, "right").astype(np.int64) - 1

    def _first(self, parent: I64) -> I64:
        return parent * self.count if isinstance(self.count, int) else self.count[parent]

    def fetch(self, picks: Picks) -> Fetched:
        if not len(picks):
            return Fetched({}, picks)
        parent = self.parent(picks.record)
        # Each record once, however many of its rows are wanted; the same record in another epoch is another one.
        wanted = np.stack([parent, picks.column("epoch")], axis=1)
        found, at, which = np.unique(wanted, axis=0, return_index=True, return_inverse=True)
        which = which.reshape(-1)
        asked = Picks(found[:, 0], found[:, 1], slot=picks.column("slot")[at])
        inner = own_picks(self.child, asked)
        with _for_each_row(which):
            columns, used = self.child.fetch(inner)
            with rows_asked(inner, used):
                made = self._records(columns, used, found[:, 0])
        number = (picks.record - self._first(parent)).tolist()
        rows = [made[u][n] for u, n in zip(which.tolist(), number, strict=True)]
        with naming_rows(self, picks):
            return Fetched(self.types.check(from_rows(rows)), picks)

    def _records(self, columns: Columns, used: Picks, parent: I64) -> list[Sequence[dict[str, Any]]]:
        keys = row_keys(self.base, used) if self.random else None
        expected = (self._first(parent + 1) - self._first(parent)).tolist()

        def one(i: int) -> Sequence[dict[str, Any]]:
            made = call(self.function, columns, i, self.child, used, None if keys is None else int(keys[i]))
            if len(made) == expected[i]:
                return made
            problem = UserCodeError(
                f"{expected[i]} records from {function_name(self.function)} in .flat_map(), as counted or declared",
                got=f"{len(made)}",
                fix="return the same number for a record every time, or declare the right count=",
            )
            problem.row = i
            locate(problem, self.child, used)
            raise problem

        return each_row(one, len(used))

    def lanes(self, position: I64, epoch: Any) -> Any:
        return self.child.lanes(self.parent(position), epoch)

    def explain(self, picks: Picks) -> dict[str, Any]:
        parent = self.parent(picks.record)
        return super().explain(picks) | {"row_of_record": int((picks.record - self._first(parent))[0])}


def call(
    function: FlatFunction, columns: Columns, i: int, node: Node, used: Picks, key: int | None
) -> list[dict[str, Any]]:
    """The records that the function makes of row i."""
    extra = {} if key is None else {"rng": randomness.generator(key)}
    try:
        found = function(row(columns, i), **extra)
        plain = isinstance(found, Iterable) and not isinstance(found, Mapping | str | bytes)
        made = list(found) if plain else []  # a generator runs here
    except UserCodeError as error:
        if error.row is None:
            error.row = i
            locate(error, node, used)
        raise
    except Exception as error:
        raise failed_on_row(node, used, i, function, "flat_map", error) from error
    if plain and all(isinstance(one, dict) for one in made):
        return made
    wrong = next((type(one).__name__ for one in made if not isinstance(one, dict)), "")
    problem = UserCodeError(
        f"a list of dicts from {function_name(function)} in .flat_map()",
        got=f"a list with {wrong}" if wrong else type(found).__name__,
        fix="return the records as dicts in a list, for example [{'x': 1}, {'x': 2}]; [] if there are none",
    )
    problem.row = i
    locate(problem, node, used)
    raise problem


@dataclass(frozen=True)
class CountRows(Step):
    """A column `count`: how many records `function` makes of each row, or `counter` says that it makes."""

    changes_content: ClassVar[bool] = True
    function: FlatFunction
    counter: Callable[..., Any] | None = None

    def build(self, child: Node, context: Context) -> Node:
        return _Counts(child, self)


class _Counts(ContentNode):
    def __init__(self, child: Node, step: CountRows) -> None:
        super().__init__(child)
        self.step = step
        self.random = has_parameter(step.function, "rng")

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)

        def one(i: int) -> int:
            if self.step.counter is None:
                return len(call(self.step.function, columns, i, self.child, used, 0 if self.random else None))
            try:
                return int(self.step.counter(row(columns, i)))
            except Exception as error:
                raise failed_on_row(self.child, used, i, self.step.counter, "flat_map", error) from error

        with rows_asked(picks, used):
            counts = each_row(one, len(used))
        return Fetched({"count": np.array(counts, np.int64)} if len(used) else {}, used)


def rows_of_arrays(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a row whose columns hold one array or list of several values each: what `.unbatch()` calls."""
    lengths = {}
    for name, value in record.items():
        if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            raise UserCodeError(
                "columns of arrays or lists before .unbatch()",
                got=f"one value, {type(value).__name__}, in column {name!r}",
                fix=f".drop({name!r}) before it, or .flat_map() to repeat it; .batch(n) makes batches of single rows",
            )
        lengths[name] = len(value)
    if len(set(lengths.values())) > 1:
        raise UserCodeError(
            "columns of one length in each row before .unbatch()",
            got=", ".join(f"{length} in {name!r}" for name, length in lengths.items()),
            fix=".select() the columns that belong together, or use .flat_map()",
        )
    return [{name: value[i] for name, value in record.items()} for i in range(next(iter(lengths.values())))]


@contextmanager
def _for_each_row(which: I64) -> Iterator[None]:
    """Inside, rows are records; an error that names one leaves with an entry for each row that is made of it."""
    try:
        yield
    except BadRecords as error:
        raise BadRecords([again for one in error.errors for again in _copies(one, which)]) from error
    except UserCodeError as error:
        copies = [again for one in (error, *error.more) for again in _copies(one, which)]
        if copies:
            copies[0].more = tuple(copies[1:])
            raise copies[0] from error
        raise


def _copies(error: Any, which: I64) -> list[Any]:
    if error.row is None:
        return [error]
    out = []
    for at in np.flatnonzero(which == error.row).tolist():
        again = copy.copy(error)
        again.row = at
        out.append(again)
    return out
