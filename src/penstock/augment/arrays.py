"""The array functions that operations use, with one meaning in NumPy, torch and JAX.

An operation is written once, as `apply(xp, x, p)`, where `xp` is an `Arrays`. Functions that the frameworks share under
one name are taken from the framework; the others are methods, overridden in `arrays_numpy`, `arrays_torch` and
`arrays_jax`. Inside `apply`, `a += b` is in place in NumPy and torch and a new array in JAX: use it only on arrays that
`apply` itself made, never on `x` or `p`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from penstock.augment.kinds import Kind
    from penstock.augment.operations.base import Op
    from penstock.augment.params import Drawn


class Arrays(ABC):
    """The functions of one framework. `host` is True where arrays are NumPy arrays and rows may differ in size."""

    host = False

    def __init__(self, module: Any) -> None:
        self.where, self.clip, self.round = module.where, module.clip, module.round
        self.minimum, self.amin, self.amax = module.minimum, module.amin, module.amax
        self.abs, self.exp, self.log, self.sqrt = module.abs, module.exp, module.log, module.sqrt
        self.floor = module.floor
        self.cos, self.sinc = module.cos, module.sinc
        self.flip, self.concatenate, self.stack, self.argsort = (
            module.flip, module.concatenate, module.stack, module.argsort
        )  # fmt: skip
        self.matmul, self.einsum = module.matmul, module.einsum
        self.cumsum, self.iinfo = module.cumsum, module.iinfo
        self.float32, self.int32 = module.float32, module.int32
        self.rfft, self.irfft = module.fft.rfft, module.fft.irfft
        self.wide: Any = module.float64
        """The most precise float of the framework."""

    @abstractmethod
    def asarray(self, value: Any) -> Any:
        """`value` as an array of this framework."""

    @abstractmethod
    def astype(self, x: Any, dtype: Any) -> Any:
        """`x` as `dtype`; `x` itself if it has that dtype."""

    @abstractmethod
    def is_integer(self, dtype: Any) -> bool: ...

    @abstractmethod
    def constant(self, value: Any, like: Any, dtype: Any = None) -> Any:
        """A number or list as an array on the device of `like`, of its dtype or `dtype`."""

    @abstractmethod
    def full(self, shape: tuple[int, ...], value: Any, like: Any) -> Any: ...

    @abstractmethod
    def floats(self, start: int, stop: int, like: Any) -> Any:
        """start, start + 1, ... below stop, as float32."""

    @abstractmethod
    def indices(self, length: int, like: Any) -> Any:
        """0, 1, ... below length, in the integer dtype of drawn parameters."""

    @abstractmethod
    def counters(self, length: int, like: Any) -> Any:
        """0, 1, ... below length, in the dtype that holds 32-bit words."""

    def word(self, value: int) -> Any:
        """A constant for arithmetic on 32-bit words."""
        return np.uint32(value)

    def low32(self, x: Any) -> Any:
        """`x` modulo 2**32; may overwrite `x`."""
        return x

    @abstractmethod
    def maximum(self, x: Any, low: float) -> Any: ...

    @abstractmethod
    def clip01(self, x: Any) -> Any:
        """`x` limited to [0, 1]; may overwrite `x`."""

    def is_traced(self, x: Any) -> bool:
        """Whether the values of `x` are not known yet, because a function is being compiled."""
        return False

    def drawn_later(self, draw: Callable[[Any], Any], keys: Any) -> Any:
        """`draw(keys)`; of traced keys, when their values are known."""
        return draw(keys)

    def bounds(self, x: Any) -> tuple[float, float] | None:
        """The least and the greatest value; None if they are not known yet (inside `jax.jit`)."""
        return float(x.min()), float(x.max())

    def spoiled_outside(self, x: Any, low: float, high: float) -> Any:
        """`x`, all NaN if a value is not within [low, high]; also for values that are not known yet."""
        least, greatest = self.bounds(x) or (low, high)
        return x if low <= least and greatest <= high else x * float("nan")

    @abstractmethod
    def one_hot(self, labels: Any, classes: int) -> Any: ...

    def contiguous(self, x: Any) -> Any:
        return x

    def pad_edge(self, x: Any, axis: int, width: int) -> Any:
        """`x` with its first and last entries repeated `width` times on both sides of an axis."""
        before = (slice(None),) * axis
        first, last = x[(*before, slice(0, 1))], x[(*before, slice(-1, None))]
        return self.concatenate([first] * width + [x] + [last] * width, axis)

    @abstractmethod
    def gather(self, x: Any, axis: int, index: Any) -> Any:
        """Row i of `x` at the positions `index[i]` of an axis; `index` is (rows, n)."""

    @abstractmethod
    def windows(
        self, x: Any, axis: int, starts: Sequence[Any], sizes: Sequence[int], margin: int = 0, fill: Any = 0
    ) -> Any:
        """From row i, `sizes[k]` entries from `starts[k][i]` on, along axis + k, for each k. Windows may reach outside
        of `x` by up to `margin` entries, which are `fill`."""

    def movechannel(self, x: Any) -> Any:
        """(rows, a, b) as (rows, b, a)."""
        return x.swapaxes(1, 2)

    @abstractmethod
    def histogram(self, values: Any, bins: int) -> Any:
        """How often 0, 1, ... below `bins` occur in each row of `values` (rows, n), as integers (rows, bins)."""

    @abstractmethod
    def branches(self, functions: Sequence[Callable[..., Any]], which: Any, x: Any, p: dict[str, Any]) -> Any:
        """Row i of `x` through `functions[which[i]](xp, x, p)`, which keeps shape and dtype."""

    def rot90(self, x: Any, k: Any) -> Any:
        """Images (N, H, W, C) turned by k quarter turns each. Only even k if they are not square.

        One gather by a table of turned positions: selecting among transposed copies makes XLA choose a layout in which
        all later operations are ten times slower on a CPU."""
        rows, height, width, channels = x.shape
        table = np.arange(height * width, dtype=np.int32).reshape(height, width)
        square = height == width
        turned = np.stack([np.rot90(table, turns).ravel() for turns in ((0, 1, 2, 3) if square else (0, 2))])
        index = self.constant(turned, k)[k if square else k // 2]
        return self.gather(x.reshape(rows, height * width, channels), 1, index).reshape(x.shape)

    def part(self, x: Any, box: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Images that contain the boxes, and the boxes' y and x in them; None means that the images are the boxes."""
        return x, box["y"], box["x"]

    def resample(self, down: Any, across: Any, x: Any) -> Any:
        """Images (N, h, w, C) times weights (N, H, h) and (N, W, w): (N, H, W, C)."""
        return self.einsum("npw,nowc->nopc", across, self.einsum("noh,nhwc->nowc", down, x))

    def loop(self, count: int, body: Callable[[Any, Any], Any], total: Any) -> Any:
        """`total = body(i, total)` for i from 0 to count - 1."""
        for i in range(count):
            total = body(i, total)
        return total

    def where_rare(self, rare: Any, function: Callable[[Any], Any], x: Any, usual: Any) -> Any:
        """`function(x)` where `rare`, else `usual`, which may be overwritten."""
        return self.where(rare, function(x), usual)

    def parameters(self, p: Drawn, like: Any) -> dict[str, Any]:
        """Drawn parameters as this framework computes and indexes with them, on the device of `like`."""
        return p

    @abstractmethod
    def apply(self, op: Op, x: Any, p: Drawn) -> Any:
        """One operation on the rows that it was drawn for (`p["on"]`)."""

    def call(self, function: Callable[..., Any], static: tuple[Any, ...], *arrays: Any) -> Any:
        """`function(xp, *static, *arrays)`; in JAX compiled once for equal `static`, which must be hashable."""
        return function(self, *static, *arrays)

    def run(self, kind: Kind, ops: tuple[Op, ...], x: Any, drawn: Sequence[Drawn]) -> Any:
        """All operations in order on a batch, with the parameters drawn for it."""
        return apply_all(self, kind, ops, x, drawn)


def apply_all(xp: Arrays, kind: Kind, ops: Sequence[Op], x: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in order. `x` becomes float32 at the first one that computes and is rounded once, at the end."""
    dtype = x.dtype
    x = kind.enter(xp, x)
    for op, p in zip(ops, drawn, strict=True):
        x = xp.apply(op, x if op.exact else kind.to_float(xp, x), p)
    return kind.from_float(xp, kind.leave(xp, x), dtype)


def each(values: Any, x: Any) -> Any:
    """One value per row, in a shape that broadcasts against `x`."""
    return values.reshape(-1, *[1] * (x.ndim - 1))
