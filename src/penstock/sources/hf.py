"""A Hugging Face `datasets.Dataset` as a source: batched reads straight from its Arrow table.

Numbers and lists of numbers come without a Python object per value; an index mapping (`select`, `shuffle`, `filter`)
and a choice of columns (`with_format(columns=...)`) are kept. Images and audio come as stored: a dict of `bytes` and
`path`. Costs nothing to open. A read slices one row at a time out of memory-mapped Arrow (about 4 us a row) and joins
the slices; the fingerprint reads all content once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing, local_files
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.optional import need
from penstock.sources.arrow import kind_of, to_columns
from penstock.sources.formats import Options
from penstock.sources.splits import choose
from penstock.store.doctable import check_range

_HASHED_ROWS = 16_384


def load_saved(path: str | os.PathLike[str]) -> Any:
    """What `save_to_disk` wrote into a folder (a dataset, or a dict of splits), or one Arrow file; memory-mapped."""
    datasets = need("datasets", extra="hf", purpose="for Hugging Face datasets")
    name = os.fspath(path)
    return datasets.load_from_disk(name) if os.path.isdir(name) else datasets.Dataset.from_file(name)


def choose_split(dataset: Any, split: str) -> Any:
    """One split of a dict of splits; a dataset without splits as it is."""
    if not isinstance(dataset, dict):
        return dataset
    return dataset[choose(list(dataset), split, f"a {type(dataset).__name__}")]


def several_splits(dataset: Any) -> UsageError:
    """The error for a dict of splits where one dataset is expected."""
    return UsageError(
        "one split of a dataset",
        got=f"a {type(dataset).__name__} of {', '.join(map(repr, dataset))}",
        fix=f"choose one: dataset[{next(iter(dataset), 'train')!r}]",
    )


def open_path(path: str | os.PathLike[str], options: Options) -> HFDataset:
    """The opener of the registry."""
    return HFDataset(choose_split(load_saved(path), options.split))


class HFDataset:
    """Records of a `datasets.Dataset`.

    >>> import datasets
    >>> source = HFDataset(datasets.Dataset.from_dict({"text": ["one", "two"], "ids": [[1, 2], [3]]}))
    >>> source.read(np.array([1, 0]))["ids"].tolist(), source.read(np.array([1]))["text"].tolist()
    ([[3], [1, 2]], ['two'])
    """

    def __init__(self, dataset: Any) -> None:
        datasets = need("datasets", extra="hf", purpose="for from_hf()")
        if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
            raise several_splits(dataset)
        if isinstance(dataset, str | os.PathLike):
            raise UsageError(
                "a datasets.Dataset",
                got=f"the path or name {os.fspath(dataset)!r}",
                where="from_hf",
                fix="datasets.load_from_disk(path) of a saved folder, or datasets.load_dataset(name, split=...)",
            )
        if not isinstance(dataset, datasets.Dataset):
            raise UsageError(
                "a datasets.Dataset, which is read by number",
                got=type(dataset).__name__,
                fix="load it without streaming=True, or use StreamingPreprocessedDataset for a stream",
            )
        if dataset.format["type"] == "custom":
            raise UsageError(
                "a datasets.Dataset without a transform, which would not be applied here",
                got="one with set_transform() or with_transform()",
                fix="pass dataset.with_format(None) and put the function in .map()",
            )
        if not len(dataset):
            raise UsageError("a dataset with at least one record", got="an empty one", fix="check how it was filtered")
        self.dataset = dataset
        schema = dataset.data.schema
        where = f"datasets.Dataset {dataset.info.dataset_name or ''}".strip()
        self._kinds = {name: kind_of(schema.field(name), where) for name in dataset.format["columns"]}
        self._where, self._id = where, ""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._kinds)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per column of the dataset; a row with a null among its numbers is a bad record."""
        asked = check_range(indices, len(self))
        if not len(asked):
            return to_columns(self._table(np.zeros(1, np.int64)).slice(0, 0), self._kinds)[0]
        columns, bad = to_columns(self._table(asked), self._kinds)
        if bad:
            raise BadRecords([self._bad(asked, *one) for one in sorted(bad, key=lambda b: b[0])])
        return columns

    def _table(self, asked: NDArray[np.int64]) -> Any:
        rows = self._stored(asked)
        return self.dataset.data.fast_gather(rows).select(self.columns)

    def _stored(self, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the table behind record numbers: the same, unless the dataset keeps an index mapping."""
        mapping = self.dataset._indices
        if mapping is None:
            return asked
        return np.asarray(mapping.fast_gather(asked).column(0).to_numpy(), np.int64)

    def _bad(self, asked: NDArray[np.int64], row: int, expected: str, got: str) -> RecordError:
        return RecordError(
            expected,
            got=got,
            where=f"{self._where}, record {int(asked[row])}",
            fix="drop such records with dataset.filter(), or add .skip_errors()",
            row=row,
        )

    def fingerprint(self) -> str:
        """Hash of column names, types and all values in order, however the table is cut into pieces."""
        if not self._id:
            parts: list[Any] = ["hf", orjson.dumps(list(self._kinds.items()))]
            for lo in range(0, len(self), _HASHED_ROWS):
                rows = np.arange(lo, min(len(self), lo + _HASHED_ROWS))
                if self.dataset._indices is None:
                    table = self.dataset.data.fast_slice(lo, len(rows))
                else:
                    table = self.dataset.data.fast_gather(self._stored(rows))
                parts.append(hashing.content_id(p for name in self.columns for p in _parts(table.column(name))))
            self._id = hashing.content_id(parts)
        return self._id

    def recall_fingerprint(self, folder: Path) -> None:
        """Reads the fingerprint from `folder` where the dataset's files have not changed; else computes and keeps it.

        Hashing content takes about a second for each few gigabytes, at every start. A dataset in files is recognised by
        its own fingerprint, its columns and each file's path, size and modification time. Data in memory is not kept.
        """
        key = "" if self._id else self._files_key()
        if not key:
            return
        path = folder / key
        known = path.read_text() if path.is_file() else ""
        if re.fullmatch(r"[0-9a-f]{32}", known):
            self._id = known
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        local_files.atomic_write(str(path), self.fingerprint().encode())

    def _files_key(self) -> str:
        """What is known of the dataset without reading it; empty if it is not all in files."""
        stamps: list[str | int] = []
        for entry in self.dataset.cache_files:
            path = Path(entry["filename"])
            try:
                found = os.stat(path)
            except OSError:
                return ""
            stamps += [str(path.resolve()), found.st_size, found.st_mtime_ns]
        return hashing.content_id([str(self.dataset._fingerprint), *self.columns, *stamps]) if stamps else ""

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "Hugging Face dataset",
            "records": len(self),
            "bytes": int(self.dataset.data.nbytes),
            "columns": self.columns,
        }

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": int(index), "row": int(self._stored(np.array([index]))[0])}

    def __repr__(self) -> str:
        return f"HFDataset({len(self)} records: {', '.join(self.columns)})"


def _parts(column: Any) -> list[Any]:
    """What a column holds, as things that can be hashed: lengths, values, and where nulls are."""
    pa = need("pyarrow", extra="parquet")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if hasattr(array, "storage"):
        array = array.storage
    types, kind = pa.types, array.type
    nulls: list[Any] = []
    if array.null_count:
        nulls = [np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))]
        array = array.drop_null()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return [*nulls, array.to_numpy(zero_copy_only=False)]
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        lengths = pa.compute.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets, data = np.frombuffer(array.buffers()[1], _offset_type(kind, types)), array.buffers()[2]
        start, stop = (int(offsets[array.offset + i]) for i in (0, len(array))) if len(array) else (0, 0)
        return [*nulls, lengths, b"" if data is None else np.frombuffer(data, np.uint8)[start:stop]]
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        return [*nulls, lengths, *_parts(array.flatten())]
    if types.is_struct(kind):
        fields = zip((kind.field(i).name for i in range(kind.num_fields)), array.flatten(), strict=True)
        return [*nulls, *(p for name, field in fields for p in [name, *_parts(field)])]
    return [*nulls, *(repr(value) for value in array.to_pylist())]


def _offset_type(kind: Any, types: Any) -> Any:
    return np.int64 if types.is_large_string(kind) or types.is_large_binary(kind) else np.int32
