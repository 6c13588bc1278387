"""How many bytes rows of tables are, before they are read: by the sizes of row groups, record batches or runs of rows.

A row counts as much as the others of its block. Of tables in memory or mapped, a block is a run of rows, in small ones
a single row; of Arrow and Parquet files it is a record batch or a row group. Once such a block is in memory, its
offsets say how many bytes each row is: `spend_rows`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.optional import need
from penstock.core.read_budget import counted, spend

I64 = NDArray[np.int64]
MOST_RUNS = 1 << 16
MOST_CHUNKS = 1024  # that are divided into runs


class BlockBytes:
    """The bytes of rows in consecutive blocks: `firsts` has the first row of each and the number of all rows.

    >>> sizes = BlockBytes(np.array([0, 2, 12]), np.array([6, 100]))
    >>> sizes.of(np.array([0, 1, 2])), sizes.largest
    (16, 10)
    """

    def __init__(self, firsts: I64, sizes: NDArray[Any]) -> None:
        self._firsts = firsts
        self._each = np.asarray(sizes, np.float64) / np.maximum(1, np.diff(firsts))

    @property
    def largest(self) -> int:
        """The most that a row counts."""
        return int(np.ceil(self._each.max(initial=0)))

    def of(self, rows: I64) -> int:
        """The bytes of these rows together."""
        return int(self._each[np.searchsorted(self._firsts, rows, side="right") - 1].sum())


class SizedByBlocks:
    """What a source of `sources.base.SizedRows` does with such sizes. They are measured when they are first needed."""

    _measured: BlockBytes | TableBytes | None = None

    @abstractmethod
    def _measure(self) -> BlockBytes | TableBytes:
        """Measures them."""

    def bytes_of_rows(self, indices: I64) -> int:
        """See `sources.base.SizedRows`."""
        self._measured = sizes = self._measured or self._measure()
        return sizes.of(indices)

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        self._measured = sizes = self._measured or self._measure()
        return sizes.largest


class TableBytes:
    """The bytes of rows of columns in memory or in mapped files."""

    def __init__(self, columns: Iterable[Any]) -> None:
        self._columns = [_of_column(column) for column in columns]

    @property
    def largest(self) -> int:
        """The most that a row counts."""
        return sum(column.largest for column in self._columns)

    def of(self, rows: I64) -> int:
        """The bytes of these rows together."""
        return sum(column.of(rows) for column in self._columns)


def take_rows(table: Any, rows: I64) -> Any:
    """These rows of a table, whose bytes are counted first."""
    spend_rows(table.columns, rows)
    return table.take(rows)


def spend_rows(columns: Iterable[Any], rows: I64) -> None:
    """Counts the bytes of rows that are about to be taken from these columns, see `core.read_budget`."""
    if counted():
        spend(sum(_of_rows(column, rows) for column in columns))


def _of_rows(column: Any, rows: I64) -> int:
    if not hasattr(column, "chunks"):
        return int((_bytes_before(column, rows + 1) - _bytes_before(column, rows)).sum())
    if column.num_chunks == 1:
        return _of_rows(column.chunk(0), rows)
    firsts = np.cumsum([0, *map(len, column.chunks)])
    chunks = np.searchsorted(firsts, rows, side="right") - 1
    return sum(_of_rows(column.chunk(i), rows[chunks == i] - firsts[i]) for i in np.unique(chunks).tolist())


def _of_column(column: Any) -> BlockBytes:
    run = len(column) if column.num_chunks > MOST_CHUNKS else max(1, -(-len(column) // MOST_RUNS))
    firsts, sizes, at = [np.zeros(0, np.int64)], [np.zeros(0)], 0
    for chunk in column.chunks:
        edges = np.append(np.arange(0, len(chunk), run), len(chunk))
        firsts.append(at + edges[:-1])
        sizes.append(np.diff(_bytes_before(chunk, edges)))
        at += len(chunk)
    return BlockBytes(np.append(np.concatenate(firsts), at), np.concatenate(sizes))


def _bytes_before(array: Any, rows: I64) -> NDArray[Any]:
    """The bytes of an array before each of these rows."""
    t, types = array.type, need("pyarrow", extra="parquet").types
    if hasattr(array, "storage"):
        return _bytes_before(array.storage, rows)
    if types.is_struct(t):
        return sum((_bytes_before(array.field(i), rows) for i in range(t.num_fields)), np.zeros(len(rows)))
    narrow = types.is_string(t) or types.is_binary(t) or types.is_list(t)
    if not narrow and not (types.is_large_string(t) or types.is_large_binary(t) or types.is_large_list(t)):
        return rows * float(array.nbytes / max(1, len(array)))
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(len(rows))
    places = np.frombuffer(offsets, "<i4" if narrow else "<i8")[array.offset : array.offset + len(array) + 1][rows]
    each = float(array.values.nbytes / max(1, len(array.values))) if hasattr(array, "values") else 1.0
    return places * each
