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

from penstock.core.columns import Columns, row, rows_of, strings, take
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.function_globals import globals_id
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows
from penstock.preparation.kept_columns import ColumnKind, encoded, kinds_of
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Range, row_ranges
from penstock.steps.base import Context, Step
from penstock.steps.media import located
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import Rejection, RejectionLog, rows_asked
from penstock.steps.skip_errors import SkipErrors

ROWS = 1024
_TEXT = "text"
ROW = "row:"  # before the names of columns of cached rows
KEPT = "kept:"  # before the names of columns that stay


class TextStep(Step):
    """The step that makes the texts of rows."""

    @property
    def keeps(self) -> bool:
        """Whether it passes on columns that stay beside the texts."""
        return False


@dataclass(frozen=True)
class TextOfColumn(TextStep):
    """The strings of the column `field`; a value that is no string is a bad record, left out where `skips`.

    `keep`: the columns that stay beside the text; None for all others.
    """

    field: str
    skips: bool = False
    keep: tuple[str, ...] | None = ()

    @property
    def keeps(self) -> bool:
        return self.keep != ()

    def spec(self) -> dict[str, Any]:
        """Without `keep` as it was before there was any: jobs of earlier versions are the same."""
        return {name: value for name, value in super().spec().items() if name != "keep" or self.keep != ()}

    def build(self, child: Node, context: Context) -> Node:
        return _Texts(child, self.texts, context, self.skips, self.kept)

    def kept(self, columns: Columns) -> Columns:
        """The columns that stay, under other names than the text."""
        names = [name for name in columns if name != self.field] if self.keep is None else self.keep
        missing = [name for name in names if name not in columns]
        if missing:
            raise UsageError(
                f"a column {missing[0]!r} that .tokenize() keeps",
                got=f"columns {', '.join(sorted(columns))}",
                fix="keep= names of columns that the records have, or leave it out",
            )
        return {f"{KEPT}{name}": columns[name] for name in names}

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
class TextOfRecord(TextStep):
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


@dataclass(frozen=True)
class AllColumns(TextStep):
    """No text, and all columns, named `row:NAME`: what `.cache()` stores."""

    @property
    def keeps(self) -> bool:
        return True

    def build(self, child: Node, context: Context) -> Node:
        return _Texts(child, self.texts, context, False, self.kept)

    def texts(self, columns: Columns, errors: list[RecordError]) -> list[Any]:
        return [""] * rows_of(columns)

    def kept(self, columns: Columns) -> Columns:
        return {f"{KEPT}{ROW}{name}": column for name, column in columns.items()}


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
        kept: Callable[[Columns], Columns] | None = None,
    ) -> None:
        super().__init__(child)
        self.texts, self.skips, self.kept = texts, skips, kept
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
        out: Columns = {_TEXT: texts[kept]}
        if self.kept is not None:
            out |= take(self.kept(columns), kept)
        return Fetched(out, used.rows(kept))


class PipelineTexts:
    """Satisfies `TextSource`: the rows of a pipeline after the step `last`, without rejected records.

    `policy` skips bad records of `last` and of all steps before it; `verb` is what reads the texts, for errors.
    """

    def __init__(self, definition: Definition, last: TextStep, policy: SkipErrors | None, verb: str) -> None:
        self.definition, self.last, self.policy = definition, last, policy
        self.rows = KeptRows(definition, verb, (last,) if policy is None else (last, policy))

    @property
    def budget(self) -> Any:
        """How many bad records may be skipped: the smallest budget of the pipeline, as a count."""
        return self.rows.budget

    def describe(self) -> dict[str, Any]:
        return {"kind": "pipeline rows", "files": 1, "records": self.rows.size}

    def locate(self, index: int) -> dict[str, Any]:
        """The provenance of a row of the pipeline, as `loader.why` has it."""
        return self.rows.locate(index)

    def fingerprint(self) -> str:
        """Covers the pipeline and the code of its functions; not `budget=`, which does not change the texts."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        skips = "skip" if self.policy is not None else "raise"
        ids = (globals_id(function, opaque=True) for function in self.definition.functions())
        used = "".join(f":{one}" for one in ids if one)
        return f"kept:{self.definition.fingerprint()}:{self.last.name}:{self.last.spec()}:{skips}{used}"

    @cached_property
    def kinds(self) -> tuple[ColumnKind, ...]:
        """How the columns that stay are stored: as in the first rows that are kept."""
        if not self.last.keeps:
            return ()
        for block in self.rows.blocks(0, ROWS):
            if len(block.positions):
                return kinds_of(_beside(block.columns))
        return ()

    def ranges(self, most: int) -> list[Range]:
        """Parts of about `most` bytes of the origin, or of a fixed number of rows where nothing tells their size."""
        origin = self.definition.origin
        facts = {} if isinstance(origin, Combined) else origin.describe()
        size, records = facts.get("bytes"), facts.get("records")
        return row_ranges(self.rows.size, size * self.rows.size // records if size and records else None, most)

    def iterate(self, start: Any = None, part: Range | None = None) -> Iterator[Chunk]:
        start, stop = (start, None) if part is None else (start or part.start, part.stop["offset"])
        begin = 0 if start is None else int(start["offset"])
        for block in self.rows.blocks(begin, ROWS, stop):
            texts = list(block.columns[_TEXT]) if len(block.positions) else []
            beside = _beside(block.columns) if texts else {}
            if texts and begin == 0 and block.stop == min(ROWS, self.rows.size):  # `kinds` need not read it again
                self.__dict__.setdefault("kinds", kinds_of(beside) if self.last.keeps else ())
            yield Chunk(
                texts,
                [(0, position + 1, position) for position in block.positions.tolist()],
                {"file": 0, "offset": block.stop, "line": block.stop},
                file_bytes=sum(map(len, texts)),
                skipped=block.skipped,
                filtered=block.filtered,
                columns=encoded(self.kinds, beside),
            )


def _beside(columns: Columns) -> Columns:
    """The columns that stay, under their own names."""
    return {name.removeprefix(KEPT): column for name, column in columns.items() if name.startswith(KEPT)}
