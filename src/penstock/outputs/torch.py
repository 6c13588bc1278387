"""`to_torch`: dicts of contiguous torch tensors, on the host, pinned, or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.core.held_bytes import held_bytes
from penstock.core.optional import need
from penstock.engine.output import Output
from penstock.outputs.floats import check_range, floats_name, ids_dtype
from penstock.outputs.numpy import widened
from penstock.outputs.objects import NUMBERS, lengths_of, resolved
from penstock.steps.rows import Memory

_AS_IT_IS = frozenset(map(np.dtype, "bhilqBefd?"))  # types that are delivered without a change
_TORCH = frozenset("bhilqBefd?HILQFD")  # NumPy's characters for them and others


class TorchOutput(Output):
    """Token ids have the dtype `ids` (default int64). Columns of strings are lists, of dicts dicts of tensors."""

    name = "torch"

    def __init__(
        self, device: Any = None, pin_memory: bool = False, ids: Any = np.int64, floats: Any = None,
        memory_format: Any = None,
    ) -> None:  # fmt: skip
        self.torch = need("torch", extra="torch", purpose="for .to_torch()")
        self._from_numpy = self.torch.from_numpy
        self.memory: Memory = Memory(ids_dtype(ids), Buffers())
        try:
            self.device = None if device is None else self.torch.device(device)
        except (RuntimeError, TypeError) as error:
            text = str(error).splitlines()[0][:200]
            raise UsageError("a device of torch in device=", got=f"{device!r}: {text}", fix='device="cuda"') from error
        self.pin = pin_memory and self.torch.cuda.is_available()
        name = floats_name(floats)
        self.floats = None if name is None else getattr(self.torch, name)
        if memory_format not in (None, self.torch.contiguous_format, self.torch.channels_last):
            raise UsageError(
                "torch.contiguous_format or torch.channels_last in memory_format=",
                got=repr(memory_format),
                fix='memory_format=torch.channels_last, after .decode_images(..., layout="NCHW")',
            )
        self.last = memory_format is self.torch.channels_last
        self.wraps = not (self.pin or self.last) and self.device is None and self.floats is None

    def place_on(self, device: Any) -> None:
        """Places batches on this device from now on, unless another was passed. The CPU is where they are anyway."""
        if self.device is None and device.type != "cpu":
            self.device, self.wraps = device, False

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return widened(columns, ids, *self.memory)

    def deliver(self, columns: Columns) -> dict[str, Any]:
        return {name: self._tensor(name, column) for name, column in columns.items()}

    def make(self, columns: Columns, ids: frozenset[str]) -> dict[str, Any]:
        """One pass: for small batches the calls cost as much as the copies. Final arrays are only wrapped."""
        if not self.wraps:
            return self.deliver(self.convert(columns, ids))
        out, tensor, want = {}, self._from_numpy, self.memory.ids
        for name, column in columns.items():
            if type(column) is np.ndarray:
                dtype = column.dtype
                if (dtype is want or (dtype in _AS_IT_IS and name not in ids)) and column.flags.carray:
                    out[name] = tensor(column)
                    continue
            out[name] = self._tensor(name, widened({name: column}, ids, *self.memory)[name])
        return out

    def _tensor(self, name: str, column: Any) -> Any:
        if isinstance(column, Ragged):
            raise UsageError(
                f"rows of equal length in column {name!r} for torch",
                got=lengths_of(column),
                fix=".pad(to='longest') or .pack(...) before .to_torch()",
            )
        if column.dtype.kind not in NUMBERS:
            found = resolved(name, column, "torch")
            if isinstance(found, dict):
                return self._nested(name, found)
            if found.dtype.kind not in NUMBERS:
                return found.tolist()
            column = found
        if not column.flags.writeable:
            column = column.copy()  # torch has no read-only tensors
        if column.dtype.char not in _TORCH:
            raise UsageError(
                f"numbers of a type that torch has in column {name!r}",
                got=str(column.dtype),
                fix=".map() the column to float64 or int64, or leave it out",
            )
        tensor = self._from_numpy(column)
        if self.floats is not None and tensor.is_floating_point():
            tensor = self._cast(name, tensor)
        if self.last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=self.torch.channels_last)
        if self.pin:
            tensor = tensor.pin_memory()
        return tensor if self.device is None else self._placed(tensor, self.device)

    def _placed(self, tensor: Any, device: Any) -> Any:
        try:
            return tensor.to(device, non_blocking=self.pin)
        except (AssertionError, RuntimeError) as error:
            if device.type != "cuda" or self.torch.cuda.is_available():
                raise
            raise UsageError(
                "a device that torch can use here in device=", got=f"{str(device)!r}: {str(error)[:200]}",
                fix='device="cpu", or check the driver, and that torch was installed with CUDA',
            ) from error  # fmt: skip

    def _cast(self, name: str, tensor: Any) -> Any:
        made = tensor.to(self.floats)
        if made.element_size() < tensor.element_size() and bool(made.isinf().any()):
            check_range(name, str(self.floats), bool((made.isinf() & ~tensor.isinf()).any()))
        return made

    def _nested(self, name: str, parts: dict[str, Any]) -> dict[str, Any]:
        return {
            key: self._nested(name, part) if isinstance(part, dict) else self._tensor(f"{name}.{key}", part)
            for key, part in parts.items()
        }

    def nbytes(self, batch: dict[str, Any]) -> int:
        return held_bytes(batch)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("torch", "_from_numpy")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch = need("torch", extra="torch")
        self.__dict__.update(state, torch=torch, _from_numpy=torch.from_numpy)
