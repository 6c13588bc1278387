"""`to_numpy`: dicts of contiguous NumPy arrays; ragged columns stay `Ragged`."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Ragged, nbytes
from penstock.core.errors import UsageError
from penstock.engine.output import Output
from penstock.outputs.floats import cast_floats, ids_dtype, numpy_floats
from penstock.steps.rows import Memory


def widened(columns: Columns, ids: frozenset[str], dtype: Any, buffers: Buffers) -> Columns:
    """Token ids as `dtype`, all columns contiguous; copies only columns that are not."""
    out: Columns = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            values = _final(name, column.values, name in ids, dtype, buffers)
            out[name] = column if values is column.values else Ragged(values, column.offsets)
        else:
            out[name] = _final(name, column, name in ids, dtype, buffers)
    return out


def _final(name: str, array: Any, is_ids: bool, dtype: Any, buffers: Buffers) -> Any:
    have = array.dtype
    if (is_ids and have.kind in "iu") or (have.kind == "u" and have.itemsize > 1):
        if have == dtype and array.flags.c_contiguous:
            return array
        if not np.can_cast(have, dtype) and array.size:
            _check_fits(name, array, dtype)
        return buffers.cast(array, dtype)
    if array.flags.c_contiguous and have.isnative:
        return array
    return array.copy(order="C") if have.hasobject else buffers.cast(array, have.newbyteorder("="))


def _check_fits(name: str, array: Any, dtype: np.dtype[Any]) -> None:
    """Refuses integers that `dtype` would wrap."""
    low, high, bounds = int(array.min()), int(array.max()), np.iinfo(dtype)
    if low < bounds.min or high > bounds.max:
        raise UsageError(
            f"integers in column {name!r} that fit {dtype}, the type of ids=",
            got=f"values from {low} to {high}",
            fix="a wider ids=, or .map() them to smaller numbers or to text: str(n)",
        )


class NumpyOutput(Output):
    """Token ids have the dtype `ids` (default int64)."""

    name = "numpy"
    wraps = True

    def __init__(self, ids: Any = np.int64, floats: Any = None) -> None:
        self.memory: Memory = Memory(ids_dtype(ids), Buffers())
        self.floats = numpy_floats(floats)

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return widened(columns, ids, *self.memory)

    def deliver(self, columns: Columns) -> Columns:
        return columns if self.floats is None else {n: _cast(n, c, self.floats) for n, c in columns.items()}

    def nbytes(self, batch: Columns) -> int:
        return nbytes(batch)


def _cast(name: str, column: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(column, Ragged):
        return Ragged(cast_floats(column.values, dtype, name), column.offsets)
    return cast_floats(column, dtype, name)
