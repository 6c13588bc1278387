"""A TensorFlow Datasets split as a source: records by number, without TensorFlow.

ArrayRecord and Parquet files are read through TFDS's own random access; TFRecord files through an index made when the
split is opened (see `sources.tfrecord`). Examples are decoded by TFDS's NumPy decoders, one at a time: 20 to 100 us a
record, most of it protocol buffers. Text comes as str, numbers as arrays, sequences of numbers as `Ragged`. A feature
with TFDS's `SkipDecoding` comes as it is stored: images as encoded bytes, for `.decode_images()`. The fingerprint
hashes the split's files once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Column, Columns, Ragged, stack, strings
from penstock.core.errors import BadRecords, DataError, FileMissing, PenstockError, RecordError, StoreError, UsageError
from penstock.core.optional import need
from penstock.core.read_budget import pieces, spend_held
from penstock.core.signals import surface
from penstock.sources.array_record import ArrayRecordFiles
from penstock.sources.formats import Options
from penstock.sources.tfds_folders import prepared_folder
from penstock.sources.tfrecord import RecordFiles
from penstock.storage import filesystem
from penstock.storage.file_ids import file_id
from penstock.storage.filesystem import local_only
from penstock.store.doctable import check_range


def tfds_module() -> Any:
    """TFDS itself, or the exact command that installs it."""
    return need("tensorflow_datasets", extra="tfds", purpose="for TFDS datasets")


def open_path(folder: str | os.PathLike[str], options: Options) -> TFDSource:
    """The opener of the registry."""
    return TFDSource.open(folder, options.split)


class TFDSource:
    """Records of one split. Made with `open` from a data source, a builder, a prepared folder or a name."""

    def __init__(self, data_source: Any) -> None:
        self.info, self.split = data_source.dataset_info, str(data_source.split)
        _check_plain(data_source, self._where())
        self._skipped = _skipped(data_source.decoders, self._where())
        with naming(str(self.info.data_dir)):
            self._open(data_source.data_source)

    @classmethod
    def open(cls, origin: Any, split: str = "train", decoders: Any = None) -> TFDSource:
        """From a data source, a builder whose data is prepared, a prepared folder, or the name of a prepared dataset.

        Args:
            origin: a folder may also be the one above its only version; a name is looked for in TFDS's own place.
            split: may be cut: "train[:10%]". A data source has its own.
            decoders: features that stay encoded, as TFDS spells it: {"image": tfds.decode.SkipDecoding()}.
        """
        if is_data_source(origin):
            if split not in ("train", str(origin.split)) or decoders is not None:
                raise UsageError(
                    f"the data source's own split {str(origin.split)!r} and decoders",
                    got=f"split={split!r}, decoders={decoders!r}",
                    where="from_tfds",
                    fix="set them in as_data_source(split=..., decoders=...)",
                )
            return cls(origin)
        builder = _builder(origin) if isinstance(origin, str | os.PathLike) else origin
        source = cls.__new__(cls)
        folder = str(getattr(builder, "data_path", origin))
        with naming(folder):
            source.info, source.split = builder.info, split
            source._skipped = _skipped(decoders, folder)
            known = list(builder.info.splits)
            if split.partition("[")[0] not in known:
                raise UsageError(
                    "a split of the dataset",
                    got=repr(split),
                    where=folder,
                    fix=f"split= one of {', '.join(map(repr, known)) or 'none: it is not prepared'}",
                )
            source._check_files(folder)
            if builder.info.file_format.value == "tfrecord":
                source._open(RecordFiles(source._spans()))
            else:
                source._open(builder.as_data_source(split=split).data_source)
        return source

    def _check_files(self, folder: str) -> None:
        missing = [path for path, _, _ in self._spans() if not os.path.isfile(path)]
        if missing:
            raise FileMissing(
                f"the files of split {self.split!r}",
                got=f"{len(missing)} missing, first {os.path.basename(missing[0])}",
                where=folder,
                fix="copy the folder again, or prepare the dataset: it holds only a description of the data",
            )

    def _open(self, raw: Any) -> None:
        self._raw, self._features = raw, self.info.features
        tfds = tfds_module()
        self._kinds: dict[str, Any] = {}
        for name, feature in sorted(self._features.items()):  # stored without an order
            text = isinstance(feature, tfds.features.Text)
            self._kinds[name] = bytes if name in self._skipped else str if text else _number_type(feature)
        unknown = sorted(set(self._skipped) - set(self._kinds))
        if unknown:
            raise UsageError(
                "decoders for features of the dataset",
                got=", ".join(unknown),
                where=self._where(),
                fix=f"one of {', '.join(self._kinds)}",
            )
        self._decoders = {name: tfds.decode.SkipDecoding() for name in self._skipped} or None
        self._size, self._id = len(raw), ""
        spans = self._spans()
        self._files = [(path, filesystem.stamp(path)) for path, _, _ in spans]
        self._firsts = np.cumsum([0, *(take for _, _, take in spans)])
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
                spend_held(rows[-1])
            except Exception as error:  # whatever its decoders raise, the record is bad
                surface(error)
                bad.append(self._bad(row, int(number), error))
        if bad:
            raise BadRecords(bad)
        return {name: _column([r[name] for r in rows], kind) for name, kind in self._kinds.items()}

    def _bytes(self, asked: NDArray[np.int64]) -> list[Any]:
        """The stored form of each record, or the error that stands in its place."""
        numbers = [int(i) for i in asked]
        try:
            with naming(str(self.info.data_dir)):
                found = list[Any]()
                for some in pieces(numbers):
                    records = self._raw.__getitems__(some)
                    spend_held([*records])
                    found += records
            self._check_unchanged(asked)
            return found
        except StoreError:  # a file was cut: no record's fault
            raise
        except DataError as error:
            self._check_whole(asked)
            return [error] if len(numbers) == 1 else [one for i in asked for one in self._bytes(i[None])]

    def _check_unchanged(self, asked: NDArray[np.int64]) -> None:
        """Raises where a file of these records was cut or changed: its reader returns records that are empty."""
        if self.info.file_format.value == "tfrecord":
            return  # read by us, with checks of its own
        for path, stamp in self._files_of(asked):
            try:
                filesystem.check_unchanged(path, stamp)
            except DataError as error:
                raise StoreError(error.expected, got=error.got, where=error.where, fix=error.fix) from error

    def _check_whole(self, asked: NDArray[np.int64]) -> None:
        """Raises where a file of these records was cut or cannot be opened: that is no record's fault."""
        if self.info.file_format.value == "array_record":
            for path, _ in self._files_of(asked):
                ArrayRecordFiles(path)

    def _files_of(self, asked: NDArray[np.int64]) -> list[tuple[str, filesystem.Stamp]]:
        """The files that hold these records, with their stamps when the split was opened."""
        return [self._files[file] for file in np.unique(np.searchsorted(self._firsts, asked, side="right") - 1)]

    def _decode(self, data: Any) -> dict[str, Any]:
        if isinstance(data, DataError):
            raise data
        example = self._features.deserialize_example_np(data, decoders=self._decoders)
        return {n: bytes(example[n]).decode() if k is str else example[n] for n, k in self._kinds.items()}

    def _bad(self, row: int, number: int, error: Exception) -> RecordError:
        expected, got = "an example that TFDS can decode", f"{type(error).__name__}: {str(error)[:200]}"
        if isinstance(error, DataError):
            expected, got = error.expected, f"{error.got} ({error.where})"
        return RecordError(
            expected,
            got=got,
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
            parts += [f"encoded {name}" for name in sorted(self._skipped)]
            for path, skip, take in self._spans():
                parts += [file_id(path), skip, take]
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

    def __getstate__(self) -> tuple[str, str, tuple[str, ...]]:
        return str(self.info.data_dir), self.split, self._skipped

    def __setstate__(self, state: tuple[str, str, tuple[str, ...]]) -> None:
        folder, split, skipped = state
        decoders = {name: tfds_module().decode.SkipDecoding() for name in skipped} or None
        self.__dict__.update(TFDSource.open(folder, split, decoders).__dict__)

    def __repr__(self) -> str:
        return f"TFDSource({self.info.full_name}, {self.split!r}, {self._size} records)"


def is_data_source(data: Any) -> bool:
    """Whether an object is a data source of TFDS, without importing TFDS."""
    return any(kind.__module__.startswith("tensorflow_datasets.core.data_sources") for kind in type(data).__mro__)


@contextmanager
def naming(folder: str) -> Iterator[None]:
    """Whatever TFDS raises inside becomes an error that names the folder."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # RuntimeError, ValueError, DatasetInfoFileError, NotImplementedError, KeyError...
        surface(error)
        raise DataError(
            "a TFDS dataset that can be read",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            where=folder,
            fix="prepare it again with file_format='array_record', or copy the folder again",
        ) from error


def _builder(origin: str | os.PathLike[str]) -> Any:
    """The builder of a prepared folder, or of a dataset that is prepared where TFDS keeps its data."""
    name = local_only(origin, "the folder that TFDS prepared, which its readers open themselves")
    path = os.path.expanduser(name)
    if os.path.isdir(path) or not isinstance(origin, str) or name.startswith((os.sep, ".", "~")):
        folder = prepared_folder(path)
        with naming(folder):
            return tfds_module().builder_from_directory(folder)
    tfds = tfds_module()
    place = os.path.expanduser(str(tfds.core.constants.DATA_DIR))
    full = name.replace(":", "/", 1) if "/" not in name and not re.search(r":\d", name) else name
    try:
        return tfds.core.read_only_builder.builder_from_files(full)
    except Exception as error:  # not found, no version, several configs
        surface(error)
        there = ", ".join(sorted(os.listdir(place))[:20]) if os.path.isdir(place) else ""
        raise FileMissing(
            f"a prepared TFDS dataset {name!r}",
            got=f"{there or 'nothing'} in {place}",
            where=" ".join(str(error).split())[:200],
            fix=f"tfds.builder({name!r}, file_format='array_record').download_and_prepare(), or pass its folder",
        ) from error


def _check_plain(data_source: Any, where: str) -> None:
    method = data_source.deserialize_method
    if method.name != "DESERIALIZE_AND_DECODE":
        raise UsageError(
            "a data source of decoded examples",
            got=f"deserialize_method {method.name}",
            where=where,
            fix="leave deserialize_method out; decoders={'image': tfds.decode.SkipDecoding()} keeps a feature encoded",
        )


def _skipped(decoders: Any, where: str) -> tuple[str, ...]:
    """The features that are not decoded; other decoders are functions of the user's and belong in `.map()`."""
    named = decoders if isinstance(decoders, Mapping) else {"all features": decoders} if decoders is not None else {}
    others = [name for name, decoder in named.items() if type(decoder).__name__ != "SkipDecoding"]
    if others:
        raise UsageError(
            "decoders that are tfds.decode.SkipDecoding()",
            got=f"{type(named[others[0]]).__name__} for {others[0]}",
            where=where,
            fix="leave the decoder out and do its work in .map()",
        )
    return tuple(sorted(named))


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
    if kind is str or (kind is bytes and any(isinstance(value, bytes) for value in values)):
        return strings(values)
    if kind is bytes:
        return stack(values) if values else strings(values)
    if kind is None:
        return stack(values) if values else strings(values)
    arrays = [np.asarray(value, kind.dtype) for value in values]
    if kind.ragged:
        return Ragged.of(arrays, kind.dtype)
    return stack(arrays) if arrays else np.empty(0, kind.dtype)
