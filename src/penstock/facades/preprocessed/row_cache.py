"""The size of a row in memory, and a copy of a row that shares no memory with it.

The size is known for numbers, text, bytes, arrays of NumPy, torch and JAX, and lists, tuples and dicts of these. It is
unknown for anything else (an image object, an array of objects), because that may hold references to more memory.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from penstock.torch_data.framework import torch

_SCALARS = frozenset({int, float, bool, complex, str, bytes, type(None)})
_MAX_DEPTH = 64
_ARRAY_BYTES = 200  # overhead of an array object in Python and the framework


def size_of(value: Any, depth: int = 0) -> int | None:
    """Bytes that a copy takes, or None if unknown.

    >>> size_of({"x": np.zeros(1000)}) > 8000, size_of([0, "y" * 10**6]) > 10**6, size_of({"x": object()})
    (True, True, None)
    """
    kind = type(value)
    if kind in _SCALARS:
        return sys.getsizeof(value)
    if kind in (list, tuple, dict) and depth < _MAX_DEPTH:
        return _container(value, depth)
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype.hasobject else _ARRAY_BYTES + int(value.nbytes)
    if isinstance(value, torch.Tensor):
        return _ARRAY_BYTES + int(value.nbytes) if value.layout == torch.strided else None
    return _ARRAY_BYTES + int(value.nbytes) if _is_jax(value) else None


def _container(value: Any, depth: int) -> int | None:
    items = [*value, *value.values()] if type(value) is dict else value
    total = sys.getsizeof(value)
    if _SCALARS.issuperset(map(type, items)):
        return total + sum(map(sys.getsizeof, items))
    for item in items:
        size = size_of(item, depth + 1)
        if size is None:
            return None
        total += size
    return total


def copied(value: Any, depth: int = 0) -> Any:
    """A copy that the caller may change. The copy of a view holds only the view, not the array behind it."""
    kind = type(value)
    if kind in _SCALARS or _is_jax(value):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return value.detach().clone()
    if depth >= _MAX_DEPTH or kind not in (list, tuple, dict):
        return copy.deepcopy(value)
    if kind is dict:
        return {key: copied(item, depth + 1) for key, item in value.items()}
    return value[:] if _SCALARS.issuperset(map(type, value)) else kind(copied(item, depth + 1) for item in value)


def _is_jax(value: Any) -> bool:
    """JAX arrays are immutable, so they need no copy."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)
