"""Records for a preparation: each is a JSON object, read in one pass, from files or from what is in memory.

They come as the texts of a `TextSource`, so that everything a preparation of texts can do (go on after being killed,
skip and list bad records, show progress) it can do with records as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from penstock.core import hashing
from penstock.core.columns import row, rows_of
from penstock.core.errors import DataError, RecordError, StateError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.plan.row_source import RowSource
from penstock.sources.base import Source, TextSource
from penstock.sources.cutting import Piece
from penstock.sources.jsonl import SUFFIXES
from penstock.sources.lines import Chunk, Cursor, LineFiles, bare, place, too_long
from penstock.storage import filesystem

ROWS = 256


def records_of(source: Any, *, limits: Limits = LIMITS) -> TextSource:
    """What can be prepared from: paths of JSON lines or of a JSON array, a pipeline, any sequence of dicts.

    >>> next(records_of([{"a": 1}]).iterate()).texts
    ['{"a":1}']
    """
    if isinstance(source, JsonRecords | HeldRecords):
        return source
    if hasattr(source, "definition"):  # a pipeline
        return HeldRecords(RowSource(source.definition))
    if isinstance(source, str | os.PathLike) or _are_paths(source):
        paths = filesystem.expand(source, None, SUFFIXES)
        arrays = [_array(path, limits) for path in paths if path.lower().endswith(".json")]
        if not any(a is not None for a in arrays):
            return JsonRecords(paths, limits=limits)
        if len(paths) > 1:
            raise UsageError(
                "files of JSON lines, or one file that is a JSON array",
                got=f"{len(paths)} files, an array among them",
                where=", ".join(paths[:3]),
                fix="write them as JSON lines",
            )
        return HeldRecords(arrays[0] or [], name=paths[0])
    if hasattr(source, "__len__") and (hasattr(source, "__getitem__") or hasattr(source, "read")):
        return HeldRecords(source)
    raise UsageError(
        "records: paths of JSON files, a pipeline, or a sequence of dicts",
        got=type(source).__name__,
        fix="list(...) a generator first",
    )


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and bool(source) and isinstance(source[0], str | os.PathLike)


def _array(path: str, limits: Limits) -> list[Any] | None:
    """The records of a file that is one JSON array, or None when it is not one."""
    with filesystem.open_read(path) as file:
        head = file.read(4096)
        if not head.lstrip().startswith(b"["):
            return None
        data = head + file.read(limits.record_bytes)
    if len(data) > limits.record_bytes:
        raise DataError(
            f"a JSON array of at most {limits.record_bytes} bytes",
            got="a longer file",
            where=path,
            fix="write it as JSON lines, one record a line",
        )
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DataError("a JSON array of records", got=str(error)[:200], where=path, fix="repair the file") from error
    return list(found)


class JsonRecords:
    """Files of JSON lines; each line is a record, whole."""

    def __init__(self, paths: filesystem.Paths, *, limits: Limits = LIMITS) -> None:
        self._lines = LineFiles(paths, limits=limits, suffixes=SUFFIXES)

    @property
    def paths(self) -> list[str]:
        return self._lines.paths

    def iterate(self, start: Cursor | None = None) -> Iterator[Chunk]:
        return self._lines.chunks(self._parse, start)

    def _parse(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        for i, (a, b) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            line, offset = int(piece.lines[i]), piece.offset + a
            if b - a > self._lines.limit:
                bad.append((i, too_long(path, line, offset, self._lines.limit)))
                continue
            try:
                texts.append(bytes(piece.data[a:b]).decode())
            except UnicodeDecodeError as error:
                where, fix = place(path, line, offset), "convert the file to UTF-8"
                bad.append((i, bare(RecordError("JSON in UTF-8", got=error.reason, where=where, fix=fix))))
        return texts, bad

    def describe(self) -> dict[str, Any]:
        return self._lines.describe("jsonl records")

    def fingerprint(self) -> str:
        return hashing.content_id(
            ["json records", *(filesystem.file_id(path, self._lines.options) for path in self.paths)]
        )


class HeldRecords:
    """Records in memory, in a dataset or in a pipeline: anything that is indexed."""

    def __init__(self, rows: Sequence[Mapping[str, Any]] | Source | Any, name: str = "") -> None:
        self.rows, self.name = rows, name
        self.paths = [name] if name else []

    def iterate(self, start: Cursor | None = None) -> Iterator[Chunk]:
        at = 0 if start is None else int(start["offset"])
        if not 0 <= at <= len(self.rows):
            raise StateError(f"a place in [0, {len(self.rows)}]", got=str(at), fix="begin anew")
        while at < len(self.rows):
            stop = min(at + ROWS, len(self.rows))
            chunk = Chunk([], [], {"file": 0, "offset": stop, "line": stop})
            for number, record in enumerate(self._read(at, stop), at):
                position = (0, number + 1, number)
                try:
                    text = orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY).decode()
                except TypeError as error:
                    chunk.errors.append(
                        RecordError(
                            "a record of plain JSON values",
                            got=str(error)[:200],
                            where=place(self.name or "records", number + 1, number),
                            fix="turn its fields into text, numbers, lists and dicts",
                        )
                    )
                    chunk.error_positions.append(position)
                    continue
                chunk.texts.append(text)
                chunk.positions.append(position)
                chunk.file_bytes += len(text)
            yield chunk
            at = stop

    def _read(self, start: int, stop: int) -> list[Any]:
        if hasattr(self.rows, "read"):
            columns = self.rows.read(np.arange(start, stop))
            return [row(columns, i) for i in range(rows_of(columns))]
        return [self.rows[i] for i in range(start, stop)]

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "files": 1, "records": len(self.rows)}

    def fingerprint(self) -> str:
        """Hash of every record as JSON, or the source's own."""
        own = getattr(self.rows, "fingerprint", None)
        if callable(own):
            return f"records:{own()}"
        return hashing.content_id(["records", *(text for chunk in self.iterate() for text in chunk.texts)])
