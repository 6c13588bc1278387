"""`to_jax`: dicts of JAX arrays, placed by a device or a sharding.

With a sharding over several processes each one gives its own rows and gets the global array. Token ids are int32, as
JAX has no int64 unless asked. Columns of strings stay NumPy object arrays: they cannot be on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._errors import UsageError
from penstock._optional import need
from penstock.columns import Columns, Ragged
from penstock.outputs.buffers import Buffers
from penstock.outputs.numpy import widened


class JaxOutput:
    """Placement is started in the loader's threads, ahead of use."""

    name = "jax"

    def __init__(self, sharding: Any = None, ids: Any = np.int32) -> None:
        self.jax = need("jax", extra="jax", purpose="for .to_jax()")
        self.ids = np.dtype(ids)
        self.buffers = Buffers()
        self.sharding = sharding

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return {name: _narrow(column) for name, column in widened(columns, ids, self.ids, self.buffers).items()}

    def batch(self, columns: Columns) -> dict[str, Any]:
        return {name: self._array(name, column) for name, column in columns.items()}

    def _array(self, name: str, column: Any) -> Any:
        if isinstance(column, Ragged):
            raise UsageError(
                f"rows of equal length in column {name!r} for JAX",
                got=f"lengths from {column.lengths.min(initial=0)} to {column.lengths.max(initial=0)}",
                fix=".pad(to=n) or .pack(...) before .to_jax()",
            )
        if column.dtype == object:
            return column
        if self.sharding is None:
            return self.jax.device_put(column)
        if self.jax.process_count() > 1:
            return self.jax.make_array_from_process_local_data(self.sharding, column)
        return self.jax.device_put(column, self.sharding)

    def nbytes(self, batch: dict[str, Any]) -> int:
        return sum(int(value.nbytes) for value in batch.values())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "jax"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, jax=need("jax", extra="jax"))


def _narrow(column: Any) -> Any:
    """64-bit columns as 32-bit, as JAX would silently do; here it is the rule, with a check of the range."""
    if isinstance(column, Ragged) or column.dtype not in (np.int64, np.float64, np.uint64):
        return column
    if column.dtype == np.float64:
        return column.astype(np.float32)
    if column.size and (column.max() > 2**31 - 1 or column.min() < -(2**31)):
        raise UsageError(
            "integers that fit 32 bits for JAX", got=f"{column.max()}", fix="map the column to smaller values"
        )
    return column.astype(np.int32)
