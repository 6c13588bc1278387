"""`map_batches`: calls the user's function for blocks of rows, for NumPy code.

A function with a parameter called `keys` receives a random key per row, from (seed, epoch, record, step): the same for
any threads, workers, world size or resume point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from penstock.core import randomness
from penstock.core.column_types import ColumnTypes
from penstock.core.columns import Column, Columns, Ragged, rows_of, stack
from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.core.functions import function_name, has_parameter
from penstock.steps.base import BatchStep, Context
from penstock.steps.facts import RowFacts
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks, row_keys
from penstock.steps.user_functions import check_function, failed_on_block, naming_rows


@runtime_checkable
class DrawsParameters(Protocol):
    """A function of `map_batches` that can say what it drew for a row, for `loader.why`."""

    def drawn(self, columns: Columns, keys: randomness.U64) -> dict[str, list[Any]]:
        """The random parameters of the first row, as plain values: a list of steps for each column."""
        ...


@dataclass(frozen=True)
class MapBatches(BatchStep):
    """`function(columns) -> columns` for blocks of rows, row by row independent unless `whole`.

    Before `.batch()` the block is any number of rows; after it, a batch. With `whole` the function gets the global
    batch on every rank (and may mix rows); without it, only the rank's own rows.
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

    @property
    def needs_global_batch(self) -> bool:
        return self.whole

    def on_batches(self, facts: RowFacts) -> MapBatches:
        return self

    def on_rows(self, child: Node) -> None:
        return None

    def __post_init__(self) -> None:
        check_function(self.function, "map_batches")

    @property
    def draws(self) -> bool:
        return has_parameter(self.function, "keys")

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
        extra = {"keys": row_keys(base, picks)} if has_parameter(self.function, "keys") else {}
        try:
            made = self.function(columns, **extra)
        except PenstockError:
            raise
        except Exception as error:
            raise failed_on_block(picks, self.function, "map_batches", error) from error
        return _checked_columns(made, self.function, rows_of(columns))


class _MappedBlocks(ContentNode):
    def __init__(self, child: Node, step: MapBatches, base: int) -> None:
        super().__init__(child)
        self.step, self.base = step, base
        bounds = child.facts.bounds._replace(most=0)  # unknown: the function may change the ids
        self.facts = replace(self.facts, own_labels=False, bounds=bounds)
        self.types = ColumnTypes("map_batches")

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        with naming_rows(self.child, used):
            return Fetched(self.types.check(self.step.apply(columns, used, self.base)), used)

    def explain(self, picks: Picks) -> dict[str, Any]:
        """Also what a function drew that can say so, like `Augment`."""
        facts, function = self.child.explain(picks), self.step.function
        if not isinstance(function, DrawsParameters):
            return facts
        try:
            columns, used = self.child.fetch(picks)
            made, before = function.drawn(columns, row_keys(self.base, used)), facts.get("drawn", {})
            return facts | {"drawn": before | {name: [*before.get(name, ()), *steps] for name, steps in made.items()}}
        except PenstockError:  # `fetch` reports it; the facts so far are still valid
            return facts


def _checked_columns(made: Any, function: Any, rows: int) -> Columns:
    if not isinstance(made, dict):
        raise UserCodeError(f"a dict of columns from {function_name(function)}", got=type(made).__name__)
    out: Columns = {}
    for key, value in made.items():
        column = _as_column(str(key), value)
        if len(column) != rows:
            raise UserCodeError(
                f"{rows} rows in every column that {function_name(function)} returns",
                got=f"{len(column)} in {key!r}",
                fix="keep one row per record; drop records with .filter() instead",
            )
        out[key] = column
    return out


def _as_column(name: str, value: Any) -> Column:
    if isinstance(value, Ragged) or hasattr(value, "dtype"):
        return value  # type: ignore[no-any-return]
    return stack(value, name)
