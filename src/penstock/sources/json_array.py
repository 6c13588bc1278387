"""JSON files that hold one array of records, or an object with such an array in it; plain, gzip or Zstandard.

A JSON array has no index, so a file is parsed at once and its records are kept in memory, up to `limits.record_bytes`
for each file. JSON lines have no such limit. Fields and types are those of `sources.jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, DataError, LimitError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.read_budget import spend_held
from penstock.sources import compressed, json_fields, splits
from penstock.sources.cutting import BOM
from penstock.sources.formats import FORMATS, Options
from penstock.sources.row_texts import RowTexts
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.store.doctable import check_range


def open_path(paths: filesystem.Paths, options: Options) -> JsonArrays:
    """The opener of the registry."""
    wanted = None if options.every_field else [options.field]
    return JsonArrays(paths, wanted, storage_options=options.storage_options)


class JsonArrays(RowTexts):
    """The records of JSON files, one file after another.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> _ = path.write_text('{"version": 1, "data": [{"text": "one"}, {"text": "two"}]}')
    >>> JsonArrays(path).read(np.array([1]))["text"].tolist()
    ['two']
    """

    scanned = held = True  # files are parsed when they are opened, and kept

    def __init__(
        self, paths: filesystem.Paths, fields: Sequence[str] | None = None, *, key: str | None = None,
        types: Mapping[str, str] | None = None, limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        if isinstance(fields, str):
            fields = [fields]
        if fields is not None and (not fields or not all(isinstance(name, str) for name in fields)):
            raise UsageError("fields as a list of names", got=repr(fields), fix="fields=['text', 'label']")
        self.text = fields[0] if fields is not None and len(fields) == 1 else "text"
        self.key, self.limits, self.options = key, limits, dict(storage_options or {})
        found = filesystem.expand_stamped(paths, storage_options, FORMATS["json"].suffixes)
        self.paths, self.stamps = list(found), filesystem.stamps(found, self.options)
        splits.refuse_several(paths, self.paths)
        self._records: list[list[Any]] | None = None
        self._firsts = np.cumsum([0] + [len(records) for records in self._loaded()]).astype(np.int64)
        if not len(self):
            raise DataError(
                "at least one record", got="an empty array", where=self.paths[0], fix="pass a file with data"
            )
        asked = json_fields.check_types(types or {})
        first: dict[str, Any] = next((r for some in self._loaded() for r in some if isinstance(r, dict) and r), {})
        self._optional = fields is None
        names = list(first) if fields is None else list(fields)
        if not names:
            raise DataError(
                "JSON objects with fields in the array",
                got="none",
                where=self.paths[0],
                fix="from_texts(texts) takes texts",
            )
        self.types = {name: asked.get(name, json_fields.type_of(first.get(name))) for name in names}

    def _loaded(self) -> list[list[Any]]:
        if self._records is None:
            self._records = [self._load(file) for file in range(len(self.paths))]
        return self._records

    def _load(self, file: int) -> list[Any]:
        path, most = self.paths[file], self.limits.record_bytes
        filesystem.check_unchanged(path, self.stamps[file], self.options)
        stream = compressed.open_stream(path, compressed.kind_of(path, self.options), self.limits, self.options)
        try:
            data = compressed.read_up_to(stream, most + 1).removeprefix(BOM)
        finally:
            stream.close()
        if len(data) > most:
            raise LimitError(
                f"a JSON array of at most {most} bytes", got="a longer file", where=path,
                fix="write one record a line (.jsonl) for read_jsonl, or raise limits.record_bytes",
            )  # fmt: skip
        try:
            value = json_fields.exact(orjson.loads(data), data, path)
        except orjson.JSONDecodeError as error:
            lines = error.msg.startswith("unexpected content after document") or "trailing" in error.msg
            raise DataError(
                "one JSON array of records, or an object that holds one", got=f"{error.msg} at character {error.pos}",
                where=path, fix="read_jsonl(path) reads one record a line" if lines else "repair the file",
            ) from error  # fmt: skip
        return array_in(value, self.key, path)

    @property
    def columns(self) -> list[str]:
        """Names of the fields that are read."""
        return list(self.types)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per field."""
        rows: list[list[Any]] = []
        bad: list[RecordError] = []
        for row, number in enumerate(check_range(indices, len(self)).tolist()):
            file, at = self.place(number)
            try:
                rows.append(self._values(self._loaded()[file][at], f"{self.paths[file]}, record {at}"))
            except RecordError as error:
                error.row = row
                bad.append(error)
        if bad:
            raise BadRecords(bad)
        spend_held(rows)
        return json_fields.to_columns(rows, self.types)

    def _values(self, record: Any, where: str) -> list[Any]:
        if not isinstance(record, dict):
            fix = 'write {"text": ...} for each record'
            raise RecordError("a JSON object as each record", got=type(record).__name__, where=where, fix=fix)
        depth = self.limits.json_depth
        return [
            json_fields.pick(record, name, kind, where, depth, optional=self._optional)
            for name, kind in self.types.items()
        ]

    def place(self, number: int) -> tuple[int, int]:
        """The file of a record, and its number in the file."""
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return file, number - int(self._firsts[file])

    def fingerprint(self) -> str:
        """Hash of the fields and of every file's bytes."""
        ids = file_ids(self.paths, self.stamps, self.options)
        changed = self.limits.changed("record_bytes", "json_depth")
        return hashing.content_id(["json", str(self.key), orjson.dumps(list(self.types.items())), *changed, *ids])

    def describe(self) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        facts = {"kind": "JSON array", "files": len(self.paths), "records": len(self), "bytes": total}
        return {**facts, "fields": self.columns}

    def locate(self, index: int) -> dict[str, Any]:
        file, at = self.place(int(index))
        return {"file": self.paths[file], "record": at}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}  # read again where it is unpickled

    def __repr__(self) -> str:
        return f"JsonArrays({len(self.paths)} files, {len(self)} records: {', '.join(self.columns)})"


def array_in(value: Any, key: str | None, where: str) -> list[Any]:
    """The array of a JSON value: itself, or the member `key`, or the only member that is an array of objects.

    >>> array_in({"info": {}, "rows": [{"a": 1}]}, None, "a.json")
    [{'a': 1}]
    """
    if isinstance(value, list) and key is None:
        return value
    arrays: dict[str, list[Any]] = {}
    if isinstance(value, dict):
        arrays = {name: member for name, member in value.items() if isinstance(member, list)}
    if key is not None:
        if key in arrays:
            return arrays[key]
        got = f"only arrays {', '.join(map(repr, arrays))}" if arrays else "none"
        raise DataError(f"an array {key!r} in the JSON object", got=got, where=where, fix="key= one of these")
    objects = [name for name, member in arrays.items() if member and isinstance(member[0], dict)]
    if len(objects) == 1:
        return arrays[objects[0]]
    raise DataError(
        "one JSON array of records, or an object that holds one",
        got=f"several: {', '.join(map(repr, objects[:8]))}" if objects else "none",
        where=where,
        fix=f"key={objects[0]!r} says which" if objects else "read_jsonl(path) reads one record a line",
    )
