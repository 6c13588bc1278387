"""Writes MosaicML MDS datasets that `StreamingDataset` and `read_mds` read.

Shards are written one after another under their final names and `index.json` last, atomically: a dataset without one is
incomplete. Holds one shard in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import xxhash

from penstock.core.errors import LimitError, UsageError
from penstock.core.local_files import atomic_write
from penstock.core.optional import need
from penstock.sources.mds_encodings import ARRAY_TYPES, Encoding, encoding_of
from penstock.sources.mds_index import MOST_BYTES, NAME

_HASHES: dict[str, Callable[[bytes], Any]] = {
    "sha1": hashlib.sha1, "sha256": hashlib.sha256, "xxh64": xxhash.xxh64, "xxh128": xxhash.xxh128
}  # fmt: skip
_SHAPE_BYTES = ((1 << 8, 0), (1 << 16, 1), (1 << 32, 2))


class MDSWriter:
    """Writes samples (dicts with the same keys) to a folder; `columns` are encodings by name.

    Strings, bytes, numbers, JSON values and arrays can be written. Call `finish` at the end.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = MDSWriter(folder, {"text": "str", "tokens": "ndarray:uint16"})
    >>> writer.write({"text": "one", "tokens": np.array([5, 6], np.uint16)})
    >>> writer.finish()
    >>> from penstock.sources.mds import MDSDataset
    >>> MDSDataset(folder).read(np.array([0]))["tokens"].tolist()
    [[5, 6]]
    """

    def __init__(
        self,
        folder: str,
        columns: Mapping[str, str],
        *,
        size_limit: int = 1 << 26,
        compression: str | None = None,
        hashes: Sequence[str] = ("xxh64",),
    ) -> None:
        if compression not in (None, "gz", "zstd"):
            raise UsageError('compression None, "gz" or "zstd"', got=repr(compression), fix='compression="zstd"')
        if not 1 <= size_limit <= MOST_BYTES or not set(hashes) <= set(_HASHES):
            got = f"size_limit {size_limit}, hashes {hashes}"
            raise UsageError(f"size_limit in 1..2**32 - 1, hashes of {', '.join(_HASHES)}", got=got, fix="correct it")
        self._folder, self._limit, self._compression = folder, size_limit, compression
        self._names = sorted(columns)
        self._encodings = {name: encoding_of(columns[name], name, folder) for name in self._names}
        self._config = {
            "version": 2, "format": "mds", "compression": compression, "hashes": sorted(hashes),
            "size_limit": size_limit, "column_names": self._names,
            "column_encodings": [columns[name] for name in self._names],
            "column_sizes": [self._encodings[name].size for name in self._names],
        }  # fmt: skip
        self._head = orjson.dumps(self._config, option=orjson.OPT_SORT_KEYS)
        self._samples: list[bytes] = []
        self._bytes = 0
        self._shards: list[dict[str, Any]] = []

    def write(self, sample: Mapping[str, Any]) -> None:
        """Adds one sample."""
        sizes, values = [], []
        for name, encoding in self._encodings.items():
            value = _encode(encoding, sample[name], name)
            if encoding.size is None:
                sizes.append(len(value))
            values.append(value)
        data = np.array(sizes, "<u4").tobytes() + b"".join(values)
        if len(data) + len(self._head) + 12 > MOST_BYTES:
            raise LimitError("samples of less than 4 GiB", got=f"{len(data)} bytes", where=self._folder, fix="split it")
        if self._samples and self._bytes + len(data) + 4 * len(self._samples) + len(self._head) + 12 > self._limit:
            self._flush()
        self._samples.append(data)
        self._bytes += len(data)

    def finish(self, note: Mapping[str, Any] | None = None) -> None:
        """Writes the last shard and the index, with `note` beside what other readers of MDS look at."""
        if self._samples:
            self._flush()
        index = orjson.dumps({**(note or {}), "version": 2, "shards": self._shards}, option=orjson.OPT_SORT_KEYS)
        atomic_write(os.path.join(self._folder, NAME), index)

    def _flush(self) -> None:
        count = len(self._samples)
        lengths = [4 * (count + 2) + len(self._head), *map(len, self._samples)]
        offsets = np.cumsum(lengths, dtype=np.int64).astype("<u4")
        data = b"".join([np.array([count], "<u4").tobytes(), offsets.tobytes(), self._head, *self._samples])
        name = f"shard.{len(self._shards):05}.mds"
        raw, packed, stored = self._facts(name, data), None, data
        if self._compression is not None:
            stored = _compress(self._compression, data)
            name = f"{name}.{self._compression}"
            packed = self._facts(name, stored)
        atomic_write(os.path.join(self._folder, name), stored)
        self._shards.append({**self._config, "samples": count, "raw_data": raw, "zip_data": packed})
        self._samples, self._bytes = [], 0

    def _facts(self, name: str, data: bytes) -> dict[str, Any]:
        hashes = {kind: _HASHES[kind](data).hexdigest() for kind in self._config["hashes"]}  # type: ignore[attr-defined]
        return {"basename": name, "bytes": len(data), "hashes": hashes}


def _compress(kind: str, data: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(data, 6, mtime=0)
    compressed: bytes = need("zstandard", extra="zstd", purpose="to write zstd").ZstdCompressor(3).compress(data)
    return compressed


def _encode(encoding: Encoding, value: Any, column: str) -> bytes:
    if encoding.name in ("bytes", "jpeg", "png") and isinstance(value, bytes):
        return value
    if encoding.name == "str" and isinstance(value, str):
        return value.encode("utf-8", "strict")
    if encoding.name == "json":
        return orjson.dumps(value)
    if encoding.name == "ndarray":
        return _array(encoding, np.asarray(value))
    if encoding.dtype is not None and encoding.shape == ():
        return np.asarray(value).astype(encoding.dtype, casting="same_kind").tobytes()
    raise UsageError(
        f"a value for column {column!r} in the encoding {encoding.name}", got=type(value).__name__, fix="convert it"
    )


def _array(encoding: Encoding, array: np.ndarray[Any, Any]) -> bytes:
    kind, shape = array.dtype.newbyteorder("<"), encoding.shape
    codes = {name: code for code, name in ARRAY_TYPES.items()}
    if kind.name not in codes or (encoding.dtype or kind) != kind or (shape or array.shape) != array.shape:
        expected = f"an array of {encoding.dtype or 'numbers'}" + (f" of shape {shape}" if shape else "")
        raise UsageError(expected, got=f"{array.dtype} of shape {array.shape}", fix="convert it with .astype")
    parts = [bytes([codes[kind.name]])] if encoding.dtype is None else []
    if shape is None:
        most = max(array.shape, default=0)
        width = next((code for limit, code in _SHAPE_BYTES if most < limit), 3)
        parts += [bytes([array.ndim << 2 | width]), np.array(array.shape, f"<u{1 << width}").tobytes()]
    return b"".join([*parts, array.astype(kind, copy=False).tobytes()])
