"""Random grids and sines made of exact arithmetic: the same bits on every machine.

Library logarithms and sines differ in the last bit between processors. Here uniform and near-normal numbers come from
integers, and sines from a polynomial of plain multiplications and additions, which IEEE 754 fixes. A row is a
splitmix64 stream of its key: about 10 ns a number, no Python per row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.randomness import U64, mix64

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PAIRS = np.uint64(0x0000FFFF0000FFFF)
_SIGMA = math.sqrt((65536.0 * 65536.0 - 1) / 3)  # of the sum of four uniform 16-bit integers


def _sine_terms() -> list[float]:
    """Taylor's series in turns. Products only: a power function may differ between machines."""
    turn = 2 * math.pi
    terms = [turn]
    for n in range(1, 15, 2):
        terms.append(-terms[-1] * turn * turn / ((n + 1) * (n + 2)))
    return terms


_SINE = _sine_terms()


def words(row_keys: U64, count: int) -> U64:
    """`count` random 64-bit words for each key: (rows, count)."""
    return mix64(row_keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def uniform_grid(row_keys: U64, count: int) -> F32:
    """`count` uniform numbers in [0, 1) for each key.

    >>> from penstock.core import randomness
    >>> grid = uniform_grid(randomness.keys(1, np.arange(4)), 1001)
    >>> grid.shape, bool(abs(grid.mean() - 0.5) < 0.02)
    ((4, 1001), True)
    """
    halves = words(row_keys, (count + 1) // 2).astype("<u8", copy=False).view("<u4")[:, :count]
    return (halves >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal_grid(row_keys: U64, count: int) -> F32:
    """`count` near-normal numbers of mean 0 and deviation 1 for each key: four uniform ones added, so within 3.5.

    >>> from penstock.core import randomness
    >>> bool(abs(normal_grid(randomness.keys(1, np.arange(10)), 1000).std() - 1) < 0.02)
    True
    """
    word = words(row_keys, count)
    pairs = (word & _PAIRS) + ((word >> np.uint64(16)) & _PAIRS)
    total = (pairs & np.uint64(0xFFFFFFFF)) + (pairs >> np.uint64(32))
    return ((total.astype(np.float64) - 131070.0) * (1 / _SIGMA)).astype(np.float32)


def sine(turns: Any) -> F64:
    """sin(2 pi turns), to about 1e-11.

    >>> sine([0.0, 0.25, 0.5, 0.75]).round(9).tolist()
    [0.0, 1.0, -0.0, -1.0]
    """
    x = np.asarray(turns, np.float64)
    x = x - np.floor(x + 0.5)
    folded = 0.25 - np.abs(np.abs(x) - 0.25)
    square = folded * folded
    out = np.full_like(square, _SINE[-1])
    for term in _SINE[-2::-1]:
        out *= square
        out += term
    out *= folded
    return np.copysign(out, x)


def cosine(turns: Any) -> F64:
    """cos(2 pi turns)."""
    return sine(np.asarray(turns, np.float64) + 0.25)
