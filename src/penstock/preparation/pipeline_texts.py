"""The texts of a pipeline, for a preparation: its rows in order, through the nodes that a loader runs.

Rejected records are dropped: those that `filter` rejects, and with `skip_errors` or `on_error="skip"` bad records.
Costs one block of 1,024 rows in memory. Which documents come out does not depend on where a run was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from penstock.core.columns import Columns, row, rows_of, strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.function_globals import globals_id
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows
from penstock.sources.lines import Chunk
from penstock.steps.base import Context, Step
from penstock.steps.media import located
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import Rejection, RejectionLog, rows_asked
from penstock.steps.skip_errors import SkipErrors

ROWS = 1024
_TEXT = "text"


@dataclass(frozen=True)
class TextOfColumn(Step):
    """The strings of the column `field`; a value that is no string is a bad record, left out where `skips`."""

    field: str
    skips: bool = False

    def build(self, child: Node, context: Context) -> Node:
        return _Texts(child, self.texts, context, self.skips)

    def texts(self, columns: Columns, errors: list[RecordError]) -> list[Any]:
        column = columns.get(self.field)
        if column is None:
            raise UsageError(
                f"a column {self.field!r} to tokenize",
                got=f"columns {sorted(columns)}",
                fix=f".tokenize(tokenizer, field={sorted(columns)[0]!r})",
            )
        texts = list(column)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                fix = 'drop such records with .filter(), or skip them: .skip_errors(), or on_error="skip"'
                expected = f"a string in column {self.field!r}"
                errors.append(RecordError(expected, got=type(text).__name__, fix=fix, row=i))
        return texts


@dataclass(frozen=True)
class TextOfRecord(Step):
    """Each record as JSON; one that holds other values is a bad record, left out where `skips`."""

    skips: bool = False

    def build(self, child: Node, context: Context) -> Node:
        return _Texts(child, self.texts, context, self.skips)

    def texts(self, columns: Columns, errors: list[RecordError]) -> list[Any]:
        texts: list[Any] = []
        for i in range(rows_of(columns)):
            try:
                texts.append(orjson.dumps(row(columns, i), option=orjson.OPT_SERIALIZE_NUMPY).decode())
            except TypeError as error:
                fix = "turn its fields into text, numbers, lists and dicts"
                errors.append(RecordError("a record of plain JSON values", got=str(error)[:200], fix=fix, row=i))
                texts.append(None)
        return texts


class _Texts(ContentNode):
    """One column of texts, made from all columns of the child.

    `skips`: the pipeline skips bad records, so those without a text are rejected too. Errors of the steps before stay
    errors, as in a loader: `.skip_errors()` is only for what comes before it.
    """

    def __init__(
        self,
        child: Node,
        texts: Callable[[Columns, list[RecordError]], list[Any]],
        context: Context,
        skips: bool,
    ) -> None:
        super().__init__(child)
        self.texts, self.skips = texts, skips
        self.rejections = RejectionLog(context.ledger, context.on_reject)

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        errors: list[RecordError] = []
        texts = strings(self.texts(columns, errors))
        if errors and not self.skips:
            with rows_asked(picks, used), located(self.child, used):
                raise BadRecords(errors)
        bad = [one.row for one in errors]
        if bad:
            self.rejections.add(used, bad, [Rejection(one.expected, one.got) for one in errors], self.child)
        kept = np.setdiff1d(np.arange(len(used)), bad)
        return Fetched({_TEXT: texts[kept]}, used.rows(kept))


class PipelineTexts:
    """Satisfies `TextSource`: the rows of a pipeline after the step `last`, without rejected records.

    `policy` skips bad records of `last` and of all steps before it; `verb` is what reads the texts, for errors.
    """

    def __init__(self, definition: Definition, last: Step, policy: SkipErrors | None, verb: str) -> None:
        self.definition, self.last, self.policy = definition, last, policy
        self.rows = KeptRows(definition, verb, (last,) if policy is None else (last, policy))

    @property
    def budget(self) -> Any:
        """How many bad records may be skipped: the smallest budget of the pipeline, as a count."""
        return self.rows.budget

    def describe(self) -> dict[str, Any]:
        return {"kind": "pipeline rows", "files": 1, "records": self.rows.size}

    def fingerprint(self) -> str:
        """Covers the pipeline and the code of its functions; not `budget=`, which does not change the texts."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        skips = "skip" if self.policy is not None else "raise"
        ids = (globals_id(function, opaque=True) for function in self.definition.functions())
        used = "".join(f":{one}" for one in ids if one)
        return f"kept:{self.definition.fingerprint()}:{self.last.name}:{self.last.spec()}:{skips}{used}"

    def iterate(self, start: Any = None) -> Iterator[Chunk]:
        for block in self.rows.blocks(0 if start is None else int(start["offset"]), ROWS):
            texts = list(block.columns[_TEXT]) if len(block.positions) else []
            yield Chunk(
                texts,
                [(0, position + 1, position) for position in block.positions.tolist()],
                {"file": 0, "offset": block.stop, "line": block.stop},
                file_bytes=sum(map(len, texts)),
                skipped=block.skipped,
                filtered=block.filtered,
            )
