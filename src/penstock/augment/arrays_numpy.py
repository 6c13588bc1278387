"""`Arrays` in NumPy. Parameters are known here, so loops over rows and slices replace gathers by index arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.augment.operations.base import Op
    from penstock.augment.params import Drawn


_ONE = int(np.array(1.0, np.float32).view(np.uint32))


class NumpyArrays(Arrays):
    host = True

    def __init__(self) -> None:
        super().__init__(np)
        self.round = np.rint

    def asarray(self, value: Any) -> Any:
        return value if isinstance(value, np.ndarray) else np.asarray(value)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype, copy=False)

    def is_integer(self, dtype: Any) -> bool:
        return bool(np.dtype(dtype).kind in "ui")

    def constant(self, value: Any, like: Any, dtype: Any = None) -> Any:
        return np.asarray(value, dtype or like.dtype)

    def full(self, shape: tuple[int, ...], value: Any, like: Any) -> Any:
        return np.full(shape, value, like.dtype)

    def floats(self, start: int, stop: int, like: Any) -> Any:
        return np.arange(start, stop, dtype=np.float32)

    def indices(self, length: int, like: Any) -> Any:
        return np.arange(length, dtype=np.int32)

    def counters(self, length: int, like: Any) -> Any:
        return np.arange(length, dtype=np.uint32)

    def maximum(self, x: Any, low: float) -> Any:
        return np.maximum(x, low)

    def clip01(self, x: Any) -> Any:
        return np.clip(x, 0, 1, out=x)

    def bounds(self, x: Any) -> tuple[float, float] | None:
        if x.dtype == np.float32 and x.flags.c_contiguous:  # floats of one sign are ordered like their bits: one pass
            top = int(x.view(np.uint32).max())
            if top <= _ONE:
                return 0.0, float(np.array(top, np.uint32).view(np.float32))
        return super().bounds(x)

    def one_hot(self, labels: Any, classes: int) -> Any:
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise UsageError(
                f"labels from 0 to {classes - 1}",
                got=f"labels from {labels.min()} to {labels.max()}",
                where=f"a mixing operation with classes={classes}",
                fix="set classes= to the number of classes, and drop rows without a label before",
            )
        return np.eye(classes, dtype=np.float32)[labels]

    def contiguous(self, x: Any) -> Any:
        return np.ascontiguousarray(x)

    def gather(self, x: Any, axis: int, index: Any) -> Any:
        axis %= x.ndim
        shape = list(x.shape)
        shape[axis] = index.shape[1]
        out = np.empty(shape, x.dtype)
        for i in range(len(x)):
            np.take(x[i], index[i], axis - 1, out[i], "clip")  # "clip" writes straight into out
        return out

    def windows(
        self, x: Any, axis: int, starts: Sequence[Any], sizes: Sequence[int], margin: int = 0, fill: Any = 0
    ) -> Any:
        axis %= x.ndim
        shape, reads, writes = list(x.shape), [], []
        for k, (start, size) in enumerate(zip(starts, sizes, strict=True), axis):
            low, high = np.maximum(start, 0), np.minimum(start + size, x.shape[k])
            reads.append(map(slice, low.tolist(), high.tolist()))
            writes.append(map(slice, (low - start).tolist(), (high - start).tolist()))
            shape[k] = size
        out = np.full(shape, fill, x.dtype) if margin and fill else np.zeros(shape, x.dtype)
        before = (slice(None),) * (axis - 1)
        for i, (read, write) in enumerate(zip(zip(*reads, strict=True), zip(*writes, strict=True), strict=True)):
            out[(i, *before, *write)] = x[(i, *before, *read)]
        return out

    def histogram(self, values: Any, bins: int) -> Any:
        rows = len(values)
        shifted = values + np.arange(rows, dtype=np.int64)[:, None] * bins
        return np.bincount(shifted.ravel(), minlength=rows * bins).reshape(rows, bins).astype(np.int32)

    def branches(self, functions: Sequence[Callable[..., Any]], which: Any, x: Any, p: dict[str, Any]) -> Any:
        out = np.empty_like(x)
        for i, branch in enumerate(which.tolist()):  # one row at a time stays in the processor's cache
            row = slice(i, i + 1)
            out[row] = functions[branch](self, x[row], {name: values[row] for name, values in p.items()})
        return out

    def rot90(self, x: Any, k: Any) -> Any:
        out = np.empty_like(x)
        for turns in range(4):
            rows = np.flatnonzero(k == turns)
            if len(rows):
                out[rows] = np.rot90(x[rows], turns, axes=(1, 2))
        return out

    def part(self, x: Any, box: dict[str, Any]) -> tuple[Any, Any, Any]:
        y, left, height, width = (int(box[name][0]) for name in ("y", "x", "h", "w"))
        return x[:, y : y + height, left : left + width], None, None

    def resample(self, down: Any, across: Any, x: Any) -> Any:
        rows, height, width, channels = x.shape
        tall = (down @ x.reshape(rows, height, width * channels)).reshape(rows, -1, width, channels)
        return np.matmul(across[:, None], tall)

    def where_rare(self, rare: Any, function: Callable[[Any], Any], x: Any, usual: Any) -> Any:
        at = np.flatnonzero(rare)
        usual.reshape(-1)[at] = function(x.reshape(-1)[at])
        return usual

    def apply(self, op: Op, x: Any, p: Drawn) -> Any:
        rows = np.flatnonzero(p["on"])
        if op.mixes or (len(rows) == len(x) and not op.row_by_row):
            return op.apply(self, x, p)
        if not len(rows) and len(x):
            return x
        if op.row_by_row:
            made = np.empty((len(rows), *op.shape(x.shape[1:])), x.dtype)
            for at, i in enumerate(rows.tolist()):
                made[at] = op.apply(self, x[i : i + 1], {name: values[i : i + 1] for name, values in p.items()})[0]
        else:
            made = op.apply(self, x[rows], {name: values[rows] for name, values in p.items()})
        if len(rows) == len(x):
            return made
        out = x.copy()
        out[rows] = made
        return out


NUMPY = NumpyArrays()
