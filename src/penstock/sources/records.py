"""Records by number from any kind of data: the one place that decides what a user's data is.

`data_kind` names what an object is. `records_of` reads it record by record, each as it is (dicts, strings, whatever
the user's dataset returns); `sources.record_source` reads it as columns, `sources.record_texts` as JSON texts in one
pass, and `torch_data.stream_input` as a stream. All of them switch on `data_kind`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from penstock.core import hashing
from penstock.core.columns import row as row_of
from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.core.plain_json import identity_json
from penstock.core.signals import surface
from penstock.sources import formats, hf, splits
from penstock.sources.base import PipelineLike, Source
from penstock.sources.json_records import JsonRecords, begins_with, read_array
from penstock.sources.tables import TableSource
from penstock.storage import filesystem

DataKind = Literal[
    "paths", "pipeline", "hf", "hf splits", "hf stream", "tfds", "source", "table", "mapping", "sequence", "iterator",
    "stream", "other",
]  # fmt: skip
_TABLES = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")}
_HF = {"Dataset": "hf", "IterableDataset": "hf stream", "DatasetDict": "hf splits", "IterableDatasetDict": "hf splits"}
PLAIN = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def data_kind(data: Any) -> DataKind:
    """What an object is, without importing any library or reading any data.

    "paths" is a path or a list of them. "sequence" has `len` and `[i]`. "iterator" can be read once; "stream" can be
    read again: an iterable, or a function that returns one.

    >>> data_kind(["a.jsonl", "b.jsonl"]), data_kind([{"n": 1}]), data_kind(iter([])), data_kind(lambda: iter([]))
    ('paths', 'sequence', 'iterator', 'stream')
    """
    if isinstance(data, str | os.PathLike):
        return "paths"
    if isinstance(data, list | tuple):
        return "paths" if formats.names_files(data) else "sequence"
    for kind in type(data).__mro__:
        library = kind.__module__.partition(".")[0]
        if library == "datasets" and kind.__name__ in _HF:
            return _HF[kind.__name__]  # type: ignore[return-value]
        if kind.__module__.startswith("tensorflow_datasets.core.data_sources"):
            return "tfds"
        if (library, kind.__name__) in _TABLES:
            return "table"
    if isinstance(data, PipelineLike):
        return "pipeline"
    if isinstance(data, Source):
        return "source"
    if isinstance(data, Mapping):
        return "mapping"
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, type):  # DuckDB, Ibis, a RecordBatchReader...
        return "table"
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, bytes):
        return "sequence"
    if isinstance(data, Iterator):
        return "iterator"
    if isinstance(data, Iterable) and not isinstance(data, bytes | set | frozenset):  # a set has no fixed order
        return "stream"
    return "stream" if callable(data) else "other"


class Records(Protocol):
    """Records by number. `read` returns, for each number, the record or the error that stands in its place."""

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[Any]: ...

    def name(self, number: int) -> str: ...

    def fingerprint(self) -> str: ...


class ListRecords:
    """A sequence in memory, or anything with `len` and `[i]`. `name` is that of the file it was read from, if any."""

    def __init__(self, items: Sequence[Any], path: str = "") -> None:
        self.items, self.path = items, path

    def __len__(self) -> int:
        return len(self.items)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return [self.items[n] for n in numbers]

    def name(self, number: int) -> str:
        return f"record {number}"

    def fingerprint(self) -> str:
        """By content where it is plain data, else by class and length."""
        if not isinstance(self.items, list | tuple):
            return f"{type(self.items).__module__}.{type(self.items).__qualname__}:{len(self)}"
        try:
            return hashing.content_id(identity_json(item, PLAIN) for item in self.items)
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
        return hf.HFDataset(self.dataset.with_format(None)).fingerprint()


class SourceRecords:
    """The rows of a source, or of a pipeline, as dicts."""

    def __init__(self, source: Source) -> None:
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


def records_of(data: Any, *, file_format: str | None = None, storage_options: filesystem.Options = None) -> Records:
    """The records of `data`; what cannot be read by number is refused.

    Args:
        data: a path or list of paths (JSON lines, a JSON array, Parquet, a saved Hugging Face or TFDS dataset), a
            datasets.Dataset, a list or other sequence of records, a pipeline, or a source.
        file_format: `data` are paths, of files of this format.
        storage_options: of URLs.

    >>> records_of([{"a": 1}]).read([0])
    [{'a': 1}]
    """
    kind = data_kind(data) if file_format is None else "paths"
    if kind == "paths":
        return _file_records(data, file_format, storage_options)
    if kind == "hf":
        return HFRecords(data)
    if kind == "hf splits":
        raise hf.several_splits(data)
    if kind == "pipeline":
        data.definition.refuse_shard("a dataset of its records")
        return SourceRecords(data.rows())
    if kind == "source":
        return SourceRecords(data)
    if kind in ("sequence", "tfds"):
        return ListRecords(data)
    if kind == "table":
        return SourceRecords(TableSource(data))
    raise UsageError(
        "records that can be read by number: a datasets.Dataset, a list of dicts, a JSON-lines path or a pipeline",
        got="a dict of columns" if kind == "mapping" else f"a {type(data).__name__} without len() and [i]",
        fix="penstock.from_arrays(columns)"
        if kind == "mapping"
        else "pass list(records) if they are few; StreamingPreprocessedDataset, or streaming=True, reads a stream",
    )


def read_each(records: Records, numbers: Sequence[int]) -> list[Any]:
    """Records by number, each in its place or the error that it raised, whatever kind of reading failed."""
    try:
        return records.read(numbers)
    except PenstockError as error:
        if len(numbers) == 1:
            return [error]
    except Exception as error:
        surface(error)
        if len(numbers) == 1:
            return [_unreadable(error)]
    return [record for number in numbers for record in read_each(records, [number])]


def _unreadable(error: Exception) -> UserCodeError:
    wrapped = UserCodeError(
        "the record to be read",
        got=f"{type(error).__name__}: {str(error)[:300]}",
        fix="fix the data; skip_errors=True leaves such records out and counts them",
    )
    wrapped.__cause__ = error
    return wrapped


def _file_records(paths: Any, file_format: str | None, storage_options: filesystem.Options) -> Records:
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = formats.FORMATS[file_format] if file_format is not None else formats.format_of(names, storage_options)
    files = splits.data_files(names, found.suffixes, storage_options) if found.one_pass else names
    splits.refuse_several(names, files)
    if found.name in ("jsonl", "json") or (
        found.name == "text" and begins_with(files[0], b"{", storage_options)
    ):  # JSON under another name
        array = read_array(files, storage_options)
        return JsonRecords(files, storage_options) if array is None else ListRecords(array, files[0])
    if found.kind != "records" or (len(names) > 1 and found not in formats.FILES):
        raise UsageError(
            "records with named fields: JSON lines, a JSON array or Parquet",
            got=found.title,
            where=", ".join(names[:3]),
            fix=f"write the records as JSON lines, or pass penstock.{found.read}",
        )
    if found.opener == "hf:open_path":
        return records_of(hf.load_saved(names[0]))
    options = formats.Options(every_field=True, storage_options=storage_options)
    return SourceRecords(found.open(files if found in formats.FILES else files[0], options))
