"""Columns that stay beside the tokens of their document: how each is stored, decided by the first rows.

Numbers and arrays of one shape, or of one dimension and any length, are stored as they are; text, bytes and other
values as bytes (`store.values`). All documents of a store have the same kinds of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.store.layout import COLUMN_DTYPES
from penstock.store.values import PREFIX, encode_values

RESERVED = ("input_ids", "loss_runs")


@dataclass(frozen=True)
class ColumnKind:
    """How one column is stored: as values, or with a dtype; rows of one shape, or ragged (shape None)."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = ()

    @property
    def stored(self) -> str:
        return self.name if self.dtype is not None else f"{PREFIX}{self.name}"

    def encode(self, column: Column | None) -> Column:
        """The column as it is stored; None: of no rows."""
        if self.dtype is None:
            return self._values([] if column is None else column)
        kind = np.dtype(self.dtype)
        if column is None:
            return np.empty((0, *self.shape), kind) if self.shape is not None else Ragged.of([], kind)
        if self.shape is None:
            if isinstance(column, np.ndarray) and column.ndim == 2:
                column = Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])
            if isinstance(column, Ragged) and np.can_cast(column.dtype, kind, "safe"):
                return Ragged(column.values.astype(kind, copy=False), column.offsets)
        elif (
            isinstance(column, np.ndarray)
            and column.shape[1:] == self.shape
            and np.can_cast(column.dtype, kind, "safe")
        ):
            return column.astype(kind, copy=False)
        raise DataError(
            f"column {self.name!r} as in the first rows: {kind.name}, {self._rows(self.shape)}",
            got=f"{column.dtype}, {self._rows(None if isinstance(column, Ragged) else column.shape[1:])}",
            fix=f".map() it to one kind for all records, or leave it out: .drop({self.name!r}) before .tokenize()",
        )

    @staticmethod
    def _rows(shape: tuple[int, ...] | None) -> str:
        return (
            "rows of different lengths" if shape is None else f"rows of shape {shape}" if shape else "one for each row"
        )

    def _values(self, column: Iterable[Any]) -> Ragged:
        try:
            return encode_values(list(column))
        except TypeError as error:
            raise UsageError(
                f"text, bytes, numbers, arrays or JSON in column {self.name!r}, which .tokenize() keeps",
                got=str(error)[:200],
                fix=f".drop({self.name!r}) before .tokenize(), or name the columns to keep: keep=[...]",
            ) from error


def kinds_of(columns: Columns) -> tuple[ColumnKind, ...]:
    """The kinds of these columns, in the order of their names."""
    return tuple(_kind(name, columns[name]) for name in sorted(columns))


def _kind(name: str, column: Column) -> ColumnKind:
    if name in RESERVED or not name or len(name) > 100:
        raise UsageError(
            "columns beside the text that do not have a name of the token store's own",
            got=repr(name),
            fix=f'.rename({{"{name}": "{name}_before"}}) or .drop("{name}") before .tokenize(), or keep=[]',
        )
    kind = next((k for k in COLUMN_DTYPES if np.dtype(k) == column.dtype.newbyteorder("=")), None)
    if kind is None or name.startswith(("_", PREFIX)):
        return ColumnKind(name)
    return ColumnKind(name, kind, None if isinstance(column, Ragged) else tuple(column.shape[1:]))


def encoded(kinds: tuple[ColumnKind, ...], columns: Columns) -> Columns:
    """The columns as they are stored; without columns (there are no rows) empty ones of the same kinds."""
    return {kind.stored: kind.encode(columns.get(kind.name)) for kind in kinds}
