"""Records of JSON files, each as it was written: JSON lines, or one file that is a JSON array.

Unlike `sources.jsonl`, which reads chosen fields into columns, records need not have the same fields. JSON lines are
read by number (one scan builds an index) or in one pass; an array is loaded at once, up to `limits.record_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from penstock.core import hashing
from penstock.core.errors import DataError, LimitError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources import compressed, json_fields
from penstock.sources.cutting import BOM, Piece
from penstock.sources.jsonl import SUFFIXES
from penstock.sources.lines import Chunk, Cursor, LineFiles, bare, place, too_long
from penstock.storage import filesystem

_ARRAYS = (".json", ".json.gz", ".json.zst")
_HEAD = 4096


class JsonRecords:
    """The records of JSON-lines files, as dicts by number."""

    def __init__(self, paths: filesystem.Paths, *, limits: Limits = LIMITS) -> None:
        self.lines = LineFiles(paths, limits=limits, suffixes=SUFFIXES)

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return self.lines.paths

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        data, bad = self.lines.fetch(np.asarray(numbers, np.int64))
        out: list[Any] = []
        errors = {error.row: error for error in bad}
        for at, line in enumerate(data):
            try:
                out.append(errors[at] if at in errors else self._record(line, int(numbers[at])))
            except RecordError as error:
                out.append(error)
        return out

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        record = json_fields.load(line, "")
        depth = self.lines.limits.json_depth
        if not json_fields.shallow(record, depth):
            raise RecordError(
                f"at most {depth} levels of JSON", got="more", where=self.name(number), fix="flatten the record"
            )
        return record

    def name(self, number: int) -> str:
        at = self.lines.locate(int(number))
        return place(at["file"], at["line"], at["offset"])

    def fingerprint(self) -> str:
        return hashing.content_id(["json lines", *(filesystem.file_id(path) for path in self.paths)])


class JsonTexts:
    """The lines of JSON-lines files as texts, in one pass; satisfies `TextSource`."""

    def __init__(self, records: JsonRecords) -> None:
        self._lines = records.lines

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
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
        ids = [filesystem.file_id(path, self._lines.options) for path in self.paths]
        return hashing.content_id(["json records", *ids])


def begins_with(path: str, mark: bytes) -> bool:
    """Whether the first character of a file that is not white space is `mark`."""
    return _read(path, _HEAD, LIMITS).removeprefix(BOM).lstrip().startswith(mark)


def read_array(paths: Sequence[str], limits: Limits | None = None) -> list[Any] | None:
    """The records of the one file that is a JSON array; None when the files are JSON lines."""
    arrays = [path for path in paths if path.lower().endswith(_ARRAYS) and begins_with(path, b"[")]
    if not arrays:
        return None
    if len(paths) > 1:
        raise UsageError(
            "files of JSON lines, or one file that is a JSON array",
            got=f"{len(paths)} files, an array among them",
            where=arrays[0],
            fix="write them as JSON lines",
        )
    limits = limits or LIMITS
    data = _read(arrays[0], limits.record_bytes + 1, limits)
    if len(data) > limits.record_bytes:
        raise LimitError(
            f"a JSON array of at most {limits.record_bytes} bytes",
            got="a longer file",
            where=arrays[0],
            fix="write one record a line (.jsonl), which is read piece by piece",
        )
    try:
        return list(orjson.loads(data.removeprefix(BOM)))
    except orjson.JSONDecodeError as error:
        raise DataError(
            "a JSON array of records", got=str(error)[:200], where=arrays[0], fix="repair the file"
        ) from error


def _read(path: str, most: int, limits: Limits) -> bytes:
    stream = compressed.open_stream(path, compressed.kind_of(path), limits)
    try:
        return compressed.read_up_to(stream, most)
    finally:
        stream.close()
