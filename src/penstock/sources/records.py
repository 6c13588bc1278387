"""Records of anything, by number.

`records_of` takes a datasets.Dataset, a list or other sequence of dicts, a JSON-lines path or a list of them (or a
.json file that is one array), a pipeline, or a source. Records come whole, as plain dicts; JSON lines need not all have
the same fields.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import orjson

from penstock.core import hashing
from penstock.core.columns import row as row_of
from penstock.core.errors import DataError, LimitError, PenstockError, RecordError, UsageError, UserCodeError
from penstock.core.limits import LIMITS
from penstock.sources import json_fields
from penstock.sources.hf import HFDataset
from penstock.sources.jsonl import SUFFIXES
from penstock.sources.lines import LineFiles, place
from penstock.storage import filesystem

Record = Mapping[str, Any]
_TABLES = {
    ("pandas", "DataFrame"): 'datasets.Dataset.from_pandas(frame), or frame.to_dict("records")',
    ("polars", "DataFrame"): "datasets.Dataset.from_polars(frame), or frame.to_dicts()",
    ("pyarrow", "Table"): "datasets.Dataset(table), or table.to_pylist()",
}


class Records(Protocol):
    """Records by number. `read` gives, for each number, the record or the error that stands in its place."""

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[Any]: ...

    def name(self, number: int) -> str: ...

    def fingerprint(self) -> str: ...


class Listed:
    """A sequence of dicts in memory, or anything with `len` and `[i]`."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return [self.items[n] for n in numbers]

    def name(self, number: int) -> str:
        return f"record {number}"

    def fingerprint(self) -> str:
        """By content where it is plain data, else by kind and length."""
        if not isinstance(self.items, list | tuple):
            return f"{type(self.items).__module__}.{type(self.items).__qualname__}:{len(self)}"
        option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
        try:
            return hashing.content_id(orjson.dumps(item, option=option) for item in self.items)
        except TypeError:
            return f"objects:{len(self)}"


class HFRecords:
    """A datasets.Dataset, read as it reads itself: its format, transforms and decoded features are kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return list(self.dataset.__getitems__([int(n) for n in numbers])) if len(numbers) else []

    def name(self, number: int) -> str:
        return f"record {number}"

    def fingerprint(self) -> str:
        return HFDataset(self.dataset.with_format(None)).fingerprint()


class JsonRecords:
    """JSON-lines files, each line as it was written."""

    def __init__(self, paths: Any) -> None:
        self.lines = LineFiles(paths, limits=LIMITS, suffixes=SUFFIXES)

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
        if not json_fields.shallow(record, LIMITS.json_depth):
            raise RecordError(
                f"at most {LIMITS.json_depth} levels of JSON", got="more", where=self.name(number), fix="flatten it"
            )
        return record

    def name(self, number: int) -> str:
        at = self.lines.locate(int(number))
        return place(at["file"], at["line"], at["offset"])

    def fingerprint(self) -> str:
        return hashing.content_id(["json lines", *(filesystem.file_id(path) for path in self.lines.paths)])


class SourceRecords:
    """A penstock source, or a pipeline's rows."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        columns = self.source.read(np.asarray(numbers, np.int64))
        return [row_of(columns, i) for i in range(len(numbers))]

    def name(self, number: int) -> str:
        try:
            facts = self.source.locate(int(number))
        except PenstockError as error:  # a pipeline may have to make the record to say where it is from
            facts = {"record": number, "at": error.where}
        return ", ".join(f"{k} {v}" for k, v in facts.items())

    def fingerprint(self) -> str:
        return str(self.source.fingerprint())


def records_of(data: Any) -> Records:
    """The records of whatever holds them; what cannot be read by number is refused, with what to do.

    >>> records_of([{"a": 1}]).read([0])
    [{'a': 1}]
    """
    datasets = sys.modules.get("datasets")  # whoever holds one of its objects has imported it
    if datasets is not None and isinstance(data, datasets.Dataset):
        return HFRecords(data)
    if datasets is not None and isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise UsageError(
            "one split of a dataset",
            got=f"a {type(data).__name__} of {', '.join(map(repr, data))}",
            fix=f"choose one: dataset[{next(iter(data), 'train')!r}]",
        )
    if isinstance(data, str | os.PathLike):
        return _file_records(os.fspath(data))
    if _are_paths(data):
        return JsonRecords([os.fspath(path) for path in data])
    _refuse_tables(data)
    if hasattr(data, "definition") and hasattr(data, "rows"):
        return SourceRecords(data.rows())
    if all(hasattr(data, verb) for verb in ("read", "fingerprint", "locate", "__len__")):
        return SourceRecords(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping | bytes):
        return Listed(data)
    raise UsageError(
        "records that can be read by number: a datasets.Dataset, a list of dicts, a JSON-lines path or a pipeline",
        got=f"a {type(data).__name__} without len() and [i]",
        fix="use StreamingPreprocessedDataset, or create_preprocessed_dataset(..., streaming=True), for a stream",
    )


def read_each(records: Records, numbers: Sequence[int]) -> list[Any]:
    """Records by number, each in its place or the error that it raised, whatever kind of reading failed."""
    try:
        return records.read(numbers)
    except PenstockError as error:
        if len(numbers) == 1:
            return [error]
    except Exception as error:
        if len(numbers) == 1:
            return [_unreadable(error)]
    return [record for number in numbers for record in read_each(records, [number])]


def _unreadable(error: Exception) -> UserCodeError:
    wrapped = UserCodeError(
        "the record to be read",
        got=f"{type(error).__name__}: {str(error)[:300]}",
        fix="mend the data; skip_errors=True leaves such records out and counts them",
    )
    wrapped.__cause__ = error
    return wrapped


def _refuse_tables(data: Any) -> None:
    """Tables in memory have a length and `[i]`, but give columns, or fail."""
    library, kind = type(data).__module__.partition(".")[0], type(data).__name__
    if (library, kind) in _TABLES:
        raise UsageError("records, one dict each", got=f"a {library} {kind}", fix=_TABLES[library, kind])


def _are_paths(data: Any) -> bool:
    """Whether a list holds the names of JSON-lines files, not records."""
    return (
        isinstance(data, list | tuple)
        and len(data) > 0
        and all(isinstance(item, os.PathLike) or (isinstance(item, str) and item.endswith(SUFFIXES)) for item in data)
    )


def _file_records(path: str) -> Records:
    if not path.endswith(".json"):
        return JsonRecords(path)
    with filesystem.open_read(path) as file:
        head = file.read(64).lstrip()
        if not head.startswith(b"["):
            return JsonRecords(path)
    size = filesystem.stamp(path).size
    if size > LIMITS.record_bytes:
        raise LimitError(
            f"a JSON array of at most {LIMITS.record_bytes} bytes",
            got=f"{size}",
            where=path,
            fix="write one record a line (.jsonl), which is read piece by piece",
        )
    with filesystem.open_read(path) as file:
        chunks = []
        while block := file.read(1 << 22):
            chunks.append(block)
    try:
        return Listed(orjson.loads(b"".join(chunks)))
    except orjson.JSONDecodeError as error:
        raise DataError("a JSON array of records", got=str(error), where=path, fix="repair the file") from error
