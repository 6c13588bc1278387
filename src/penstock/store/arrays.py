"""Gathers windows from many memory-mapped arrays in one NumPy call, so that 1,000 shards read as fast as one.

A stream consists of parts (shards or files); the table holds the address of each open part, and a batch of windows in
any of them is one NumPy call over addresses instead of one call per part.

INVARIANT: `windows` and `row_view` read raw memory and check nothing. For every row i the caller has checked that
part[i] is open in the table and 0 <= starts[i] <= len(part) - length, in int64 without overflow. The only callers are
in `store/gather.py`, and each of them does so; `tests/hostile/test_gather_bounds.py` attacks it through every public
caller. A table keeps its maps alive, so they stay valid while a gather runs, also if another thread drops them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.mapped import MappedFile, check_ends, check_size, map_of

Part = NDArray[np.int64] | int
MAX_OPEN = 8192  # maps of one stream; Linux allows 65,530 in a process


class ArrayTable:
    """Open arrays by part number; `addresses` is 0 where a part is not open."""

    def __init__(self, parts: int) -> None:
        self.arrays: list[NDArray[Any] | None] = [None] * parts
        self.addresses = np.zeros(parts, np.int64)
        self.open = 0
        self._files: list[MappedFile | None] = [None] * parts
        self._ends = np.zeros(parts, np.uint64)  # where the last bytes of each mapped file are, and what they are
        self._tails = np.zeros(parts, np.uint64)
        self._mapped = False

    def add(self, part: int, array: NDArray[Any], file: MappedFile | None = None) -> None:
        self.arrays[part] = array
        if file is not None and len(file.array):
            self._files[part], self._ends[part], self._tails[part] = file, file.end, file.tail
            self._mapped = True
        self.addresses[part] = array.__array_interface__["data"][0]  # last: it is read without a lock
        self.open += 1

    def has(self, part: Part) -> bool:
        if isinstance(part, int):
            return self.arrays[part] is not None
        return bool(self.addresses[part].all())

    def check(self, part: Part) -> None:
        """Raises `StoreError` if the file of one of these parts has been cut since it was mapped."""
        if not self._mapped:
            return
        if isinstance(part, int):
            file = self._files[part]
            if file is not None:
                file.check()
            return
        flags = np.zeros(len(self.arrays), bool)
        flags[part] = True
        used = np.flatnonzero(flags)
        plain = self._tails[used] == 0
        if plain.any():
            for p in used[plain].tolist():
                check_size(self._files[p])
            used = used[~plain]
        if len(used):
            check_ends([self._files[p] for p in used.tolist()], self._ends[used], self._tails[used])

    def __getstate__(self) -> list[NDArray[Any] | None]:
        return self.arrays

    def __setstate__(self, arrays: list[NDArray[Any] | None]) -> None:
        self.__init__(len(arrays))  # type: ignore[misc]
        for part, array in enumerate(arrays):
            if array is not None:
                self.add(part, array, map_of(array))

    def file(self, part: int) -> MappedFile | None:
        return self._files[part]

    def array(self, part: int) -> NDArray[Any]:
        found = self.arrays[part]
        if found is None:
            raise LookupError(f"part {part} is not open")
        return found


class OpenArrays:
    """Opens parts when they are needed and keeps at most `max_open` of them open.

    >>> opened = OpenArrays(3, lambda part: (np.full(4, part), None))
    >>> opened.need(1).array(1).tolist()
    [1, 1, 1, 1]
    """

    def __init__(
        self,
        parts: int,
        open_one: Callable[[int], tuple[NDArray[Any], MappedFile | None]],
        drop_one: Callable[[int], None] | None = None,
        max_open: int = MAX_OPEN,
    ) -> None:
        self._open, self._drop, self._max_open = open_one, drop_one, max_open
        self._lock = threading.Lock()
        self._table = ArrayTable(parts)

    def need(self, part: Part) -> ArrayTable:
        """Returns a table in which these parts are open."""
        table = self._table
        if table.has(part):
            return table
        with self._lock:
            table = self._table
            wanted = [part] if isinstance(part, int) else np.unique(part).tolist()
            missing = [p for p in wanted if table.arrays[p] is None]
            if table.open and table.open + len(missing) > self._max_open:
                table = self._keep_only(wanted)
                missing = [p for p in wanted if table.arrays[p] is None]
            for p in missing:
                table.add(p, *self._open(p))
            return table

    def clear(self) -> None:
        """Closes all parts; they are opened again when needed."""
        with self._lock:
            self._keep_only([])

    def _keep_only(self, keep: list[int]) -> ArrayTable:
        """Replaces the table by one with only these parts; running gathers keep the old table until they end."""
        old, new = self._table, ArrayTable(len(self._table.arrays))
        kept = set(keep)
        for p, array in enumerate(old.arrays):
            if array is None:
                continue
            if p in kept:
                new.add(p, array, old.file(p))
            elif self._drop is not None:
                self._drop(p)
        self._table = new
        return new


def windows(
    table: ArrayTable, part: Part, starts: NDArray[np.int64], length: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Copies `length` tokens of part `part[i]` from `starts[i]` into row i. UNCHECKED: see the module's invariant.

    >>> table = ArrayTable(2)
    >>> table.add(0, np.arange(4)), table.add(1, np.arange(10, 14))
    (None, None)
    >>> windows(table, np.array([1, 0]), np.array([2, 0]), 2, np.dtype(int)).tolist()
    [[12, 13], [0, 1]]
    """
    rows = len(starts)
    if length == 0 or rows == 0:
        return np.empty((rows, length), dtype)
    found = row_view(table, part, starts, length, dtype)
    if found is not None:
        view, index = found
        return view[index].view(dtype).reshape(rows, length)
    out = np.empty((rows, length), dtype)
    for i, (p, start) in enumerate(zip(np.asarray(part).tolist(), starts.tolist(), strict=True)):
        out[i] = table.array(p)[start : start + length]
    return out


def row_view(
    table: ArrayTable, part: Part, starts: NDArray[np.int64], length: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Returns an array whose items are complete rows, and the index of each row in it. UNCHECKED, see the module.

    Valid while the table is referenced. None if the parts are so far apart in memory that NumPy cannot index the
    range between them.
    """
    size = dtype.itemsize
    row = _row(length * size)
    if isinstance(part, int):
        array = table.array(part)
        return np.ndarray((len(array) - length + 1,), row, buffer=array, strides=(size,)), starts
    at = table.addresses[part] + starts * size
    base = int(at.min())
    span = int(at.max()) - base + 1
    if span * row.itemsize >= 1 << 62:
        return None
    return np.asarray(_RawRows(base, span, row)), at - base


@lru_cache(maxsize=64)
def _row(size: int) -> np.dtype[Any]:
    return np.dtype((np.void, size))


class _RawRows:
    """Memory from an address on, as overlapping rows that begin one byte apart."""

    def __init__(self, address: int, rows: int, row: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (rows,),
            "strides": (1,),
            "typestr": row.str,
            "version": 3,
        }


def page_range(
    first_byte: int, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, size: int, page_bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first and last page of each non-empty range of items of a section that begins at `first_byte`.

    >>> [a.tolist() for a in page_range(4096, np.array([0, 30000]), 2048, 2, 16)]
    [[0, 0], [0, 1]]
    """
    begin = starts * size
    begin += first_byte
    return begin >> page_bits, (begin + (lengths * size - 1)) >> page_bits
