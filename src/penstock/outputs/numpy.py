"""`to_numpy`: dicts of contiguous NumPy arrays; ragged columns stay `Ragged`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Ragged, nbytes


def widened(columns: Columns, ids: frozenset[str], dtype: Any, buffers: Buffers) -> Columns:
    """Token ids as `dtype`, everything contiguous; copies only what is not so already."""
    out: Columns = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            values = _final(column.values, name in ids, dtype, buffers)
            out[name] = column if values is column.values else Ragged(values, column.offsets)
        else:
            out[name] = _final(column, name in ids, dtype, buffers)
    return out


def _final(array: Any, is_ids: bool, dtype: Any, buffers: Buffers) -> Any:
    have = array.dtype
    if (is_ids and have.kind in "iu") or (have.kind == "u" and have.itemsize > 1):
        if have == dtype and array.flags.c_contiguous:
            return array
        return buffers.cast(array, dtype)
    if array.flags.c_contiguous:
        return array
    return array.copy(order="C") if have.hasobject else buffers.cast(array, have)


class NumpyOutput:
    """Token ids come as `ids` (int64 unless asked)."""

    name = "numpy"

    def __init__(self, ids: Any = np.int64) -> None:
        self.ids = np.dtype(ids)
        self.buffers = Buffers()

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return widened(columns, ids, self.ids, self.buffers)

    def batch(self, columns: Columns) -> Columns:
        return columns

    def finish(self, columns: Columns) -> Columns:
        """A batch of new, contiguous columns whose token ids have their final type."""
        return columns

    def cast(self, pairs: NDArray[Any]) -> NDArray[Any]:
        """Token ids in their final type."""
        return self.buffers.cast(pairs, self.ids)

    def couple(self, first: str, second: str, ready: bool) -> Callable[[NDArray[Any]], Columns]:
        """`batch(block(columns))` for two columns of token ids that are overlapping views of one array; with `ready`
        the pair has been through `cast`."""
        take, copy, ids = self.buffers.take, np.copyto, self.ids

        def finish(both: NDArray[Any]) -> Columns:
            return {first: both[0], second: both[1]}

        def deliver(pair: NDArray[Any]) -> Columns:
            both = take(pair.shape, ids)
            copy(both, pair, "unsafe")
            return finish(both)

        return finish if ready else deliver

    def nbytes(self, batch: Columns) -> int:
        return nbytes(batch)
