"""Counter-based randomness: every draw is a function of (seed, epoch, record, operation).

Keys are 64-bit. Arrays of keys are made and drawn from in a few NumPy calls; a NumPy `Generator` (Philox,
counter-based) is created only where a user's function asks for one. Strings are hashed with blake2b, never with
Python's salted `hash()`. All arithmetic is exact, modulo 2**64, so every machine draws the same numbers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


# NumPy handles a 0-d array a third faster than a scalar, which matters in calls of few elements.
_W1, _W2, _S30, _S27, _S31 = (np.array(word, np.uint64) for word in (_M1, _M2, 30, 27, 31))


def mix64(x: U64) -> U64:
    """The splitmix64 finaliser: a non-linear bijection of 64-bit integers, elementwise. Returns a new array."""
    x = x ^ (x >> _S30)
    x *= _W1
    x ^= x >> _S27
    x *= _W2
    x ^= x >> _S31
    return x


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


def key(*parts: int | str) -> int:
    """Hashes integers and strings into one 64-bit key; their order matters.

    >>> key(7, "shuffle") == key(7, "shuffle"), key(7, "shuffle") == key("shuffle", 7)
    (True, False)
    """
    state = 0x243F6A8885A308D3
    for part in parts:
        if isinstance(part, str):
            word = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
            state = _mix_int(state ^ 0x5851F42D4C957F2D)
        else:
            word = int(part) & _MASK
            high = int(part) >> 64
            if high not in (0, -1):
                state = _mix_int(state ^ (high & _MASK))
        state = _mix_int((state + _GOLDEN + _mix_int(word)) & _MASK)
    return state


def keys(base: int, *columns: Any) -> U64:
    """Returns one key per row: `base` (from `key`) hashed with integer columns that broadcast against each other.

    >>> keys(key(7, "crop"), 0, np.arange(3)).dtype
    dtype('uint64')
    """
    arrays = np.broadcast_arrays(*[np.asarray(c, np.int64) for c in columns])
    state = np.full(arrays[0].shape, base, np.uint64)
    for column in arrays:
        state = mix64(state + np.uint64(_GOLDEN) + mix64(column.astype(np.uint64)))
    return state


Draw = int | NDArray[np.int64]  # the number of a draw; an array broadcasts against the keys


def bits(row_keys: U64, draw: Draw) -> U64:
    """Returns 64 random bits per key: its draw number `draw`."""
    if isinstance(draw, int):
        step = np.array(((draw + 1) * _GOLDEN) & _MASK, np.uint64)
    else:
        step = (draw + 1).astype(np.uint64) * np.array(_GOLDEN, np.uint64)
    return mix64(mix64(row_keys + step) ^ _W2)


def uniform(row_keys: U64, draw: Draw, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
    """Returns a uniform number in [low, high) per key: its draw number `draw`.

    >>> bool((uniform(keys(1, np.arange(1000)), 0) < 1).all())
    True
    """
    unit = (bits(row_keys, draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return low + (high - low) * unit


def integers(row_keys: U64, draw: Draw, bound: Any) -> NDArray[np.int64]:
    """Returns an integer in [0, bound) per key: its draw number `draw`. `bound` may be an array."""
    scaled = np.floor(uniform(row_keys, draw) * np.asarray(bound, np.float64)).astype(np.int64)
    return np.minimum(scaled, np.asarray(bound, np.int64) - 1)


def generator(row_key: int) -> np.random.Generator:
    """Returns a NumPy generator (Philox) for one key, for code that needs other distributions.

    >>> generator(5).integers(10) == generator(5).integers(10)
    np.True_
    """
    return np.random.Generator(np.random.Philox(key=int(row_key) & _MASK))
