"""Document tables: the start of each document in a stream, without loading the table into memory.

Starts are found by indexing (O(1) each), the document of a position by binary search (O(log n) each). Both work on
arrays and read only the entries they need when the table is memory-mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError


class DocTable(Protocol):
    """Start of every document; `starts(len(table))` is the length of the stream."""

    def __len__(self) -> int: ...

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def find(self, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...


class OffsetTable:
    """A document table as an array: document d is [offsets[d], offsets[d + 1]).

    >>> table = OffsetTable(np.array([0, 3, 3, 5]))
    >>> len(table), table.starts(np.array([0, 3])).tolist(), table.find(np.array([2, 3, 4])).tolist()
    (3, [0, 5], [0, 2, 2])
    """

    def __init__(self, offsets: NDArray[Any]) -> None:
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.offsets[indices].astype(np.int64)

    def find(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        # Same dtype as the table: otherwise NumPy would convert the full table first.
        wanted = np.asarray(positions).astype(self.offsets.dtype)
        return np.searchsorted(self.offsets, wanted, "right").astype(np.int64) - 1


def search(
    start_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    documents: int,
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Returns the last document that starts at or before each position, for tables that are not plain arrays.

    >>> search(lambda d: d * 10, 5, np.array([0, 9, 10, 49])).tolist()
    [0, 0, 1, 4]
    """
    low = np.zeros(len(positions), np.int64)
    high = np.full(len(positions), documents, np.int64)
    while bool((high - low > 1).any()):
        middle = (low + high) >> 1
        right = start_of(middle) <= positions
        low = np.where(right, middle, low)
        high = np.where(right, high, middle)
    return low


_FEW = 8


def check_range(indices: Any, stop: int, what: str = "record numbers", where: str = "") -> NDArray[np.int64]:
    """Returns the indices as int64, or raises an error that names the first one outside [0, stop).

    >>> check_range([1, 2], 3, "documents").tolist()
    [1, 2]
    """
    array = np.asarray(indices, np.int64)
    if array.ndim == 1 and 0 < array.size <= _FEW:  # a row or two of each of many sources
        values = array.tolist()
        if min(values) >= 0 and max(values) < stop:
            return array
    # A negative index is huge as an unsigned number: one pass checks both sides.
    if array.size and int(np.ascontiguousarray(array).view(np.uint64).max()) >= stop:
        bad = array[(array < 0) | (array >= stop)]
        raise UsageError(f"{what} in [0, {stop})", got=str(int(bad[0])), where=where, fix=f"use {what} below {stop}")
    return array
