"""`map` and `map_batches`: the user's own functions.

`map` calls per record; `map_batches` per block of rows, for NumPy code. A function that has a parameter called `rng`
(map) or `keys` (map_batches) is given randomness keyed by (seed, epoch, record, step), the same for any threads,
workers, world or resume point.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.core import randomness
from penstock.core.columns import Column, Columns, from_rows, row, rows_of
from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.steps.base import BatchStep, Context, Step
from penstock.steps.facts import RowFacts
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import locate, rows_asked


def wants(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # some built-ins have no signature; they have no such parameter either


def check_function(function: Any, verb: str) -> None:
    if not callable(function):
        raise UsageError(f"a function in .{verb}()", got=repr(function), fix=f".{verb}(lambda record: ...)")


def row_keys(base: int, picks: Picks) -> randomness.U64:
    """A random key per row, from its record and pass alone."""
    return randomness.keys(base, picks.column("epoch"), picks.column("leaf"), picks.record)


@dataclass(frozen=True)
class Map(Step):
    """`function(record) -> record` for every record."""

    changes_content: ClassVar[bool] = True
    function: Callable[..., Any]
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(self.function, "map")

    def build(self, child: Node, context: Context) -> Node:
        return _Mapped(child, self.function, randomness.key(context.seed, "map", context.place))


class _Mapped(ContentNode):
    def __init__(self, child: Node, function: Callable[..., Any], base: int) -> None:
        super().__init__(child)
        self.function, self.base, self.random = function, base, wants(function, "rng")
        bounds = child.facts.bounds._replace(most=0)  # only the function knows
        self.facts = replace(self.facts, own_labels=False, bounds=bounds)

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        with rows_asked(picks, used):
            return Fetched(from_rows(self._rows(columns, used)), used)

    def _rows(self, columns: Columns, used: Picks) -> list[dict[str, Any]]:
        keys = row_keys(self.base, used) if self.random else None

        def one(i: int) -> dict[str, Any]:
            extra = {} if keys is None else {"rng": randomness.generator(int(keys[i]))}
            try:
                made = self.function(row(columns, i), **extra)
            except Exception as error:
                raise failed(self.child, used, i, self.function, "map", error) from error
            return checked_row(made, self.function, self.child, used, i)

        return each_row(one, len(used))


def each_row(function: Callable[[int], Any], rows: int) -> list[Any]:
    """What `function` returns for each row. Raises its first `UserCodeError`, with those of all other rows.

    All bad rows of a block are met in one pass, so that skipping them costs one more pass, not one for each.
    """
    out, errors = [], []
    for i in range(rows):
        try:
            out.append(function(i))
        except UserCodeError as error:
            errors.append(error)
    if errors:
        errors[0].more = tuple(errors[1:])
        raise errors[0]
    return out


def checked_row(made: Any, function: Callable[..., Any], node: Node, picks: Picks, i: int) -> dict[str, Any]:
    if isinstance(made, dict):
        return made
    problem = UserCodeError(
        f"a dict from {_name(function)} in .map()",
        got=f"{type(made).__name__}: {str(made)[:80]}",
        fix="return the record as a dict, for example {**record, 'x': value}",
    )
    problem.row = i
    locate(problem, node, picks)
    raise problem


def failed(node: Node, picks: Picks, i: int, function: Any, verb: str, error: Exception) -> UserCodeError:
    """The user's function raised on row i: says which function, which record, and what it said."""
    problem = UserCodeError(
        f"{_name(function)} in .{verb}() to return",
        got=f"{type(error).__name__}: {str(error)[:300]}",
        fix="fix the function, drop such records with .filter() before it, or add .skip_errors() after it",
    )
    problem.row = i
    locate(problem, node, picks)
    return problem


def failed_on_rows(picks: Picks, function: Any, verb: str, error: Exception) -> UserCodeError:
    """The user's function raised on a block of rows: says which function, which rows, and what it said."""
    return UserCodeError(
        f"{_name(function)} in .{verb}() to return",
        got=f"{type(error).__name__}: {str(error)[:300]}",
        where=f"rows {_numbers(picks)}",
        fix="fix the function; it gets a dict of arrays, one row per record",
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).rpartition("<locals>.")[2]


@dataclass(frozen=True)
class MapBatches(BatchStep):
    """`function(columns) -> columns` for blocks of rows, row by row independent unless `whole`.

    Before `.batch()` the block is any number of rows; after it, a batch. With `whole` the function sees the global
    batch on every rank (and may mix rows); without, only the rank's own rows.
    """

    changes_content: ClassVar[bool] = True
    function: Callable[..., Any]
    whole: bool = False
    version: str | None = None

    batches_only = False
    pad_id: ClassVar[int | None] = None

    @property
    def name(self) -> str:
        return "map_batches"

    def on_batches(self, facts: RowFacts) -> MapBatches:
        return self

    def on_rows(self, child: Node) -> None:
        return None

    def __post_init__(self) -> None:
        check_function(self.function, "map_batches")

    def build(self, child: Node, context: Context) -> Node:
        if self.whole:
            raise UsageError(
                "a batch before .map_batches(whole=True)",
                got="single rows",
                fix="put .batch(n) before it",
            )
        return _MappedBlocks(child, self, randomness.key(context.seed, "map_batches", context.place))

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        """Calls the function on columns and checks what came back."""
        extra = {"keys": row_keys(base, picks)} if wants(self.function, "keys") else {}
        try:
            made = self.function(columns, **extra)
        except PenstockError:
            raise
        except Exception as error:
            raise failed_on_rows(picks, self.function, "map_batches", error) from error
        return _checked_columns(made, self.function, rows_of(columns))


class _MappedBlocks(ContentNode):
    def __init__(self, child: Node, step: MapBatches, base: int) -> None:
        super().__init__(child)
        self.step, self.base = step, base
        bounds = child.facts.bounds._replace(most=0)  # only the function knows
        self.facts = replace(self.facts, own_labels=False, bounds=bounds)

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        return Fetched(self.step.apply(columns, used, self.base) if len(used) else {}, used)


def _checked_columns(made: Any, function: Any, rows: int) -> Columns:
    if not isinstance(made, dict):
        raise UserCodeError(f"a dict of columns from {_name(function)}", got=type(made).__name__)
    out: Columns = {}
    for key, value in made.items():
        column = _as_column(value)
        if len(column) != rows:
            raise UserCodeError(
                f"{rows} rows in every column that {_name(function)} returns",
                got=f"{len(column)} in {key!r}",
                fix="keep one row per record; drop records with .filter() instead",
            )
        out[key] = column
    return out


def _as_column(value: Any) -> Column:
    from penstock.core.columns import Ragged, stack

    if isinstance(value, Ragged) or hasattr(value, "dtype"):
        return value  # type: ignore[no-any-return]
    return stack(value)


def _numbers(picks: Picks) -> str:
    shown = picks.record[:3].tolist()
    return f"{shown}{'...' if len(picks) > 3 else ''} of the source"
