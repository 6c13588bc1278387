"""The types of the columns that a user's function returns: those of its first rows, for all later ones.

A batch whose numbers are of another type than those of other batches, or of other ranks, is a wrong batch: arrays of
different types cannot be gathered, and a jitted step is compiled again for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.columns import Columns
from penstock.core.errors import UsageError

_NUMBERS = "biufc"


class ColumnTypes:
    """Remembers the type of each column of numbers, and refuses another. Threads may share one."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self._types: dict[str, np.dtype[Any]] = {}

    def check(self, columns: Columns) -> Columns:
        """The columns themselves.

        >>> ColumnTypes("map").check({"x": np.array([1])})["x"].tolist()
        [1]
        """
        for name, column in columns.items():
            dtype = getattr(column, "dtype", None)
            if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS or not len(column):
                continue
            known = self._types.setdefault(name, dtype)
            if known != dtype and _values(column):
                raise UsageError(
                    f"numbers of one type in column {name!r} after .{self.verb}()",
                    got=f"{known} in some rows, {dtype} in others",
                    fix=f"return one type for every record, such as float(x): {name!r} is then the same in every batch",
                )
        return columns


def _values(column: Any) -> int:
    values = getattr(column, "values", column)
    return int(values.size)
