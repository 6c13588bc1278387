"""The parameters of an augmentation: drawn for a batch from its row keys, in NumPy, before any value is touched.

`draw(op, keys, shape)` returns a dict of arrays with one entry per row: float32, int32, uint32 (keys of noise fields)
or bool. `on` is True for the rows that the operation changes. The same dict goes to NumPy, torch or JAX, so the three
cannot draw differently. A row's parameters depend on its own key alone, except a mixing partner, which depends on the
set of keys in the batch. Costs a few microseconds per operation and batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.randomness import U64

if TYPE_CHECKING:
    from penstock.augment.operations.base import Op, Shape

Drawn = dict[str, NDArray[Any]]

ON, FIELD, GAMMA = 1000, 1001, 2000
"""Draw numbers far from those that operations count up from 0."""


def operation_keys(keys: U64, seed: int, op: Op, place: int) -> U64:
    """Keys of one operation. `place` counts the operations of its name before it, so that adding an operation of
    another name changes no other draw."""
    return randomness.keys(randomness.key(seed, "augment", type(op).__name__, place), keys.view(np.int64))


def draw_all(ops: Sequence[Op], keys: U64, seed: int, shape: Shape) -> tuple[Drawn, ...]:
    """Parameters of every operation in order, for rows that start as `shape` (without the row axis)."""
    seen: dict[str, int] = {}
    out = []
    for op in ops:
        place = seen.get(type(op).__name__, 0)
        seen[type(op).__name__] = place + 1
        out.append(draw(op, operation_keys(keys, seed, op, place), shape))
        shape = op.shape(shape)
    return tuple(out)


def draw(op: Op, keys: U64, shape: Shape) -> Drawn:
    """Parameters of one operation for rows of `shape`.

    >>> from penstock.augment import Brightness
    >>> made = draw(Brightness(0.2), randomness.keys(randomness.key(7), np.arange(1000)), (32, 32, 3))
    >>> made["factor"].dtype, bool((abs(made["factor"] - 1) <= 0.2).all()), bool(made["on"].all())
    (dtype('float32'), True, True)
    """
    return {"on": on(op, keys), **op.draw(keys, shape)}


def on(op: Op, keys: U64) -> NDArray[np.bool_]:
    """Which rows the operation changes: each with probability `op.p`."""
    return randomness.uniform(keys, ON) < op.p


def field_keys(keys: U64) -> Drawn:
    """Two 32-bit words per row that key its noise field."""
    bits = randomness.bits(keys, FIELD)
    return {"k0": (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), "k1": (bits >> np.uint64(32)).astype(np.uint32)}


def f32(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)


def i32(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int32)


def uniform(keys: U64, pair: Any, number: int = 0) -> NDArray[np.float32]:
    """A float32 from the range `pair` for each key."""
    return f32(randomness.uniform(keys, number, *pair))


def scaled(keys: U64, pair: Any, scale: int, number: int = 0) -> NDArray[np.float64]:
    """A number from the range `pair` times `scale`, rounded to an integer, for each key."""
    made: NDArray[np.float64] = np.rint(randomness.uniform(keys, number, float(pair[0]), float(pair[1])) * scale)
    return made


def boxes(values: NDArray[Any]) -> Drawn:
    """Columns y, x, height and width (rows, 4) as parameters."""
    return {name: i32(values[:, i]) for i, name in enumerate(("y", "x", "h", "w"))}


def partners(keys: U64) -> NDArray[np.int32]:
    """Another row for each row, the same record for any order of the rows: one ring through all, in key order.

    >>> partners(randomness.keys(3, np.arange(1))).tolist()
    [0]
    """
    ring = np.argsort(randomness.bits(keys, 0), kind="stable")
    out = np.empty(len(keys), np.int32)
    out[ring] = np.roll(ring, -1)
    return out


def beta(keys: U64, alpha: float) -> NDArray[np.float64]:
    """Beta(alpha, alpha) for each key, a ratio of two gammas, in logarithms as a small alpha would underflow."""
    first, second = _log_gamma_draw(keys, alpha, GAMMA), _log_gamma_draw(keys, alpha, GAMMA + 500)
    made: NDArray[np.float64] = 1.0 / (1.0 + np.exp(np.clip(second - first, -700, 700)))
    return made


def dirichlet(keys: U64, alpha: float, count: int) -> NDArray[np.float64]:
    """Dirichlet(alpha, ...) of `count` numbers for each key: (rows, count)."""
    logs = np.stack([_log_gamma_draw(keys, alpha, GAMMA + 1000 + 500 * i) for i in range(count)], 1)
    made = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = made / made.sum(axis=1, keepdims=True)
    return shares


def _log_gamma_draw(keys: U64, alpha: float, start: int) -> NDArray[np.float64]:
    """Logarithm of a Gamma(alpha) number per key: rejection from a cubed normal on alpha + 1 (Marsaglia and Tsang)."""
    d = alpha + 1 - 1 / 3
    c = 1 / np.sqrt(9 * d)
    cube = np.ones(len(keys))
    todo = np.ones(len(keys), bool)
    for attempt in range(start + 1, start + 100, 3):  # one in twenty is rejected, so 33 rounds never run out
        radius = np.sqrt(-2 * np.log(1 - randomness.uniform(keys, attempt)))
        normal = radius * np.cos(2 * np.pi * randomness.uniform(keys, attempt + 1))
        v = np.maximum(1 + c * normal, 1e-9) ** 3
        log_u = np.log(1 - randomness.uniform(keys, attempt + 2))
        good = todo & (1 + c * normal > 0) & (log_u < normal**2 / 2 + d - d * v + d * np.log(v))
        cube[good] = v[good]
        todo &= ~good
        if not todo.any():
            break
    made: NDArray[np.float64] = np.log(d * cube) + np.log(1 - randomness.uniform(keys, start)) / alpha
    return made
