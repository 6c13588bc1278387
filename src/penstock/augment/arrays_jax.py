"""`Arrays` in JAX. A list of operations is one compiled program: a new batch shape, dtype or list compiles again, new
keys do not. Operations select and weigh by traced parameters and never branch on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.augment.arrays import Arrays, apply_all, each
from penstock.core.optional import need

if TYPE_CHECKING:
    from penstock.augment.kinds import Kind
    from penstock.augment.operations.base import Op
    from penstock.augment.params import Drawn


class JaxArrays(Arrays):
    def __init__(self) -> None:
        self.jax = need("jax", extra="jax", purpose="for Augment.jax()")
        self.jnp = jnp = need("jax.numpy", extra="jax")
        super().__init__(jnp)
        exact = {"precision": "highest"}  # accelerators would otherwise multiply in bfloat16
        self.matmul, self.einsum = partial(jnp.matmul, **exact), partial(jnp.einsum, **exact)
        self.wide = jnp.float32  # float64 is off by default

    def asarray(self, value: Any) -> Any:
        return self.jnp.asarray(value)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def is_integer(self, dtype: Any) -> bool:
        return bool(self.jnp.issubdtype(dtype, self.jnp.integer))

    def constant(self, value: Any, like: Any, dtype: Any = None) -> Any:
        return self.jnp.asarray(value, dtype or like.dtype)

    def full(self, shape: tuple[int, ...], value: Any, like: Any) -> Any:
        return self.jnp.full(shape, value, like.dtype)

    def floats(self, start: int, stop: int, like: Any) -> Any:
        return np.arange(start, stop, dtype=np.float32)

    def indices(self, length: int, like: Any) -> Any:
        return np.arange(length, dtype=np.int32)

    def counters(self, length: int, like: Any) -> Any:
        return self.jnp.arange(length, dtype=self.jnp.uint32)

    def maximum(self, x: Any, low: float) -> Any:
        return self.jnp.maximum(x, low)

    def clip01(self, x: Any) -> Any:
        return self.clip(x, 0, 1)

    def is_traced(self, x: Any) -> bool:
        return isinstance(x, self.jax.core.Tracer)

    def bounds(self, x: Any) -> tuple[float, float] | None:
        return None if self.is_traced(x) else super().bounds(x)

    def spoiled_outside(self, x: Any, low: float, high: float) -> Any:
        return self.where((x >= low).all() & (x <= high).all(), x, self.jnp.nan)

    def drawn_later(self, draw: Callable[[Any], Any], keys: Any) -> Any:
        # on the host, when the compiled program runs; once now, to know the shapes
        shapes = self.jax.tree.map(
            lambda made: self.jax.ShapeDtypeStruct(made.shape, made.dtype), draw(np.zeros(keys.shape, np.int32))
        )
        return self.jax.pure_callback(lambda array: draw(np.asarray(array)), shapes, keys, vmap_method="sequential")

    def one_hot(self, labels: Any, classes: int) -> Any:
        return self.jax.nn.one_hot(labels, classes)

    def pad_edge(self, x: Any, axis: int, width: int) -> Any:
        return self.jnp.pad(x, [(width, width) if k == axis else (0, 0) for k in range(x.ndim)], mode="edge")

    def gather(self, x: Any, axis: int, index: Any) -> Any:
        take = partial(self.jnp.take, axis=axis % x.ndim - 1, mode="clip")
        return self.jax.vmap(take)(x, index)

    def windows(
        self, x: Any, axis: int, starts: Sequence[Any], sizes: Sequence[int], margin: int = 0, fill: Any = 0
    ) -> Any:
        first, last = axis % x.ndim - 1, axis % x.ndim - 1 + len(sizes)
        if margin:
            around = [(margin, margin) if first < k <= last else (0, 0) for k in range(x.ndim)]
            x = self.jnp.pad(x, around, constant_values=fill)
        shape = list(x.shape[1:])
        shape[first:last] = sizes

        def one(row: Any, *at: Any) -> Any:
            start: list[Any] = [0] * row.ndim
            start[first:last] = [a + margin for a in at]
            return self.jax.lax.dynamic_slice(row, start, shape)

        return self.jax.vmap(one)(x, *starts)

    def histogram(self, values: Any, bins: int) -> Any:
        return self.jax.vmap(partial(self.jnp.bincount, length=bins))(values)

    def branches(self, functions: Sequence[Callable[..., Any]], which: Any, x: Any, p: dict[str, Any]) -> Any:
        def branch(function: Callable[..., Any], x: Any, p: dict[str, Any]) -> Any:
            return function(self, x[None], {name: value[None] for name, value in p.items()})[0]

        bodies = [partial(branch, function) for function in functions]

        def one(row: Any) -> Any:
            at, x, p = row
            return self.jax.lax.switch(at, bodies, x, p)

        return self.jax.lax.map(one, (which, x, p))

    def loop(self, count: int, body: Callable[[Any, Any], Any], total: Any) -> Any:
        return self.jax.lax.fori_loop(0, count, body, total)

    def apply(self, op: Op, x: Any, p: Drawn) -> Any:
        made = op.apply(self, x, p)
        return made if op.mixes or op.p == 1 else self.where(each(p["on"], x), made, x)

    def call(self, function: Callable[..., Any], static: tuple[Any, ...], *arrays: Any) -> Any:
        return compiled(function, static)(*arrays)

    def run(self, kind: Kind, ops: tuple[Op, ...], x: Any, drawn: Sequence[Drawn]) -> Any:
        return program(kind, ops)(x, tuple(drawn))


jax_arrays = cache(JaxArrays)


@lru_cache(maxsize=128)
def program(kind: Kind, ops: tuple[Op, ...]) -> Any:
    """The compiled `(batch, parameters) -> batch` of a list of operations."""
    xp = jax_arrays()
    return xp.jax.jit(partial(apply_all, xp, kind, ops))


@lru_cache(maxsize=128)
def compiled(function: Callable[..., Any], static: tuple[Any, ...]) -> Any:
    """`function(xp, *static, ...)`, compiled."""
    xp = jax_arrays()
    return xp.jax.jit(partial(function, xp, *static))
