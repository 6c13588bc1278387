"""`map`: calls the user's function for each record.

A function with a parameter called `rng` receives a generator keyed by (seed, epoch, record, step): the same for any
threads, workers, world size or resume point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.core import randomness
from penstock.core.column_types import ColumnTypes
from penstock.core.columns import Columns, from_rows, row
from penstock.core.errors import UserCodeError
from penstock.core.functions import function_name, has_parameter
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks, row_keys
from penstock.steps.replacement import locate, rows_asked
from penstock.steps.user_functions import check_function, each_row, failed_on_row, naming_rows


@dataclass(frozen=True)
class Map(Step):
    """`function(record) -> record` for every record."""

    changes_content: ClassVar[bool] = True
    function: Callable[..., Any]
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(self.function, "map")

    @property
    def draws(self) -> bool:
        return has_parameter(self.function, "rng")

    def build(self, child: Node, context: Context) -> Node:
        return _Mapped(child, self.function, randomness.key(context.seed, "map", context.place))


class _Mapped(ContentNode):
    def __init__(self, child: Node, function: Callable[..., Any], base: int) -> None:
        super().__init__(child)
        self.function, self.base, self.random = function, base, has_parameter(function, "rng")
        bounds = child.facts.bounds._replace(most=0)  # unknown: the function may change the ids
        self.facts = replace(self.facts, own_labels=False, bounds=bounds)
        self.types = ColumnTypes("map")

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        with rows_asked(picks, used), naming_rows(self.child, used):
            return Fetched(self.types.check(from_rows(self._rows(columns, used))), used)

    def _rows(self, columns: Columns, used: Picks) -> list[dict[str, Any]]:
        keys = row_keys(self.base, used) if self.random else None

        def one(i: int) -> dict[str, Any]:
            extra = {} if keys is None else {"rng": randomness.generator(int(keys[i]))}
            try:
                made = self.function(row(columns, i), **extra)
            except Exception as error:
                raise failed_on_row(self.child, used, i, self.function, "map", error) from error
            return _checked_row(made, self.function, self.child, used, i)

        return each_row(one, len(used))


def _checked_row(made: Any, function: Callable[..., Any], node: Node, picks: Picks, i: int) -> dict[str, Any]:
    if isinstance(made, dict):
        return made
    problem = UserCodeError(
        f"a dict from {function_name(function)} in .map()",
        got=f"{type(made).__name__}: {str(made)[:80]}",
        fix="return the record as a dict, for example {**record, 'x': value}",
    )
    problem.row = i
    locate(problem, node, picks)
    raise problem
