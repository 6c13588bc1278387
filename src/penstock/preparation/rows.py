"""The texts of a pipeline, for `.tokenize()` after other steps.

A one-pass read of the rows in order, through the steps: a `.filter()` here really leaves rows out, and `.skip_errors()`
skips, since a preparation goes over everything once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.core.columns import Columns, cut, rows_of, take
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.plan.definition import Definition
from penstock.plan.row_source import RowSource
from penstock.sources.lines import Chunk
from penstock.steps.filter import Filter
from penstock.steps.limit import Repeat, Skip, Take
from penstock.steps.shuffle import Shuffle

ROWS = 1024
_BY_PLACE = (Take, Skip, Repeat, Shuffle)  # what a filter leaves has no places until all of it was read


class Texts:
    """Satisfies `prepare.run.TextSource` for the column `field` of a definition's rows."""

    def __init__(self, definition: Definition, field: str) -> None:
        self.field = field
        self.definition = definition
        # Each filter ends a stretch: what follows it sees only what it kept.
        self.stretches: list[tuple[Filter | None, list[Any]]] = [(None, [])]
        for step in definition.steps:
            if isinstance(step, Filter):
                self.stretches.append((step, []))
            elif len(self.stretches) > 1 and isinstance(step, _BY_PLACE):
                raise UsageError(
                    f"no .{step.name}() between .filter() and .tokenize()",
                    got=f".filter(...).{step.name}(...).tokenize(...)",
                    fix=f"put .{step.name}() after .tokenize(), to count what was kept, or before .filter()",
                )
            else:
                self.stretches[-1][1].append(step)
        self.first = RowSource(Definition(definition.origin, tuple(self.stretches[0][1])))

    def describe(self) -> dict[str, Any]:
        return {"kind": "pipeline rows", "files": 1}

    def fingerprint(self) -> str:
        return f"{self.definition.fingerprint()}:{self.field}"

    @property
    def text_column(self) -> str:
        """The column that `iterate` reads."""
        return self.field

    def iterate(self, start: Any = None) -> Iterator[Chunk]:
        at = 0 if start is None else int(start["offset"])
        while at < len(self.first):
            stop = min(at + ROWS, len(self.first))
            texts, rows = self._texts(np.arange(at, stop))
            cursor = {"file": 0, "offset": stop, "line": stop}
            yield Chunk(texts, [(0, int(r) + 1, int(r)) for r in rows], cursor, file_bytes=sum(map(len, texts)))
            at = stop

    def _texts(self, rows: Any) -> tuple[list[str], Any]:
        columns = self.first.read(rows)
        for step, after in self.stretches[1:]:
            if not rows_of(columns):
                break
            kept = np.flatnonzero(_mask(step, columns)) if step is not None else np.arange(rows_of(columns))
            columns, rows = take(columns, kept), rows[kept]
            if after and rows_of(columns):
                columns = RowSource(Definition(_Held(columns), tuple(after))).read(np.arange(rows_of(columns)))
        if not rows_of(columns):
            return [], rows
        if self.field not in columns:
            raise UsageError(
                f"a column {self.field!r} to tokenize",
                got=f"columns {sorted(columns)}",
                fix=f".tokenize(tokenizer, field={sorted(columns)[0]!r})",
            )
        texts = list(columns[self.field])
        bad = [
            RecordError("a string", got=type(text).__name__, where=f"row {int(rows[i])}", row=i)
            for i, text in enumerate(texts)
            if not isinstance(text, str)
        ]
        if bad:
            raise BadRecords(bad)
        return texts, rows


def _mask(step: Filter, columns: Columns) -> Any:
    if step.batched:
        return np.asarray(step.function(columns))
    from penstock.core.columns import row

    return np.array([bool(step.function(row(columns, i))) for i in range(rows_of(columns))])


class _Held:
    """Columns in hand, as a source."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return rows_of(self.columns)

    def read(self, indices: Any) -> Columns:
        return take(self.columns, indices)

    def fingerprint(self) -> str:
        return "held"

    def describe(self) -> dict[str, Any]:
        return {"kind": "rows in hand", "records": len(self)}

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": index} | {k: v for k, v in cut(self.columns, index, index + 1).items() if k == "path"}
