"""About how many bytes a value of any kind holds: text, bytes, arrays and tensors, and dicts and lists of them."""

from __future__ import annotations

from typing import Any

import numpy as np

OTHER = 64  # of a value of which nothing is known


def held_bytes(value: Any) -> int:
    """About how many bytes a value holds.

    >>> held_bytes({"path": "a.png", "bytes": b"123"}), held_bytes([np.zeros(4), None]), held_bytes([1.5] * 10)
    (8, 96, 80)
    """
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return sum(map(held_bytes, value.values()))
    if isinstance(value, list | tuple):
        if value and type(value[0]) in (int, float, bool):  # a long list of numbers is not looked through
            return 8 * len(value)
        return sum(map(held_bytes, value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return sum(map(held_bytes, value.ravel().tolist()))
    return int(getattr(value, "nbytes", OTHER))
