"""Random fields without state, in NumPy: the value at place i of a row is a hash of (row key, i).

32-bit integer arithmetic only, so torch and JAX compute the very same bits (`field_torch`, `field_jax`); the normal
numbers made of them agree to float32 rounding. One hash per number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP, M1, M2 = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
SECOND = 0x68E31DA4
"""Turns a row's first word into the key of an independent second field."""
HALF = 2**23 - 0.5
"""The middle of the 24-bit numbers. They lie evenly about it, and never reach the ends of (-1, 1)."""


# sqrt(2) * erfinv(x) / x as polynomials of w = -log(1 - x * x): of w - 2.5 below 5, of sqrt(w) - 3 beyond (Giles, 2010:
# single precision, relative error about 4e-7). Short polynomials compile to plain vector code everywhere.
_ROOT2 = 2.0**0.5
MIDDLE = [
    c * _ROOT2
    for c in (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04, -1.25372503e-03,
        -4.17768164e-03, 2.46640727e-01, 1.50140941,
    )
]  # fmt: skip
FAR = [
    c * _ROOT2
    for c in (
        -2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03, -7.6224613e-03,
        9.43887047e-03, 1.00167406, 2.83297682,
    )
]  # fmt: skip


def horner(coefficients: list[float], w: Any) -> Any:
    """The polynomial at w, highest power first; for arrays of any framework."""
    total: Any = coefficients[0]
    for one in coefficients[1:]:
        total = total * w + one
    return total


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijection of 32-bit words in which every input bit reaches every output bit. Works in place."""
    x ^= x >> np.uint32(16)
    x *= np.uint32(M1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(M2)
    x ^= x >> np.uint32(16)
    return x


def words(k0: Any, k1: Any, place: Any) -> NDArray[np.uint32]:
    """32 random bits for each place; `k0`, `k1` and `place` (uint32 arrays) broadcast.

    >>> one = words(np.array([1], np.uint32), np.array([2], np.uint32), np.arange(3, dtype=np.uint32))
    >>> one.dtype, len(set(one.tolist()))
    (dtype('uint32'), 3)
    """
    x = _mix(place * np.uint32(STEP) + k0)
    x ^= k1
    return _mix(x)


def normal(k0: NDArray[np.uint32], k1: NDArray[np.uint32], size: int) -> NDArray[np.float32]:
    """Standard normal numbers (rows, size): the quantile of a 24-bit uniform number, so within -5.3 and 5.3.

    >>> bool(abs(normal(np.ones(1, np.uint32), np.ones(1, np.uint32), 10_000).std() - 1) < 0.03)
    True
    """
    unit = words(k0[:, None], k1[:, None], np.arange(size, dtype=np.uint32)) >> np.uint32(8)
    x = unit.astype(np.float32)
    x -= np.float32(HALF)
    x *= np.float32(1 / (HALF + 0.5))
    x = x.ravel()
    w = -np.log((1 - x) * (1 + x))
    out = np.asarray(horner(MIDDLE, w - np.float32(2.5)))
    far = np.flatnonzero(w >= 5)  # one number in 300: not worth a whole pass
    out[far] = horner(FAR, np.sqrt(w[far]) - np.float32(3))
    out *= x
    return out.reshape(unit.shape)
