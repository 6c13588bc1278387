"""The rows of a pipeline, before `.batch()`, in the order of the first epoch.

`RowSource` reads them by number, as a loader would deliver them: the positions of rejected records are refilled.
`KeptRows` reads them once, in order, without the rejected records: what a preparation stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from operator import index
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, row, rows_of
from penstock.core.errors import DataError, UsageError
from penstock.core.ledger import Entry
from penstock.plan.branches import Combined
from penstock.plan.build import Plan, build
from penstock.plan.definition import Definition
from penstock.steps.base import Step

_ROWS = 64  # read at once by iteration


class RowSource:
    """A sequence of rows, each a dict. Satisfies `Source`, so that one pipeline can be the source of another.

    >>> import penstock as ps
    >>> rows = ps.from_arrays({"x": range(10)}).skip(3).rows()
    >>> len(rows), int(rows[0]["x"]), [int(row["x"]) for row in rows[-2:]], sum(int(row["x"]) for row in rows)
    (7, 3, [8, 9], 42)
    """

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

    @overload
    def __getitem__(self, place: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return self._rows(range(len(self))[place])
        number = index(place)
        if number < 0 or self.size is not None:
            number = range(len(self))[number]
        return self._rows(range(number, number + 1))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in count(0, _ROWS) if self.size is None else range(0, self.size, _ROWS):
            stop = start + _ROWS if self.size is None else min(start + _ROWS, self.size)
            yield from self._rows(range(start, stop))

    def _rows(self, places: range) -> list[dict[str, Any]]:
        columns = self.read(np.arange(places.start, places.stop, places.step))
        return [row(columns, i) for i in range(rows_of(columns))]

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> Columns:
        """The columns of these rows."""
        root = self.plan.root
        position = np.asarray(indices, np.int64)
        return root.fetch(root.pick(position, epoch).with_slot(position)).columns

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
    """The kept rows of a range of positions that ends before `stop`, and what was rejected there.

    `records` are the rows' numbers in the source.
    """

    columns: Columns
    positions: NDArray[np.int64]
    stop: int
    skipped: list[Entry]
    filtered: int
    records: NDArray[np.int64]


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

    @cached_property
    def _first(self) -> Plan:
        return self._plan()

    def _plan(self) -> Plan:
        return build(self.definition, on_reject="drop")

    def locate(self, index: int) -> dict[str, Any]:
        """Where the row at a position comes from. Reads no row: a kept row is the one that was planned there."""
        root, position = self._first.root, np.array([index])
        return root.explain(root.pick(position, 0).with_slot(position))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_first"}

    def blocks(self, start: int = 0, rows: int = 1024, stop: int | None = None) -> Iterator[KeptBlock]:
        """The kept rows of positions from `start` up to `stop` or the end. Builds its own plan and ledger."""
        plan = self._plan()
        root, ledger = plan.root, plan.ledger
        ledger.keep = self.size  # emptied after each block
        end = self.size if stop is None else min(stop, self.size)
        for first in range(start, end, rows):
            position = np.arange(first, min(first + rows, end))
            filtered = plan.refusals.total
            columns, used = root.fetch(root.pick(position, 0).with_slot(position))
            skipped, ledger.entries = ledger.entries, []
            yield KeptBlock(
                columns, used.column("slot"), first + len(position), skipped, plan.refusals.total - filtered,
                used.record,
            )  # fmt: skip


def nothing_kept(verb: str, skipped: int, filtered: int) -> DataError:
    """The error of a verb that stores rows, when all of them were rejected."""
    lost = [f"{skipped:,} bad records were skipped"] if skipped else []
    lost += [f"{filtered:,} were rejected by .filter()"] if filtered else []
    return DataError(
        f"at least one row to {verb}", got=" and ".join(lost) or "none", fix="check the filters and the data"
    )


def check_positions(definition: Definition, verb: str) -> str:
    """Refuses a verb that counts positions after one that selects records, also inside of mixtures.

    Returns the verb by which records at its end may still be rejected, "" if none: an exact filter has left them out.
    """
    selects = ""
    if isinstance(definition.origin, Combined):
        for branch in definition.origin.branches:
            selects = check_positions(branch, verb) or selects
    for step in definition.steps:
        if step.exact:
            selects = ""
        elif selects and step.by_position:
            raise UsageError(
                f"no .{step.name}() between .{selects}() and {verb}",
                got=f".{selects}(...) and then .{step.name}(...)",
                fix=f"put .{step.name}() after {verb} or before .{selects}(); or .filter(function, exact=True) before "
                "it",
            )
        elif step.selects:
            selects = step.name
    return selects
