"""Random fields without state: the value at position i of a row is a hash of (row key, i).

32-bit integer arithmetic only, so NumPy, torch and JAX compute the same bits; the normal numbers made of them agree to
float32 rounding. One hash per number.
"""

from __future__ import annotations

from typing import Any

from penstock.augment.arrays import Arrays

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


def words(xp: Arrays, k0: Any, k1: Any, counters: Any) -> Any:
    """32 random bits for each counter; `k0`, `k1` and `counters` (words) broadcast.

    >>> import numpy as np
    >>> from penstock.augment.arrays_numpy import NUMPY
    >>> one = words(NUMPY, np.array([1], np.uint32), np.array([2], np.uint32), NUMPY.counters(3, None))
    >>> one.dtype, len(set(one.tolist()))
    (dtype('uint32'), 3)
    """
    x = _mix(xp, xp.low32(counters * xp.word(STEP) + k0))
    x ^= k1
    return _mix(xp, x)


def _mix(xp: Arrays, x: Any) -> Any:
    """A bijection of 32-bit words in which every input bit reaches every output bit. Overwrites `x`."""
    x ^= x >> 16
    x *= xp.word(M1)
    x = xp.low32(x)
    x ^= x >> 15
    x *= xp.word(M2)
    x = xp.low32(x)
    x ^= x >> 16
    return x


def normal(xp: Arrays, k0: Any, k1: Any, like: Any) -> Any:
    """Standard normal numbers, float32, in the shape of `like` (rows first): quantiles of 24-bit uniform numbers, so
    between -5.3 and 5.3.

    >>> import numpy as np
    >>> from penstock.augment.arrays_numpy import NUMPY
    >>> key = np.ones(1, np.uint32)
    >>> bool(abs(normal(NUMPY, key, key, np.empty((1, 10_000))).std() - 1) < 0.03)
    True
    """
    size = 1
    for length in like.shape[1:]:
        size *= length
    unit = words(xp, k0[:, None], k1[:, None], xp.counters(size, like))
    unit >>= 8
    x = xp.astype(unit, xp.float32)
    x -= HALF
    x *= 1 / (HALF + 0.5)
    w = -xp.log((1 - x) * (1 + x))
    out = xp.where_rare(w >= 5, lambda far: _horner(FAR, xp.sqrt(far) - 3), w, _horner(MIDDLE, w - 2.5))
    out *= x
    return out.reshape(like.shape)


def _horner(coefficients: list[float], w: Any) -> Any:
    """The polynomial at w, highest power first."""
    total = coefficients[0] * w
    total += coefficients[1]
    for one in coefficients[2:]:
        total *= w
        total += one
    return total
