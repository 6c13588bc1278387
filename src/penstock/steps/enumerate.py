"""`enumerate`: a column with the number of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.renumbered import Renumbered, refuse_rejected


@dataclass(frozen=True)
class Enumerate(Step):
    """Adds `column`: the number of the row at this place of the pipeline, from 0 in each epoch."""

    column: str = "index"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise UsageError("the name of a column in .enumerate()", got=repr(self.column), fix='column="index"')

    def build(self, child: Node, context: Context) -> Node:
        if child.facts.numbered:
            return _Numbered(child, self.column)
        refuse_rejected(child, ".enumerate()", "steps before it")
        return _Counted(child, self.column)


class _Numbered(ContentNode):
    """Over rows that are the records of a source in order: the number of the record, also where it was refilled."""

    def __init__(self, child: Node, column: str) -> None:
        super().__init__(child)
        self.column = column

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        return Fetched(_with(columns, self.column, used), used)


class _Counted(Renumbered):
    def __init__(self, child: Node, column: str) -> None:
        super().__init__(child)
        self.column = column

    def fetch(self, picks: Picks) -> Fetched:
        columns, _ = self.child.fetch(self.inner(picks))
        return Fetched(_with(columns, self.column, picks), picks)


def _with(columns: Columns, name: str, picks: Picks) -> Columns:
    if name in columns:
        raise UsageError(
            "a new column in .enumerate()", got=f"{name!r}, which the rows have", fix=f'.enumerate("{name}_number")'
        )
    return {**columns, name: np.array(picks.record, np.int64)} if len(picks) else columns
