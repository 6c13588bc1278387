"""Rows that have been read: enough for several batches, made into columns batch by batch.

Reading many batches in one call shares the cost of NumPy calls; making the columns of a batch only when it is delivered
keeps them in the processor's cache. A node that computes its columns from the tokens read (windows, packs, padded
documents) has a `Rows` class of its own, which writes them straight into the output's memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Compact, cut, nbytes
from penstock.steps.picks import Picks


class Memory(NamedTuple):
    """Where the columns of a batch are made in their final form: the dtype of token ids, and reusable buffers."""

    ids: np.dtype[Any]
    buffers: Buffers


class Rows(Protocol):
    """Rows that have been read. Any thread may call any method."""

    @property
    def picks(self) -> Picks:
        """The picks that made the rows."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as they were read."""
        ...

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        """The columns of rows [start, stop).

        With `memory`, token ids may come in its dtype and its buffers, which saves a copy; without, as they were read.
        """
        ...

    def compact(self, start: int, stop: int) -> Compact | None:
        """The same rows as fewer bytes and a recipe for the output's device, where there is one."""
        ...


Read = Callable[[int, int], Rows]  # reads rows [start, stop) of the picks it was opened with


class ChangedRows(ABC):
    """Rows of a child whose columns are changed batch by batch."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def picks(self) -> Picks:
        return self.rows.picks

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @abstractmethod
    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns: ...

    def compact(self, start: int, stop: int) -> Compact | None:
        return None


class FetchedRows:
    """Rows whose columns are what `Node.fetch` returned."""

    __slots__ = ("_columns", "picks")

    def __init__(self, columns: Columns, picks: Picks) -> None:
        self._columns, self.picks = columns, picks

    @property
    def nbytes(self) -> int:
        return nbytes(self._columns)

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        if start == 0 and stop == len(self.picks):
            return self._columns
        return cut(self._columns, start, stop)

    def compact(self, start: int, stop: int) -> Compact | None:
        return None
