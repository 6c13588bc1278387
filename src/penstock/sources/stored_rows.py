"""Rows kept as contiguous Arrow arrays, in memory or in mapped files, from which scattered rows are taken at once.

A folder of stored rows has one file for each buffer, the hashes of their pages, and a manifest, written last. A page is
hashed at its first use, so that damage is noticed (`StoreError`) before a wrong row comes out. Reading costs one Arrow
`take` per column; the system keeps in memory what is used, shared by all processes of the machine.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from penstock.core import local_files, mapped
from penstock.core.errors import StoreError
from penstock.core.optional import need
from penstock.sources import arrow_buffers
from penstock.sources.arrow_buffers import I64, NotStored
from penstock.sources.block_bytes import spend_rows
from penstock.sources.growing_buffer import GrowingBuffer
from penstock.storage.sizes import PAGE

MANIFEST, HASHES, VERSION = "manifest.json", "hashes", 1
_HELD = 64 << 20  # bytes of all buffers together that wait to be written
_MOST_MANIFEST = 64 << 20

Types = Mapping[str, Any]  # the stored type of each column


class StoredRows:
    """Rows over buffers. `take` returns a table."""

    def __init__(self, types: Types, rows: int, buffers: list[NDArray[np.uint8]], pages: _Pages | None = None) -> None:
        self.rows, self._types, self._buffers, self._pages = rows, dict(types), buffers, pages
        parts = iter(buffers)
        self._arrays = {name: arrow_buffers.rebuild(t, rows, parts) for name, t in types.items()}

    def take(self, rows: I64) -> Any:
        """These rows as a table of the stored types."""
        pa = need("pyarrow", extra="parquet")
        if self._pages is not None:
            self._pages.check_ends()
            if not self._pages.verified:
                self._verify(rows, self._pages)
        spend_rows(self._arrays.values(), rows)
        chosen = pa.array(rows)
        return pa.Table.from_arrays([array.take(chosen) for array in self._arrays.values()], list(self._arrays))

    def _verify(self, rows: I64, pages: _Pages) -> None:
        number = 0
        rows = np.unique(rows)
        for t in self._types.values():
            number = arrow_buffers.touch(t, rows, rows + 1, number, self._buffers, pages.check)


class Builder:
    """Appends tables of the same types; with a folder, on disk. More than `most` bytes are not stored."""

    def __init__(self, types: Types, folder: str | None, most: int) -> None:
        self._types, self._folder, self._most, self.rows = dict(types), folder, most, 0
        counts = [arrow_buffers.count_buffers(t) for t in types.values()]
        held = _HELD // max(1, sum(counts))
        paths = [None if folder is None else os.path.join(folder, str(i)) for i in range(sum(counts))]
        self._buffers = [GrowingBuffer(path, held) for path in paths]

    @property
    def bytes(self) -> int:
        return sum(buffer.size for buffer in self._buffers)

    def add(self, table: Any) -> None:
        """Appends a table; `NotStored` if it has other types or the limit is passed."""
        first = 0
        for name, t in self._types.items():
            mine = self._buffers[first : first + arrow_buffers.count_buffers(t)]
            first += len(mine)
            for chunk in table.column(name).chunks:
                plain = chunk.storage if hasattr(chunk, "storage") else chunk
                if arrow_buffers.stored_type(plain.type) != t:
                    raise NotStored(f"column {name!r} has type {plain.type} here and another one in other row groups")
                arrow_buffers.append(plain, t, iter(mine))
        self.rows += table.num_rows
        if self.bytes > self._most:
            raise NotStored(f"more than {self._most} bytes")

    def in_memory(self) -> StoredRows:
        """What was added; for a builder without a folder."""
        return StoredRows(self._types, self.rows, [buffer.finish() for buffer in self._buffers])

    def commit(self, facts: Mapping[str, Any]) -> None:
        """Ends the files, and writes hashes and manifest; `facts` are kept in it."""
        assert self._folder is not None
        for buffer in self._buffers:
            buffer.finish()
        hashes = b"".join(buffer.hashes.tobytes() for buffer in self._buffers)
        local_files.atomic_write(os.path.join(self._folder, HASHES), hashes)
        manifest = {
            "format": "penstock-rows", "version": VERSION, "rows": self.rows, "facts": dict(facts),
            "types": _names(self._types), "sizes": [buffer.size for buffer in self._buffers],
            "hashes": xxhash.xxh3_128_hexdigest(hashes),
        }  # fmt: skip
        local_files.atomic_write(os.path.join(self._folder, MANIFEST), orjson.dumps(manifest))


def open_folder(folder: str, types: Types) -> tuple[StoredRows, dict[str, Any]]:
    """The stored rows of a folder and the facts of its manifest; `StoreError` if it is damaged."""
    where = os.path.join(folder, MANIFEST)
    try:
        with open(where, "rb") as file:
            manifest = orjson.loads(file.read(_MOST_MANIFEST))
        if manifest["format"] != "penstock-rows" or manifest["version"] != VERSION:
            raise _damaged("stored rows of version 1", "another format or version", where)
        if manifest["types"] != _names(types):
            raise _damaged("rows of the types of the source", "other types", where)
        with open(os.path.join(folder, HASHES), "rb") as file:
            hashes = file.read()
        if xxhash.xxh3_128_hexdigest(hashes) != manifest["hashes"]:
            raise _damaged("page hashes as they were written", "other ones", folder)
        maps = [_mapped(folder, i, int(size)) for i, size in enumerate(manifest["sizes"])]
        pages = _Pages(maps, np.frombuffer(hashes, np.uint64))
        pages.check_ends()
        rows, facts = int(manifest["rows"]), dict(manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged("a folder of stored rows", f"{type(error).__name__}: {error}", where) from error
    number = 0
    ends = np.array([rows - 1], np.int64)
    for t in types.values():  # the number of values of nested types is read from the last offsets
        number = arrow_buffers.touch(t, ends, ends + 1, number, [m.array for m in maps], pages.check)
    return StoredRows(types, rows, [m.array for m in maps], pages), facts


def _mapped(folder: str, number: int, size: int) -> mapped.MappedFile:
    path = os.path.join(folder, str(number))
    if not size:
        return mapped.MappedFile(path, np.empty(0, np.uint8), (0, 0))
    with open(path, "rb") as file:
        found = mapped.map_file(path, file.fileno())
    if len(found.array) != size:
        raise _damaged(f"a buffer of {size} bytes", f"{len(found.array)} bytes", path)
    return found


class _Pages:
    """The pages of mapped buffers: which of them were verified."""

    def __init__(self, maps: list[mapped.MappedFile], hashes: NDArray[np.uint64]) -> None:
        counts = [-(-len(m.array) // PAGE) for m in maps]
        if sum(counts) != len(hashes):
            raise _damaged(f"hashes of {sum(counts)} pages", f"{len(hashes)}", maps[0].path if maps else "")
        edges = np.cumsum([0, *counts]).tolist()
        self._maps = maps
        self._hashes = [hashes[a:b] for a, b in itertools.pairwise(edges)]
        self._done = [np.zeros(count, bool) for count in counts]
        self._left, self._lock = sum(counts), threading.Lock()
        real = [m for m in maps if len(m.array)]
        self._real = real
        self._ends = np.array([m.end for m in real], np.uint64)
        self._tails = np.array([m.tail for m in real], np.uint64)

    @property
    def verified(self) -> bool:
        """Whether all pages were."""
        return not self._left

    def check_ends(self) -> None:
        """Raises if a file was cut."""
        if all(self._tails):
            mapped.check_ends(self._real.__getitem__, self._ends, self._tails)
        else:
            for each in self._real:
                mapped.check_size(each)

    def check(self, number: int, starts: I64, stops: I64) -> None:
        """Verifies the pages of these bytes of a buffer."""
        some = stops > starts
        if not some.all():
            starts, stops = starts[some], stops[some]
        if not len(starts):
            return
        done, size = self._done[number], len(self._maps[number].array)
        if int(starts.min()) < 0 or int(stops.max()) > size:
            raise _damaged(f"values inside {size} bytes", f"up to byte {int(stops.max())}", self._maps[number].path)
        first = starts // PAGE
        counts = (stops - 1) // PAGE - first + 1
        pages = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        for page in np.unique(pages[~done[pages]]).tolist():
            self._verify(number, page)

    def _verify(self, number: int, page: int) -> None:
        found = xxhash.xxh3_64_intdigest(self._maps[number].array[page * PAGE : (page + 1) * PAGE].data)
        if found != int(self._hashes[number][page]):
            raise _damaged(f"page {page} as it was written", "other bytes", self._maps[number].path)
        with self._lock:
            if not self._done[number][page]:
                self._done[number][page] = True
                self._left -= 1


def _names(types: Types) -> dict[str, str]:
    return {name: str(t) for name, t in types.items()}


def _damaged(expected: str, got: str, where: str) -> StoreError:
    return StoreError(expected, got=got, where=where, fix="delete the folder; it will be made again")
