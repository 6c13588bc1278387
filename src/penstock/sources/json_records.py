"""Records of JSON files, each as it was written: JSON lines, or one file that is a JSON array.

Unlike `sources.jsonl`, which reads chosen fields into columns, records need not have the same fields. JSON lines are
read by number (one scan builds an index) or in one pass; an array is loaded at once, up to `limits.record_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from penstock.core.errors import DataError, LimitError, RecordError, UsageError
from penstock.core.limits import LIMITS
from penstock.sources import compressed, json_fields
from penstock.sources.cutting import BOM
from penstock.sources.jsonl import SUFFIXES
from penstock.sources.line_errors import place_of
from penstock.sources.line_source import LineSource
from penstock.sources.lines import LineFiles
from penstock.sources.text import TextFiles
from penstock.storage import filesystem

_ARRAYS = (".json", ".json.gz", ".json.zst")
_HEAD = 4096


class JsonRecords(LineSource):
    """The records of JSON-lines files, as dicts by number."""

    def __init__(self, paths: filesystem.Paths, storage_options: filesystem.Options = None) -> None:
        self.files = LineFiles(paths, limits=LIMITS, suffixes=SUFFIXES, storage_options=storage_options)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        data, bad = self.files.fetch(np.asarray(numbers, np.int64))
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
        depth = self.files.limits.json_depth
        if not json_fields.shallow(record, depth):
            raise RecordError(
                f"at most {depth} levels of JSON", got="more", where=self.name(number), fix="flatten the record"
            )
        return record

    def name(self, number: int) -> str:
        return place_of(self.files.locate(int(number)))

    def settings(self) -> tuple[Any, ...]:
        return ("json lines",)


class JsonTexts(TextFiles):
    """The lines of JSON-lines files as texts, in one pass."""

    def __init__(self, records: JsonRecords) -> None:
        self.files, self.mode, self.errors = records.files, "line", "strict"

    def describe(self) -> dict[str, Any]:
        return self.files.describe("jsonl records")

    def settings(self) -> tuple[Any, ...]:
        return ("json records",)


def begins_with(path: str, mark: bytes, storage_options: filesystem.Options = None) -> bool:
    """Whether the first character of a file that is not white space is `mark`."""
    return _read(path, _HEAD, storage_options).removeprefix(BOM).lstrip().startswith(mark)


def read_array(paths: Sequence[str], storage_options: filesystem.Options = None) -> list[Any] | None:
    """The records of the one file that is a JSON array; None when the files are JSON lines."""
    arrays = [path for path in paths if path.lower().endswith(_ARRAYS) and begins_with(path, b"[", storage_options)]
    if not arrays:
        return None
    if len(paths) > 1:
        raise UsageError(
            "files of JSON lines, or one file that is a JSON array",
            got=f"{len(paths)} files, an array among them",
            where=arrays[0],
            fix="write them as JSON lines",
        )
    most = LIMITS.record_bytes
    data = _read(arrays[0], most + 1, storage_options)
    if len(data) > most:
        raise LimitError(
            f"a JSON array of at most {most} bytes",
            got="a longer file",
            where=arrays[0],
            fix="write one record a line (.jsonl), which is read piece by piece",
        )
    data = data.removeprefix(BOM)
    try:
        return list(json_fields.exact(orjson.loads(data), data, arrays[0]))
    except orjson.JSONDecodeError as error:
        raise DataError(
            "a JSON array of records", got=str(error)[:200], where=arrays[0], fix="repair the file"
        ) from error


def _read(path: str, most: int, storage_options: filesystem.Options) -> bytes:
    stream = compressed.open_stream(path, compressed.kind_of(path, storage_options), LIMITS, storage_options)
    try:
        return compressed.read_up_to(stream, most)
    finally:
        stream.close()
