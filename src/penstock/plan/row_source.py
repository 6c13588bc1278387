"""The rows of a pipeline, before `.batch()`, in the order of the first epoch.

`RowSource` reads them by number, as a loader would deliver them: the positions of rejected records are refilled.
`KeptRows` reads them once, in order, without the rejected records: what a preparation stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.ledger import Entry
from penstock.plan.build import Plan, build
from penstock.plan.definition import Definition, Mix
from penstock.steps.base import Step


class RowSource:
    """Satisfies `Source`, so that one pipeline can be the source of another."""

    def __init__(self, definition: Definition) -> None:
        if definition.batch is not None:
            raise UsageError("a pipeline of single rows", got="one with .batch()", fix="leave .batch() out")
        self.definition = definition
        self.plan = build(definition)
        self.size = self.plan.root.size

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError("an endless pipeline has no length: add .take(n)")
        return self.size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        root = self.plan.root
        position = np.asarray(indices, np.int64)
        return root.fetch(root.pick(position, 0).with_slot(position)).columns

    def fingerprint(self) -> str:
        return f"rows:{self.plan.fingerprint}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "pipeline rows", "records": self.size}

    def locate(self, index: int) -> dict[str, Any]:
        root = self.plan.root
        position = np.array([index])
        picks = root.fetch(root.pick(position, 0).with_slot(position)).picks
        return {"row": index} | root.explain(picks)

    def __getstate__(self) -> Definition:
        return self.definition

    def __setstate__(self, definition: Definition) -> None:
        self.__init__(definition)  # type: ignore[misc]


class KeptBlock(NamedTuple):
    """The kept rows of a range of positions that ends before `stop`, and what was rejected there."""

    columns: Columns
    positions: NDArray[np.int64]
    stop: int
    skipped: list[Entry]
    filtered: int


class KeptRows:
    """The rows of a pipeline's first epoch in order, without the records that `filter` or `skip_errors` rejects.

    `verb` is what reads them, for errors; it adds the steps `then`. Refused: pipelines without an end, batches, and a
    verb that counts positions (`take`, `skip`, `repeat`, `shuffle`) after `filter`: it would count rejected records.
    """

    def __init__(self, definition: Definition, verb: str, then: Sequence[Step] = ()) -> None:
        if definition.batch is not None:
            raise UsageError(f"single records before {verb}", got=".batch()", fix=f"put {verb} before .batch()")
        check_positions(definition, verb)
        if build(definition).finish:
            last = definition.steps[-1].name
            raise UsageError(f"single records before {verb}", got=f".{last}()", fix=f"put .{last}() after {verb}")
        self.definition = replace(definition, steps=(*definition.steps, *then))
        plan = self._plan()
        if plan.root.size is None:
            fix = 'add .take(n); or .repeat(times), or stop="all" in penstock.mix()'
            raise UsageError(f"a pipeline with an end before {verb}", got="an endless one", fix=fix)
        self.size = plan.root.size
        self.budget = plan.ledger.budget

    def _plan(self) -> Plan:
        return build(self.definition, on_reject="drop")

    def blocks(self, start: int = 0, rows: int = 1024) -> Iterator[KeptBlock]:
        """The kept rows from position `start` on. Builds its own plan, so each reading has a ledger of its own."""
        plan = self._plan()
        root, ledger = plan.root, plan.ledger
        ledger.keep = self.size  # emptied after each block
        for first in range(start, self.size, rows):
            position = np.arange(first, min(first + rows, self.size))
            filtered = plan.refusals.total
            columns, used = root.fetch(root.pick(position, 0).with_slot(position))
            skipped, ledger.entries = ledger.entries, []
            yield KeptBlock(
                columns, used.column("slot"), first + len(position), skipped, plan.refusals.total - filtered
            )


def check_positions(definition: Definition, verb: str) -> None:
    """Refuses a verb that counts positions after one that selects records, also inside of mixtures."""
    selected = False
    if isinstance(definition.origin, Mix):
        for branch in definition.origin.branches:
            check_positions(branch, verb)
        selected = any(_selects(branch) for branch in definition.origin.branches)
    for step in definition.steps:
        if selected and step.by_position:
            raise UsageError(
                f"no .{step.name}() between .filter() and {verb}",
                got=f".filter(...) and then .{step.name}(...)",
                fix=f"put .{step.name}() after {verb}, to count what was kept, or before .filter()",
            )
        selected |= step.selects


def _selects(definition: Definition) -> bool:
    branches = definition.origin.branches if isinstance(definition.origin, Mix) else ()
    return any(step.selects for step in definition.steps) or any(map(_selects, branches))
