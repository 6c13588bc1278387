"""JSON lines: one JSON object per line, plain, gzip or Zstandard.

Random access goes by a byte-offset index (see `lines`), one pass by `iterate`, which spends nearly all of its time in
the JSON parser (several hundred MB/s on one core). Blank lines are not records. When a key comes twice in an
object the last one counts, as in Python. With one text field, other fields are parsed and dropped. What is not JSON,
and which numbers are exact, is described in `json_fields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import DataError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.signals import surface
from penstock.sources import json_fields, splits
from penstock.sources.cutting import Piece
from penstock.sources.formats import FORMATS, Options
from penstock.sources.line_errors import bare, place, too_long
from penstock.sources.line_source import LineSource
from penstock.sources.lines import Chunk, LineFiles
from penstock.sources.ranges import Cursor, Range
from penstock.storage import filesystem

SUFFIXES = FORMATS["jsonl"].suffixes


def open_path(paths: filesystem.Paths, options: Options) -> JsonlFiles:
    """The opener of the registry."""
    field = None if options.every_field else options.field
    return JsonlFiles(paths, field=field, storage_options=options.storage_options)


class JsonlFiles(LineSource):
    """JSON-lines files. `field` is the one text field to read; `field=None` reads `fields`, or all fields there are.

    With all fields, the first record says which columns there are; where a later record lacks one, it is
    None, or an error if the column holds numbers.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"text": "one", "n": 1}\\n{"text": "two", "n": 2}\\n')
    >>> JsonlFiles(path).read(np.array([1]))["text"].tolist()
    ['two']
    >>> JsonlFiles(path, field=None).read(np.array([1, 0]))["n"].tolist()
    [2, 1]
    """

    def __init__(
        self, paths: filesystem.Paths, field: str | None = "text", *, fields: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None, limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        if isinstance(fields, str) or (fields is not None and not all(isinstance(f, str) for f in fields)):
            raise UsageError("fields as a list of names", got=repr(fields), fix="fields=['text', 'label']")
        if fields is not None and not fields:
            raise UsageError("at least one field", got="fields=[]", fix="leave `fields` out to read all of them")
        self.field = field if fields is None else None
        self.limits = limits
        self._asked = json_fields.check_types(types or {})
        self.files = LineFiles(paths, limits=limits, storage_options=storage_options, suffixes=SUFFIXES)
        splits.refuse_several(paths, self.paths)
        self._optional = self.field is None and fields is None
        if self.field is not None:
            self.types = {self.field: "str"}
        else:
            self.types = self._first_types(fields)

    def _first_types(self, fields: Sequence[str] | None) -> dict[str, str]:
        """Columns and types by the first record that can be read."""
        first, problem = self._first_record()
        names = list(fields) if fields is not None else list(first)
        if not names:
            if problem is not None:  # no line can be read: this is why
                raise DataError(problem.expected, got=problem.got, where=problem.where, fix=problem.fix)
            raise UsageError(
                "a record to take the fields from",
                got="no line that is a JSON object with fields",
                where=self.paths[0],
                fix="name them: fields=['text']",
            )
        return {name: self._asked.get(name, json_fields.type_of(first.get(name))) for name in names}

    def _first_record(self) -> tuple[dict[str, Any], RecordError | None]:
        """The first record that can be read, and the first error before it."""
        problem: RecordError | None = None
        for chunk in self.files.chunks(_raw, size=1 << 16):
            for line, (file, number, offset) in zip(chunk.texts, chunk.positions, strict=True):
                where = place(self.paths[file], number, offset)
                try:
                    first = json_fields.load(line.encode("utf-8", "surrogateescape"), where)
                except RecordError as error:
                    problem = problem or error
                    continue
                if first:
                    return first, problem
            problem = problem or next(iter(chunk.errors), None)
        return {}, problem

    @property
    def columns(self) -> list[str]:
        return list(self.types)

    @property
    def text_column(self) -> str | None:
        """The column that `iterate` reads."""
        return self.field

    @property
    def unread(self) -> str:
        """How to read the fields that are not read."""
        return "read_jsonl(..., field=None) reads all fields" if self.field is not None else ""

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per field."""
        return json_fields.to_columns(self._parsed(indices, self._values), self.types)

    def _values(self, line: bytes | memoryview, where: str) -> list[Any]:
        record = json_fields.load_fast(line, where)
        if "object" in self.types.values():
            record = json_fields.exact(record, line, where)
        depth, get = self.limits.json_depth, record.get
        return [
            value  # the frequent case
            if kind == "str" and type(value := get(name)) is str
            else json_fields.pick(record, name, kind, where, depth, optional=self._optional)
            for name, kind in self.types.items()
        ]

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """The texts of all records in file order; `start` is the cursor of an earlier chunk."""
        if self.field is None:
            raise UsageError(
                "one text field for a one-pass read",
                got=f"fields {', '.join(self.types)}",
                fix="JsonlFiles(..., field=...)",
            )
        return self.files.chunks(self._parse, start, part=part)

    def _parse(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        loads, field, limit, view = orjson.loads, self.field, self.files.limit, memoryview(piece.data)
        for i, (s, e) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            try:
                text = loads(view[s:e])[field] if e - s <= limit else None
            except (ValueError, KeyError, TypeError) as error:
                surface(error)
                text = None
            if type(text) is str:
                texts.append(text)
                continue
            try:  # again, the slow way, which words what is wrong
                where = place(path, int(piece.lines[i]), piece.offset + s)
                if e - s > limit:
                    raise too_long(path, int(piece.lines[i]), piece.offset + s, limit)
                texts.append(self._values(view[s:e], where)[0])
            except RecordError as error:
                bad.append((i, bare(error)))
        return texts, bad

    def settings(self) -> tuple[Any, ...]:
        return "jsonl", orjson.dumps(list(self.types.items()))

    def describe(self) -> dict[str, Any]:
        return {**self.files.describe("jsonl"), "fields": list(self.types)}

    def __repr__(self) -> str:
        return f"JsonlFiles({len(self.paths)} files, fields={list(self.types)})"


def _raw(piece: Piece, _path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
    pairs = zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)
    return [piece.data[s:e].decode("utf-8", "surrogateescape") for s, e in pairs], []
