"""`Arrays` in torch, on the device of each tensor. Drawn parameters are copied there from the host.

32-bit words are int64 tensors, as torch has little arithmetic for uint32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.augment.arrays import Arrays, each
from penstock.core.optional import need

if TYPE_CHECKING:
    from penstock.augment.operations.base import Op
    from penstock.augment.params import Drawn


class TorchArrays(Arrays):
    def __init__(self) -> None:
        self.torch = need("torch", extra="torch", purpose="for Augment.torch()")
        super().__init__(self.torch)

    def asarray(self, value: Any) -> Any:
        return self.torch.as_tensor(value)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    def is_integer(self, dtype: Any) -> bool:
        return not dtype.is_floating_point

    def constant(self, value: Any, like: Any, dtype: Any = None) -> Any:
        return self.torch.as_tensor(value, dtype=dtype or like.dtype, device=like.device)

    def full(self, shape: tuple[int, ...], value: Any, like: Any) -> Any:
        return self.torch.full(shape, value, dtype=like.dtype, device=like.device)

    def floats(self, start: int, stop: int, like: Any) -> Any:
        return self.torch.arange(start, stop, dtype=self.float32, device=like.device)

    def indices(self, length: int, like: Any) -> Any:
        return self.torch.arange(length, dtype=self.torch.int64, device=like.device)

    def counters(self, length: int, like: Any) -> Any:
        return self.indices(length, like)

    def word(self, value: int) -> Any:
        return value

    def low32(self, x: Any) -> Any:
        x &= 0xFFFFFFFF  # products wrap modulo 2**64, which leaves their low 32 bits right
        return x

    def maximum(self, x: Any, low: float) -> Any:
        return x.clamp(min=low)

    def clip01(self, x: Any) -> Any:
        return x.clamp_(0, 1)

    def one_hot(self, labels: Any, classes: int) -> Any:
        return self.torch.nn.functional.one_hot(labels.to(self.torch.int64), classes).to(self.float32)

    def gather(self, x: Any, axis: int, index: Any) -> Any:
        return self._at(x, axis, (index,))

    def windows(
        self, x: Any, axis: int, starts: Sequence[Any], sizes: Sequence[int], margin: int = 0, fill: Any = 0
    ) -> Any:
        axis %= x.ndim
        at = [start[:, None] + self.indices(size, x) for start, size in zip(starts, sizes, strict=True)]
        limits = x.shape[axis : axis + len(at)]
        made = self._at(x, axis, [one.clamp(0, limit - 1) for one, limit in zip(at, limits, strict=True)])
        if not margin:
            return made
        real = self.constant(True, x, self.torch.bool)
        for k, (one, limit) in enumerate(zip(at, limits, strict=True), axis):
            shape = (len(x), *[-1 if i == k else 1 for i in range(1, x.ndim)])
            real = real & ((one >= 0) & (one < limit)).reshape(shape)
        return self.where(real, made, self.constant(fill, x))

    def histogram(self, values: Any, bins: int) -> Any:
        ones = self.torch.ones_like(values)
        zeros = self.torch.zeros((len(values), bins), dtype=values.dtype, device=values.device)
        return zeros.scatter_add_(1, values.to(self.torch.int64), ones)

    def branches(self, functions: Sequence[Callable[..., Any]], which: Any, x: Any, p: dict[str, Any]) -> Any:
        out = x.clone()
        for branch in which.unique().tolist():
            rows = (which == branch).nonzero()[:, 0]
            out[rows] = functions[branch](self, x[rows], {name: values[rows] for name, values in p.items()})
        return out

    def _at(self, x: Any, axis: int, indices: Sequence[Any]) -> Any:
        """Row i at the positions `indices[k][i]` of axis + k."""
        count = len(indices)
        if count == 1 and axis % x.ndim == x.ndim - 1:
            return x.gather(-1, indices[0].reshape(len(x), *[1] * (x.ndim - 2), -1).expand(*x.shape[:-1], -1))
        axes, front = tuple(axis % x.ndim + k for k in range(count)), tuple(range(1, 1 + count))
        shaped = [one.reshape(len(x), *[-1 if k == i else 1 for i in range(count)]) for k, one in enumerate(indices)]
        rows = self.indices(len(x), x).reshape(-1, *[1] * count)
        return self.torch.movedim(self.torch.movedim(x, axes, front)[(rows, *shaped)], front, axes)

    def apply(self, op: Op, x: Any, p: Drawn) -> Any:
        on = p["on"]
        if not op.mixes and not on.any():
            return x
        tensors = self.parameters(p, x)
        made = op.apply(self, x, tensors)
        return made if op.mixes or on.all() else self.where(each(tensors["on"], x), made, x)

    def parameters(self, p: Drawn, like: Any) -> dict[str, Any]:
        wide = {name: v.astype(np.int64) if v.dtype.kind in "ui" else v for name, v in p.items()}
        return {name: self.torch.from_numpy(np.ascontiguousarray(v)).to(like.device) for name, v in wide.items()}


torch_arrays = cache(TorchArrays)
