"""A TensorFlow Datasets split as a source: records by number, without TensorFlow.

ArrayRecord and Parquet files are read through TFDS's own random access; TFRecord files through an index made when the
split is opened (see `sources.tfrecord`). Examples are decoded by TFDS's NumPy decoders, one at a time: 20 to 100 us a
record, most of it protocol buffers. Text comes as str, numbers as arrays, sequences of numbers as `Ragged`. The
fingerprint hashes the split's files once.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Column, Columns, Ragged, stack, strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.optional import need
from penstock.sources.formats import Options
from penstock.sources.tfrecord import RecordFiles
from penstock.storage import filesystem
from penstock.store.doctable import check_range


def tfds_module() -> Any:
    """TFDS itself, or the exact command that installs it."""
    return need("tensorflow_datasets", extra="tfds", purpose="for TFDS datasets")


def open_path(folder: str | os.PathLike[str], options: Options) -> TFDSource:
    """The opener of the registry."""
    return TFDSource.open(folder, options.split)


class TFDSource:
    """Records of one split. Made from a TFDS data source, or with `open` from a builder or a prepared folder."""

    def __init__(self, data_source: Any) -> None:
        self.info, self.split = data_source.dataset_info, str(data_source.split)
        self._open(data_source.data_source)

    @classmethod
    def open(cls, origin: Any, split: str = "train") -> TFDSource:
        """From a prepared folder or a builder whose data is prepared. `split` may be cut: "train[:10%]"."""
        source = cls.__new__(cls)
        builder = origin
        if isinstance(origin, str | os.PathLike):
            builder = tfds_module().builder_from_directory(os.fspath(origin))
        source.info, source.split = builder.info, split
        known = list(builder.info.splits)
        if split.partition("[")[0] not in known:
            raise UsageError(
                "a split of the dataset",
                got=repr(split),
                where=str(builder.data_path),
                fix=f"split= one of {', '.join(map(repr, known)) or 'none: it is not prepared'}",
            )
        if builder.info.file_format.value == "tfrecord":
            source._open(RecordFiles(source._spans()))
        else:
            source._open(builder.as_data_source(split=split).data_source)
        return source

    def _open(self, raw: Any) -> None:
        self._raw, self._features = raw, self.info.features
        tfds = tfds_module()
        self._kinds: dict[str, Any] = {}
        for name, feature in sorted(self._features.items()):  # stored without an order
            self._kinds[name] = str if isinstance(feature, tfds.features.Text) else _number_type(feature)
        self._size, self._id = len(raw), ""
        if not self._size:
            raise UsageError("a split with at least one record", got="an empty one", where=self._where())

    @property
    def columns(self) -> list[str]:
        """Names of the columns: the top-level features."""
        return list(self._kinds)

    def __len__(self) -> int:
        return self._size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per feature. A record that cannot be decoded is a bad record."""
        asked = check_range(indices, self._size)
        rows: list[dict[str, Any]] = []
        bad: list[RecordError] = []
        for row, (number, data) in enumerate(zip(asked, self._bytes(asked), strict=True)):
            try:
                rows.append(self._decode(data))
            except Exception as error:  # whatever its decoders raise, the record is bad
                bad.append(self._bad(row, int(number), error))
        if bad:
            raise BadRecords(bad)
        return {name: _column([r[name] for r in rows], kind) for name, kind in self._kinds.items()}

    def _bytes(self, asked: NDArray[np.int64]) -> Any:
        return self._raw.__getitems__([int(i) for i in asked]) if len(asked) else []

    def _decode(self, data: Any) -> dict[str, Any]:
        example = self._features.deserialize_example_np(data)
        return {n: bytes(example[n]).decode() if k is str else example[n] for n, k in self._kinds.items()}

    def _bad(self, row: int, number: int, error: Exception) -> RecordError:
        return RecordError(
            "an example that TFDS can decode",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            where=f"{self._where()}, record {number}",
            fix="build the dataset again, or add .skip_errors()",
            row=row,
        )

    def _where(self) -> str:
        return f"TFDS {self.info.full_name}, split {self.split!r}"

    def _spans(self) -> list[tuple[str, int, int]]:
        parts = self.info.splits[self.split].file_instructions
        return [(str(p.filename), int(p.skip), int(p.take)) for p in parts]

    def fingerprint(self) -> str:
        """Hash of the files' content, the features and which part of the files the split is."""
        if not self._id:
            parts: list[Any] = ["tfds", orjson.dumps(self._features.to_json(), option=orjson.OPT_SORT_KEYS)]
            for path, skip, take in self._spans():
                parts += [filesystem.file_id(path), skip, take]
            self._id = hashing.content_id(parts)
        return self._id

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "TFDS dataset",
            "name": self.info.full_name,
            "split": self.split,
            "records": self._size,
            "columns": self.columns,
        }

    def locate(self, index: int) -> dict[str, Any]:
        left = int(index)
        for path, skip, take in self._spans():
            if left < take:
                return {"file": os.path.basename(path), "record": skip + left}
            left -= take
        return {"record": int(index)}

    def __getstate__(self) -> tuple[str, str]:
        return str(self.info.data_dir), self.split

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.__dict__.update(TFDSource.open(*state).__dict__)

    def __repr__(self) -> str:
        return f"TFDSource({self.info.full_name}, {self.split!r}, {self._size} records)"


class _Numbers(NamedTuple):
    """A feature that is numbers: their type, and whether rows differ in length."""

    dtype: np.dtype[Any]
    ragged: bool


def _number_type(feature: Any) -> _Numbers | None:
    """None for text, dicts and the rest."""
    shape = feature.get_tensor_info()
    dtype = getattr(shape, "np_dtype", None)
    if dtype is None:
        return None
    found = np.dtype(dtype)
    return _Numbers(found, tuple(shape.shape) == (None,)) if found.kind in "biuf" else None


def _column(values: list[Any], kind: Any) -> Column:
    if kind is str:
        return strings(values)
    if kind is None:
        return stack(values) if values else strings(values)
    arrays = [np.asarray(value, kind.dtype) for value in values]
    if kind.ragged:
        return Ragged.of(arrays, kind.dtype)
    return stack(arrays) if arrays else np.empty(0, kind.dtype)
