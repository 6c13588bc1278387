"""Many open arrays behind one gather: how a stream in a thousand shards reads as fast as one in a single file.

Each open part is a memory map, and the table knows its address. A batch of windows that lie anywhere in any of them is
then one NumPy call over addresses instead of one per part. Callers check every range against the part's length before;
a table holds its maps, so that they stay while a gather over it runs, whatever another thread drops meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Part = NDArray[np.int64] | int


class Table:
    """Open arrays by part number; `addresses` is 0 where a part is not open."""

    def __init__(self, parts: int) -> None:
        self.arrays: list[NDArray[Any] | None] = [None] * parts
        self.addresses = np.zeros(parts, np.int64)
        self.open = 0

    def add(self, part: int, array: NDArray[Any]) -> None:
        self.arrays[part] = array
        self.addresses[part] = array.__array_interface__["data"][0]  # last: others look at it without a lock
        self.open += 1

    def has(self, part: Part) -> bool:
        if isinstance(part, int):
            return self.arrays[part] is not None
        return bool(self.addresses[part].all())

    def array(self, part: int) -> NDArray[Any]:
        found = self.arrays[part]
        if found is None:
            raise LookupError(f"part {part} is not open")
        return found


class OpenArrays:
    """Opens parts when they are needed and keeps at most `most` of them open.

    >>> opened = OpenArrays(3, lambda part: np.full(4, part))
    >>> opened.need(1).array(1).tolist()
    [1, 1, 1, 1]
    """

    def __init__(
        self,
        parts: int,
        open_one: Callable[[int], NDArray[Any]],
        drop_one: Callable[[int], None] | None = None,
        most: int | None = None,
    ) -> None:
        self._open, self._drop = open_one, drop_one
        self._most = most or most_open()
        self._lock = threading.Lock()
        self._table = Table(parts)

    def need(self, part: Part) -> Table:
        """A table in which these parts are open."""
        table = self._table
        if table.has(part):
            return table
        with self._lock:
            table = self._table
            wanted = [part] if isinstance(part, int) else np.unique(part).tolist()
            missing = [p for p in wanted if table.arrays[p] is None]
            if table.open and table.open + len(missing) > self._most:
                table = self._renew(wanted)
                missing = [p for p in wanted if table.arrays[p] is None]
            for p in missing:
                table.add(p, self._open(p))
            return table

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._renew([])

    def _renew(self, keep: list[int]) -> Table:
        """A new table with only some of the old one's parts; gathers that run keep the old one until they end."""
        old, new = self._table, Table(len(self._table.arrays))
        kept = set(keep)
        for p, array in enumerate(old.arrays):
            if array is None:
                continue
            if p in kept:
                new.add(p, array)
            elif self._drop is not None:
                self._drop(p)
        self._table = new
        return new


def most_open() -> int:
    """How many maps to keep: a quarter of the file descriptors this process may have, since each map holds one."""
    if sys.platform == "win32":
        return 256
    import resource  # not there on Windows

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, min(soft // 4, 8192)) if soft > 0 else 8192


def windows(table: Table, part: Part, starts: NDArray[np.int64], length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Row i is `length` tokens of part `part[i]` from `starts[i]`; ranges must have been checked by the caller.

    >>> table = Table(2)
    >>> table.add(0, np.arange(4)), table.add(1, np.arange(10, 14))
    (None, None)
    >>> windows(table, np.array([1, 0]), np.array([2, 0]), 2, np.dtype(int)).tolist()
    [[12, 13], [0, 1]]
    """
    rows = len(starts)
    if length == 0 or rows == 0:
        return np.empty((rows, length), dtype)
    found = everywhere(table, part, starts, length, dtype)
    if found is not None:
        view, at = found
        return view[at].view(dtype).reshape(rows, length)
    out = np.empty((rows, length), dtype)
    for i, (p, start) in enumerate(zip(np.asarray(part).tolist(), starts.tolist(), strict=True)):
        out[i] = table.array(p)[start : start + length]
    return out


def everywhere(
    table: Table, part: Part, starts: NDArray[np.int64], length: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """An array of which each item is one whole row, and where in it these rows are. Valid while the table is held.

    None where the parts lie so far apart in memory that NumPy could not name all places between them.
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
    return np.asarray(_Memory(base, span, row)), at - base


@lru_cache(maxsize=64)
def _row(size: int) -> np.dtype[Any]:
    return np.dtype((np.void, size))


class _Memory:
    """The bytes from an address on, seen as overlapping rows that begin one byte apart."""

    def __init__(self, address: int, rows: int, row: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (rows,),
            "strides": (1,),
            "typestr": row.str,
            "version": 3,
        }


def touched(
    first_byte: int, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, size: int, page_bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last page of each range of items, none of them empty; sections begin on 4 KiB, pages are not smaller.

    >>> [a.tolist() for a in touched(4096, np.array([0, 30000]), 2048, 2, 16)]
    [[0, 0], [0, 1]]
    """
    begin = starts * size
    begin += first_byte
    return begin >> page_bits, (begin + (lengths * size - 1)) >> page_bits
