"""Parquet files in object stores: the footer is read once, and the column chunks of row groups with merged ranges.

pyarrow reads from a `SparseFile`, which has the bytes that a row group needs before pyarrow asks for them.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import DataError
from penstock.core.limits import Limits
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.sources import parquet_footer
from penstock.storage import filesystem
from penstock.storage.positioned_file import PositionedFile
from penstock.storage.scattered import read_scattered

TAIL = 64 << 10  # bytes of the first read of a footer
_AT_ONCE = 64 << 20  # bytes of row groups that are fetched together
_THREADS = 16
_KEPT_GROUPS = 1 << 14  # row groups whose column chunks are kept

Block = tuple[int, bytes]


@dataclass(frozen=True)
class Footer:
    """pyarrow's metadata of a file, and its column chunks."""

    metadata: Any
    chunks: parquet_footer.Chunks


class SparseFile(PositionedFile):
    """A remote file of which some blocks have been read already; what is missing is read when it is asked for."""

    def __init__(
        self, path: str, stamp: filesystem.Stamp, options: filesystem.Options, blocks: Sequence[Block]
    ) -> None:
        super().__init__(path, stamp.size)
        self._stamp, self._options, self._blocks = stamp, options, blocks

    def size(self) -> int:
        return self._stamp.size

    def read(self, size: int | None = -1) -> bytes:
        start = self._at
        stop = self._stamp.size if size is None or size < 0 else min(self._stamp.size, start + size)
        if stop <= start:
            return b""
        self._at = stop
        for begin, data in self._blocks:
            if begin <= start and stop <= begin + len(data):
                return data[start - begin : stop - begin]
        (data,) = filesystem.read_ranges(self.name, [(start, stop)], self._options, expected=self._stamp)
        return data


class Footers:
    """The footers of the remote files of a source, each read once."""

    def __init__(self, paths: Sequence[str], stamps: Sequence[filesystem.Stamp], limits: Limits, options: Any) -> None:
        self._paths, self._stamps, self._limits, self._options = paths, stamps, limits, options
        self._found: dict[int, Footer] = {}
        self._lock = threading.Lock()

    def load(self) -> None:
        """Reads all footers, several at once."""
        remote = [n for n, path in enumerate(self._paths) if filesystem.is_object(path)]
        if len(remote) > 1:
            with ThreadPoolExecutor(_THREADS, "penstock-footers") as pool:
                list(pool.map(self.get, remote))

    def get(self, file: int) -> Footer:
        with self._lock:
            found = self._found.get(file)
        if found is None:
            found = self._read(file)
            with self._lock:
                self._found[file] = found
        return found

    def _read(self, file: int) -> Footer:
        path, stamp = self._paths[file], self._stamps[file]
        pq = need("pyarrow.parquet", extra="parquet", purpose="to read Parquet files")
        tail_start = max(0, stamp.size - TAIL)
        (tail,) = filesystem.read_ranges(path, [(tail_start, stamp.size)], self._options, expected=stamp)
        length = parquet_footer.footer_length(tail[-8:], path, stamp.size, self._limits)
        if length + 8 > len(tail):
            first = stamp.size - length - 8
            (more,) = filesystem.read_ranges(path, [(first, tail_start)], self._options, expected=stamp)
            tail = more + tail
        footer = tail[len(tail) - 8 - length : -8]
        bound = self._limits.manifest_bytes
        try:
            alone = io.BytesIO(b"PAR1" + tail[len(tail) - 8 - length :])
            metadata = pq.ParquetFile(alone, thrift_string_size_limit=bound, thrift_container_size_limit=bound).metadata
        except Exception as error:
            surface(error)
            raise DataError(
                "a readable Parquet file", got=" ".join(str(error).split())[:200], where=path, fix="fetch it again"
            ) from error
        return Footer(metadata, parquet_footer.chunks_of(footer, path))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_found", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._found, self._lock = {}, threading.Lock()

    def chunks(self, file: int, most: int | None = None) -> parquet_footer.Chunks:
        """The column chunks of a file of any kind, at least of its first `most` row groups; the footer of a local file
        is read again."""
        path, stamp = self._paths[file], self._stamps[file]
        if filesystem.is_object(path):
            return self.get(file).chunks
        footer = parquet_footer.read_footer(path, stamp.size, self._limits, self._options)
        return parquet_footer.chunks_of(footer, path, most)

    def blocks(self, groups: Sequence[tuple[int, int]], columns: Sequence[str]) -> list[list[Block]]:
        """The bytes of these columns of row groups (file, number), read with one set of merged requests."""
        found_spans = [self.get(file).chunks.spans(columns, group) for file, group in groups]
        counts = [len(each) for each in found_spans]
        files, numbers = np.array([file for file, _ in groups], np.int64), np.arange(len(groups))
        spans = np.concatenate([np.empty((0, 4), np.int64), *found_spans])
        table = np.stack([np.repeat(numbers, counts), np.repeat(files, counts), spans[:, 1], spans[:, 2]], axis=1)
        table = table[(table[:, 2] >= 0) & (table[:, 2] < table[:, 3])]
        sizes = np.array([stamp.size for stamp in self._stamps], np.int64)
        stops = np.minimum(table[:, 3], sizes[table[:, 1]])
        inside = table[:, 2] < stops
        table, stops = table[inside], stops[inside]
        found = read_scattered(self._paths, self._stamps, table[:, 1], table[:, 2], stops, self._options)
        out: list[list[Block]] = [[] for _ in groups]
        for (n, _, start, _), data in zip(table.tolist(), found, strict=True):
            out[n].append((start, data))
        return out

    def together(self, groups: Sequence[tuple[int, int]], columns: Sequence[str]) -> list[int]:
        """How many of these row groups are fetched at a time, so that they fit into memory: counts that sum up."""
        spans = (self.get(file).chunks.spans(columns, group) for file, group in groups)
        return together([int((each[:, 2] - each[:, 1]).sum()) for each in spans])


def together(sizes: Sequence[int]) -> list[int]:
    """How many of row groups of these bytes are fetched at a time."""
    counts, held = [0], 0
    for size in sizes:
        if counts[-1] and held + size > _AT_ONCE:
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += size
    return counts


class ChunkTables:
    """The column chunks of local files, of which those of the files read last are kept."""

    def __init__(self, footers: Footers) -> None:
        self._footers = footers
        self._kept: dict[int, parquet_footer.Chunks] = {}
        self._lock = threading.Lock()

    def get(self, file: int) -> parquet_footer.Chunks:
        with self._lock:
            found = self._kept.get(file)
        if found is None:
            found = self._footers.chunks(file)
            with self._lock:
                while self._kept and sum(map(len, self._kept.values())) > _KEPT_GROUPS:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[file] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_footers": self._footers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_footers"])  # type: ignore[misc]
