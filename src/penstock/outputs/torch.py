"""`to_torch`: dicts of contiguous torch tensors, on the host, pinned, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.outputs.numpy import widened


class TorchOutput:
    """Token ids come as `ids` (int64 unless asked). Columns of strings or objects come as lists."""

    name = "torch"

    def __init__(self, device: Any = None, pin_memory: bool = False, ids: Any = np.int64) -> None:
        self.torch = need("torch", extra="torch", purpose="for .to_torch()")
        self._from_numpy = self.torch.from_numpy
        self.ids = np.dtype(ids)
        self.buffers = Buffers()
        self.device = None if device is None else self.torch.device(device)
        self.pin = pin_memory and self.torch.cuda.is_available()

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return widened(columns, ids, self.ids, self.buffers)

    def batch(self, columns: Columns) -> dict[str, Any]:
        return {name: self._tensor(name, column) for name, column in columns.items()}

    def quick(self, columns: Columns, ids: frozenset[str]) -> dict[str, Any]:
        """`batch(block(columns))` in one pass: what has its final form already is only wrapped."""
        if self.pin or self.device is not None:
            return self.batch(self.block(columns, ids))
        out, tensor, want = {}, self._from_numpy, self.ids
        for name, column in columns.items():
            if type(column) is np.ndarray:
                flags, kind = column.flags, column.dtype
                ready = kind == want if name in ids and kind.kind in "iu" else kind.kind in "ifb" or kind.char == "B"
                if ready and flags.c_contiguous and flags.writeable:
                    out[name] = tensor(column)
                    continue
            out[name] = self._tensor(name, widened({name: column}, ids, want, self.buffers)[name])
        return out

    def finish(self, columns: Columns) -> dict[str, Any]:
        """A batch of new, contiguous columns whose token ids have their final type."""
        if self.pin or self.device is not None:
            return self.batch(columns)
        tensor = self._from_numpy
        return {name: tensor(column) for name, column in columns.items()}

    def cast(self, pairs: NDArray[Any]) -> NDArray[Any]:
        """Token ids in their final type."""
        return self.buffers.cast(pairs, self.ids)

    def couple(self, first: str, second: str, ready: bool) -> Callable[[NDArray[Any]], dict[str, Any]]:
        """`batch(block(columns))` for two columns of token ids that are overlapping views of one array.

        One copy for both and as few calls as can be: for small batches the calls cost as much as the copies. With
        `ready` the pair has been through `cast`.
        """
        take, copy, tensor, ids = self.buffers.take, np.copyto, self._from_numpy, self.ids
        elsewhere = self.pin or self.device is not None

        def finish(both: NDArray[Any]) -> dict[str, Any]:
            if elsewhere:
                return self.batch({first: both[0], second: both[1]})
            return {first: tensor(both[0]), second: tensor(both[1])}

        def deliver(pair: NDArray[Any]) -> dict[str, Any]:
            both = take(pair.shape, ids)
            copy(both, pair, "unsafe")
            return {first: tensor(both[0]), second: tensor(both[1])}

        if ready:
            return finish
        return (lambda pair: finish(self.cast(pair))) if elsewhere else deliver

    def _tensor(self, name: str, column: Any) -> Any:
        if isinstance(column, Ragged):
            raise UsageError(
                f"rows of equal length in column {name!r} for torch",
                got=f"lengths from {column.lengths.min(initial=0)} to {column.lengths.max(initial=0)}",
                fix=".pad(to='longest') or .pack(...) before .to_torch()",
            )
        if column.dtype.hasobject:
            return column.tolist()
        if not column.flags.writeable:
            column = column.copy()  # torch has no read-only tensors
        tensor = self._from_numpy(column)
        if self.pin:
            tensor = tensor.pin_memory()
        return tensor if self.device is None else tensor.to(self.device, non_blocking=self.pin)

    def nbytes(self, batch: dict[str, Any]) -> int:
        return sum(_bytes(value) for value in batch.values())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("torch", "_from_numpy")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch = need("torch", extra="torch")
        self.__dict__.update(state, torch=torch, _from_numpy=torch.from_numpy)


def _bytes(value: Any) -> int:
    return len(value) * 64 if isinstance(value, list) else int(value.nbytes)
