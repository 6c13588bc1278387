"""The types of the columns that a user's function returns: those of its first rows, for all later ones.

A batch whose values are of another type than those of other batches, or of other ranks, is a wrong batch: arrays of
different types cannot be gathered, a jitted step is compiled again for each, and numbers beside text are no array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.core.columns import Column, Columns, Ragged, strings
from penstock.core.exact import MixedTypes

_NUMBERS = "biufcmM"
_PLAIN = {str, bytes, dict}


class ValueType(NamedTuple):
    """What each value of a column is: numbers of a dtype and their dimensions, or, without a dtype, anything else."""

    dtype: str | None  # not np.dtype: float64 equals None there
    ndim: int = 0

    def __str__(self) -> str:
        if self.dtype is None:
            return "text or other values"
        return self.dtype if not self.ndim else f"{self.dtype} of {self.ndim} dimension{'s' * (self.ndim > 1)}"


OTHER = ValueType(None)


def type_of(column: Column, name: str = "") -> ValueType | None:
    """The type of a column's values; None of one without values, such as empty lists. Mixed ones are refused.

    >>> print(type_of(np.zeros((2, 3), np.float32)), type_of(np.zeros((2, 0))))
    float32 of 1 dimension None
    """
    if isinstance(column, Ragged):
        return ValueType(str(column.dtype), 1) if column.values.size else None
    if not isinstance(column, np.ndarray) or not column.size:
        return None
    if column.dtype != object:
        return ValueType(str(column.dtype), column.ndim - 1) if column.dtype.kind in _NUMBERS else OTHER
    if column.ndim > 1:
        return OTHER
    first: tuple[int, ValueType] | None = None
    for row, value in enumerate(column.tolist()):
        found = OTHER if type(value) in _PLAIN else _type_of_value(value)
        if found is None:
            continue
        if first is None:
            first = row, found
        elif found != first[1]:
            numbers = OTHER not in (found, first[1])
            raise MixedTypes(name, f"{first[1]} in row {first[0]}, {found} in row {row}", row, numbers=numbers)
    return None if first is None else first[1]


def _type_of_value(value: Any) -> ValueType | None:
    """None of an empty list, and of None: a later filter may drop such rows."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        first = value
        while isinstance(first, list | tuple):
            if not first:
                return None
            first = first[0]
        if not isinstance(first, int | float | complex | np.generic | np.ndarray):
            return OTHER
    elif not isinstance(value, int | float | complex | np.generic | np.ndarray):
        return OTHER
    try:
        array = np.asarray(value)
    except ValueError:  # a nest of different lengths
        return OTHER
    if array.dtype.kind not in _NUMBERS:
        return OTHER
    return ValueType(str(array.dtype), array.ndim) if array.size else None


class ColumnTypes:
    """Remembers the type of each column, and refuses another. Threads may share one."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self._types: dict[str, ValueType] = {}

    def check(self, columns: Columns) -> Columns:
        """The columns themselves; those without values take the type of the others.

        >>> ColumnTypes("map").check({"x": np.array([1])})["x"].tolist()
        [1]
        """
        out = columns
        for name, column in columns.items():
            found = type_of(column, name)
            if found is None:
                if name in self._types and isinstance(column, Ragged | np.ndarray):
                    out = out | {name: _emptied(column, self._types[name])}
                continue
            known = self._types.setdefault(name, found)
            if known != found:
                raise MixedTypes(
                    name, f"{known} in some rows, {found} in others", 0, numbers=OTHER not in (known, found),
                    after=f" after .{self.verb}()",
                )  # fmt: skip
        return out


def _emptied(column: Ragged | np.ndarray[Any, Any], known: ValueType) -> Column:
    """A column without values in the type of the other batches."""
    if known.dtype is None:
        return column if column.dtype == object else strings([[] for _ in range(len(column))])
    if isinstance(column, Ragged):
        return type(column)(column.values.astype(known.dtype), column.offsets)
    return column if column.dtype == object else column.astype(known.dtype)
