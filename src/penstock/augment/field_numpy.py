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
    """Standard normal numbers (rows, size): Box-Muller, the cosines first, then the sines.

    >>> bool(abs(normal(np.ones(1, np.uint32), np.ones(1, np.uint32), 10_000).std() - 1) < 0.03)
    True
    """
    half = (size + 1) // 2
    place = np.arange(half, dtype=np.uint32)
    first = words(k0[:, None], k1[:, None], place)
    second = words(k0[:, None] ^ np.uint32(SECOND), k1[:, None], place)
    unit = ((first >> np.uint32(8)) + np.uint32(1)).astype(np.float32) * np.float32(2.0**-24)
    radius = np.sqrt(np.float32(-2) * np.log(unit))
    angle = (second >> np.uint32(8)).astype(np.float32) * np.float32(2 * np.pi * 2.0**-24)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :size]
