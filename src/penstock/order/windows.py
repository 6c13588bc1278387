"""Which tokens of a stream window i holds.

Window i is `tokens[i*stride : i*stride + length + 1]`: `length` inputs and the same shifted by one as targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError

I64 = NDArray[np.int64]


def count(n_tokens: int, length: int, stride: int) -> int:
    """Returns the number of windows i with `i*stride + length + 1 <= n_tokens`.

    >>> count(10, length=4, stride=2), count(5, length=4, stride=2), count(4, length=4, stride=2)
    (3, 1, 0)
    """
    _check(length, stride)
    return max(0, (n_tokens - length - 1) // stride + 1)


def starts(index: Any, stride: int) -> I64:
    """Returns the position of the first token of each window.

    >>> starts([0, 1, 5], stride=4)
    array([ 0,  4, 20])
    """
    return np.asarray(index, np.int64) * np.int64(stride)


def _check(length: int, stride: int) -> None:
    if length < 1 or stride < 1:
        raise UsageError(
            "a length and a stride of at least 1 token",
            got=f"length={length}, stride={stride}",
            where="windows",
            fix="use windows(length, stride=length) for windows that do not overlap",
        )
