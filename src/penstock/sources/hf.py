"""A Hugging Face `datasets.Dataset` as a source: batched reads straight from its Arrow table.

Numbers and lists of numbers come without a Python object per value; an index mapping (`select`, `shuffle`, `filter`)
and a choice of columns (`with_format(columns=...)`) are kept. Images and audio come as stored: a dict of `bytes` and
`path`. Costs nothing to open. A read slices one row at a time out of memory-mapped Arrow (about 4 us a row) and joins
the slices; the fingerprint reads all content once.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing, local_files
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, FileMissing, PenstockError, RecordError, StorageError, UsageError
from penstock.core.mapped import MappedFile, map_file
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.sources.arrow import kind_of, return_memory, to_columns
from penstock.sources.arrow_content import content_parts
from penstock.sources.block_bytes import SizedByBlocks, TableBytes
from penstock.sources.formats import Options
from penstock.sources.splits import choose
from penstock.storage.filesystem import local_only
from penstock.store.doctable import check_range

_HASHED_ROWS = 16_384


def load_saved(path: str | os.PathLike[str]) -> Any:
    """What `save_to_disk` wrote into a folder (a dataset, or a dict of splits), or one Arrow file; memory-mapped."""
    datasets = need("datasets", extra="hf", purpose="for Hugging Face datasets")
    name = os.fspath(path)
    return datasets.load_from_disk(name) if os.path.isdir(name) else datasets.Dataset.from_file(name)


def load_named(name: str | os.PathLike[str], split: str | None, config: str | None) -> Any:
    """A dataset by its name on the Hugging Face hub or in the local cache, or of a folder; one split of it."""
    datasets = need("datasets", extra="hf", purpose="for Hugging Face datasets")
    text = local_only(name, "a dataset by name or folder")
    saved = any(os.path.isfile(os.path.join(text, marker)) for marker in ("state.json", "dataset_dict.json"))
    if not os.path.exists(text):
        _refuse_unreachable(text, datasets)
    try:
        found = load_saved(text) if saved else datasets.load_dataset(text, config, split=split)
    except Exception as error:
        surface(error)
        raise _not_loaded(text, split, error, datasets) from error
    if isinstance(found, dict) and len(found) == 1 and split is None:
        return next(iter(found.values()))
    return choose_split(found, split) if split is not None else found


def _refuse_unreachable(name: str, datasets: Any) -> None:
    """Refuses a missing folder that is no name of the hub, or one that nothing can answer for, before any retry."""
    hub = need("huggingface_hub", extra="hf")
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        got = f"no file or folder of that name in {os.getcwd()}; the hub has names such as 'owner/name'"
        raise FileMissing(f"the dataset {name!r}", got=got, fix="check its name")
    kept = (
        os.path.join(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___")),
        os.path.join(hub.constants.HF_HUB_CACHE, "datasets--" + name.replace("/", "--")),
    )
    if getproxies() or any(map(os.path.exists, kept)):
        return
    host = urlsplit(hub.constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        surface(error)
        raise StorageError(
            f"the dataset {name!r}",
            got=f"no file or folder of that name in {os.getcwd()}, none in the cache, and no connection to {host}",
            fix="check its name, or the connection",
        ) from error


def _not_loaded(name: str, split: str | None, error: Exception, datasets: Any) -> PenstockError:
    first: BaseException = error
    while isinstance(error, datasets.exceptions.DatasetGenerationError) and first.__cause__ is not None:
        first = first.__cause__  # of a folder: DatasetGenerationError itself says nothing
    got = f"{type(error).__name__}: {' '.join(str(first).split())[:300]}"
    if not os.path.exists(name):
        got = f"no file or folder of that name in {os.getcwd()}, and from the hub {got}"
    missing = (datasets.exceptions.DatasetNotFoundError, datasets.exceptions.DataFilesNotFoundError, FileNotFoundError)
    if isinstance(error, missing):
        return FileMissing(
            f"the dataset {name!r}", got=got, fix="check its name; HF_HUB_OFFLINE=1 finds cached ones only"
        )
    if isinstance(error, ValueError | KeyError):
        return UsageError(
            f"a split and configuration of the dataset {name!r}", got=got, where=f"split={split!r}",
            fix='from_hf(name, split="train", config="en")',
        )  # fmt: skip
    fix = "check the connection and your access to it, or try again"
    if os.path.exists(name):
        fix = "repair that, or read the folder without datasets: penstock.read_audio(folder), read_images, read_parquet"
    return StorageError(f"the dataset {name!r}", got=got, fix=fix)


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


def _mapped_files(dataset: Any) -> list[MappedFile]:
    """The files of a dataset and of its index mapping; one that was deleted stays mapped as it is."""
    found = []
    for entry in dataset.cache_files:
        try:
            with open(entry["filename"], "rb") as file:
                found.append(map_file(entry["filename"], file.fileno()))
        except FileNotFoundError:
            continue
    return found


class HFDataset(SizedByBlocks):
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
                fix='penstock.from_hf(name, split="train")',
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
        self._files = _mapped_files(dataset)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._kinds)

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The names of ClassLabel features."""
        classes = need("datasets", extra="hf").ClassLabel
        features = {name: self.dataset.features[name] for name in self.columns}
        return {name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, classes)}

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per column of the dataset; a row with a null among its numbers is a bad record."""
        self._check_files()
        asked = check_range(indices, len(self))
        if not len(asked):
            return to_columns(self._table(np.zeros(1, np.int64)).slice(0, 0), self._kinds)[0]
        columns, bad = to_columns(self._table(asked), self._kinds)
        if bad:
            raise BadRecords([self._bad(asked, *one) for one in sorted(bad, key=lambda b: b[0])])
        return columns

    def _check_files(self) -> None:
        """Raises if a file has been cut: reading what is mapped of it would end the process."""
        for file in self._files:
            file.check()

    def _table(self, asked: NDArray[np.int64]) -> Any:
        rows = self._stored(asked)
        return self.dataset.data.fast_gather(rows).select(self.columns)

    def _stored(self, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the table behind record numbers: the same, unless the dataset keeps an index mapping."""
        mapping = self.dataset._indices
        if mapping is None:
            return asked
        return np.asarray(mapping.fast_gather(asked).column(0).to_numpy(), np.int64)

    def _measure(self) -> TableBytes:
        return TableBytes(self.dataset.data.column(name) for name in self.columns)

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """See `sources.base.SizedRows`."""
        self._check_files()
        return super().bytes_of_rows(self._stored(indices))

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
            self._check_files()
            parts: list[Any] = ["hf", orjson.dumps(list(self._kinds.items()))]
            for lo in range(0, len(self), _HASHED_ROWS):
                rows = np.arange(lo, min(len(self), lo + _HASHED_ROWS))
                if self.dataset._indices is None:
                    table = self.dataset.data.fast_slice(lo, len(rows))
                else:
                    table = self.dataset.data.fast_gather(self._stored(rows))
                parts.append(hashing.content_id(p for name in self.columns for p in content_parts(table.column(name))))
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

    def in_memory(self) -> Any:
        """See `sources.base.MemorySource`; of a dataset in files nothing is."""
        return self.dataset

    def use_moved(self, values: Any) -> None:
        """See `sources.base.MemorySource`."""
        self.dataset = values
        return_memory()

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "Hugging Face dataset",
            "records": len(self),
            "bytes": int(self.dataset.data.nbytes),
            "columns": self.columns,
        }

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": int(index), "row": int(self._stored(np.array([index]))[0])}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _files=_mapped_files(state["dataset"]))

    def __repr__(self) -> str:
        return f"HFDataset({len(self)} records: {', '.join(self.columns)})"
