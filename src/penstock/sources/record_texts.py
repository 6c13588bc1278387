"""Records as JSON texts in one pass, so that a preparation of texts can also prepare records.

Files of JSON lines are read from front to back without an index; other records are read by number, a few hundred at
a time. A record that cannot be read, or is no JSON, is a bad record that the preparation may skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from penstock.core import hashing
from penstock.core.errors import BadRecords, PenstockError, RecordError, StateError, UserCodeError
from penstock.sources.base import TextSource
from penstock.sources.json_records import JsonRecords, JsonTexts
from penstock.sources.line_errors import bare, place
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Cursor, Range, row_ranges
from penstock.sources.records import HFRecords, ListRecords, Records, SourceRecords, read_each, records_of

ROWS = 256


def record_texts(data: Any, *, file_format: str | None = None) -> TextSource:
    """What can be prepared from records: everything that `records_of` takes, or what this function returned.

    >>> next(record_texts([{"a": 1}]).iterate()).texts
    ['{"a":1}']
    """
    if isinstance(data, JsonTexts | RecordTexts):
        return data
    records = records_of(data, file_format=file_format)
    return JsonTexts(records) if isinstance(records, JsonRecords) else RecordTexts(records)


class RecordTexts:
    """Records that are read by number, as JSON texts."""

    def __init__(self, records: Records) -> None:
        self.records = records
        path = records.path if isinstance(records, ListRecords) else ""
        self.paths = [path] if path else []

    def ranges(self, most: int) -> list[Range]:
        """Parts of about `most` bytes, or of a fixed number of records where nothing tells their size."""
        return row_ranges(len(self.records), self._bytes(), most)

    def _bytes(self) -> int | None:
        facts = self.records.source.describe() if isinstance(self.records, SourceRecords) else {}
        size = int(self.records.dataset.data.nbytes) if isinstance(self.records, HFRecords) else facts.get("bytes")
        return None if size is None else int(size)

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        start, size = (start, len(self.records)) if part is None else (start or part.start, part.stop["offset"])
        at = 0 if start is None else int(start["offset"])
        if not 0 <= at <= size:
            raise StateError(f"a position in [0, {size}]", got=str(at), fix="start from the beginning")
        while at < size:
            stop = min(at + ROWS, size)
            chunk = Chunk([], [], {"file": 0, "offset": stop, "line": stop})
            for number, record in enumerate(read_each(self.records, range(at, stop)), at):
                position = (0, number + 1, number)
                try:
                    text = self._text(record, number)
                except RecordError as error:
                    chunk.add_error(error, position)
                    continue
                chunk.add(text, position)
                chunk.file_bytes += len(text)
            yield chunk
            at = stop

    def _text(self, record: Any, number: int) -> str:
        where = place(self.paths[0] if self.paths else "records", number + 1, number)
        if isinstance(record, BadRecords):
            record = record.errors[0]
        if isinstance(record, RecordError | UserCodeError):
            raise bare(RecordError(record.expected, got=record.got, where=record.where or where, fix=record.fix))
        if isinstance(record, PenstockError):  # the fault of the source, not of one record
            raise record
        try:
            return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except TypeError as error:
            fix = "turn its fields into text, numbers, lists and dicts"
            raise bare(
                RecordError("a record of plain JSON values", got=str(error)[:200], where=where, fix=fix)
            ) from None

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "files": 1, "records": len(self.records)}

    def fingerprint(self) -> str:
        """That of the source or the user's dataset where it has one; else a hash of every record as JSON."""
        if isinstance(self.records, SourceRecords):
            return f"records:{self.records.fingerprint()}"
        own = getattr(self.records.items, "fingerprint", None) if isinstance(self.records, ListRecords) else None
        if callable(own):
            return f"records:{own()}"
        return hashing.content_id(["records", *(text for chunk in self.iterate() for text in chunk.texts)])
