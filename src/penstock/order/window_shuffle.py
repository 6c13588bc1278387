"""A shuffle that moves rows only a little, for streams: a closed form of what a shuffle buffer does.

Positions are cut into windows and permuted inside each; then again with windows that begin half a window earlier, so
that rows also cross the edges. A row moves less than 1.5 windows, each position is computed alone, and there is no
buffer to save. Costs two permutations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.order.shuffle import permute

I64 = NDArray[np.int64]


def permute_near(index: Any, n: int, window: int, key: int) -> I64:
    """Returns the row at each position: a bijection of [0, n) for every n and window.

    >>> permute_near(np.arange(12), 12, 4, key=1).tolist()
    [0, 1, 3, 6, 2, 7, 4, 5, 10, 11, 9, 8]
    """
    window = min(window, max(n, 1))
    shifted = _inside(np.asarray(index, np.int64), n, window, window // 2, randomness.key(key, "shifted"))
    return _inside(shifted, n, window, 0, randomness.key(key, "plain"))


def _inside(position: I64, n: int, window: int, shift: int, key: int) -> I64:
    """Permutes inside windows that begin at 0 - shift, window - shift, ..."""
    number = (position + shift) // window
    start = np.maximum(number * window - shift, 0)
    size = np.minimum((number + 1) * window - shift, n) - start
    keys = randomness.keys(key, number)
    out = np.empty_like(position)
    for one in np.unique(size).tolist():  # full, the first and the last
        here = np.flatnonzero(size == one)
        out[here] = start[here] + permute(position[here] - start[here], one, keys[here])
    return out
