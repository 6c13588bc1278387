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

from penstock.core.mapped import MappedFile, check_ends, check_size, map_of, maps_left, max_maps

Part = NDArray[np.int64] | int
_FEW_PARTS = 4096


class ArrayTable:
    """Open arrays by part number; `addresses` is 0 where a part is not open. Memory grows with the open parts."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.arrays: dict[int, NDArray[Any]] = {}
        self.addresses = np.zeros(parts, np.int64)  # untouched zeros cost no memory
        self._files: dict[int, MappedFile] = {}
        self._ends = np.zeros(parts, np.uint64)  # where the last bytes of each mapped file are, and what they are
        self._tails = np.zeros(parts, np.uint64)

    def add(self, part: int, array: NDArray[Any], file: MappedFile | None = None) -> None:
        self.arrays[part] = array
        if file is not None and len(file.array):
            self._files[part], self._ends[part], self._tails[part] = file, file.end, file.tail
        self.addresses[part] = array.__array_interface__["data"][0]  # last: it is read without a lock

    def has(self, part: Part) -> bool:
        if isinstance(part, int):
            return part in self.arrays
        return bool(self.addresses[part].all())

    def check(self, part: Part) -> None:
        """Raises `StoreError` if the file of one of these parts has been cut since it was mapped."""
        if not self._files:
            return
        if isinstance(part, int):
            file = self._files.get(part)
            if file is not None:
                file.check()
            return
        used = self._distinct(part)
        tails = self._tails[used]
        if not tails.all():
            for p in used[tails == 0].tolist():
                check_size(self._files.get(p))
            used, tails = used[tails != 0], tails[tails != 0]
        if len(used):
            check_ends(lambda k: self._files.get(int(used[k])), self._ends[used], tails)

    def _distinct(self, part: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns each part once. With few parts a flag for each is quicker than sorting."""
        if self.parts > _FEW_PARTS:
            return distinct(part)
        flags = np.zeros(self.parts, bool)
        flags[part] = True
        return np.flatnonzero(flags)

    def __getstate__(self) -> tuple[int, dict[int, NDArray[Any]]]:
        return self.parts, self.arrays

    def __setstate__(self, state: tuple[int, dict[int, NDArray[Any]]]) -> None:
        parts, arrays = state
        self.__init__(parts)  # type: ignore[misc]
        for part, array in arrays.items():
            self.add(part, array, map_of(array))

    def file(self, part: int) -> MappedFile | None:
        return self._files.get(part)

    def array(self, part: int) -> NDArray[Any]:
        found = self.arrays.get(part)
        if found is None:
            raise LookupError(f"part {part} is not open")
        return found


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns each number once, in order: `np.unique`, without the 10 ms of its first call.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


class OpenArrays:
    """Opens parts when they are needed and keeps at most `max_open` of them open, by default as many as maps allow.

    When there are more, a quarter is closed, those first that were opened first.

    >>> opened = OpenArrays(3, lambda part: (np.full(4, part), None))
    >>> opened.need(1).array(1).tolist()
    [1, 1, 1, 1]
    """

    def __init__(
        self,
        parts: int,
        open_one: Callable[[int], tuple[NDArray[Any], MappedFile | None]],
        drop_one: Callable[[int], None] | None = None,
        max_open: int | None = None,
    ) -> None:
        self._open, self._drop = open_one, drop_one
        # Twice: a reader may keep the table from before parts were closed.
        self._max_open = max_maps() * 3 // 8 if max_open is None else max_open
        self._lock = threading.Lock()
        self._table = ArrayTable(parts)

    def has(self, part: Part) -> bool:
        """Whether these parts are open."""
        return self._table.has(part)

    def need(self, part: Part) -> ArrayTable:
        """Returns a table in which these parts are open."""
        table = self._table
        if len(table.arrays) <= self._max_open and table.has(part):  # more are open after a call that needed more
            return table
        with self._lock:
            table = self._table
            wanted = [part] if isinstance(part, int) else distinct(part).tolist()
            missing = [p for p in wanted if p not in table.arrays]
            opened = len(table.arrays)
            if not missing and opened <= max(self._max_open, len(wanted)):
                return table
            may_stay = min(self._max_open, opened + maps_left()) - len(missing)
            if opened > may_stay:
                newest = list(table.arrays)[opened - max(0, may_stay * 3 // 4) :]
                table = self._keep_only([*wanted, *newest])
                missing = [p for p in wanted if p not in table.arrays]
            for p in missing:
                table.add(p, *self._open(p))
            return table

    def clear(self) -> None:
        """Closes all parts; they are opened again when needed."""
        with self._lock:
            self._keep_only([])

    def _keep_only(self, keep: list[int]) -> ArrayTable:
        """Replaces the table by one with only these parts; running gathers keep the old table until they end."""
        old, new = self._table, ArrayTable(self._table.parts)
        kept = set(keep)
        for p, array in old.arrays.items():
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
