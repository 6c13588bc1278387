"""The memory of a row: how much it takes, and a copy that shares nothing with it.

What a row may hold and still be measured: numbers, text, bytes, arrays of NumPy, torch and JAX, and lists, tuples and
dicts of these. Of anything else (an image object, an array of objects) nobody can say what it holds on to.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from penstock.torch_data.framework import torch

_SCALARS = frozenset({int, float, bool, complex, str, bytes, type(None)})
_DEEPEST = 64
_ARRAY_BYTES = 200  # what Python and the framework take for an array besides its numbers


def size_of(value: Any, depth: int = 0) -> int | None:
    """Bytes that a copy takes, or None where that cannot be known.

    >>> size_of({"x": np.zeros(1000)}) > 8000, size_of([0, "y" * 10**6]) > 10**6, size_of({"x": object()})
    (True, True, None)
    """
    kind = type(value)
    if kind in _SCALARS:
        return sys.getsizeof(value)
    if kind in (list, tuple, dict) and depth < _DEEPEST:
        return _container(value, depth)
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype.hasobject else _ARRAY_BYTES + int(value.nbytes)
    if isinstance(value, torch.Tensor):
        return _ARRAY_BYTES + int(value.nbytes) if value.layout == torch.strided else None
    return _ARRAY_BYTES + int(value.nbytes) if _is_jax(value) else None


def _container(value: Any, depth: int) -> int | None:
    items = [*value, *value.values()] if type(value) is dict else value
    own = sys.getsizeof(value)
    if _SCALARS.issuperset(map(type, items)):
        return own + sum(map(sys.getsizeof, items))
    for item in items:
        size = size_of(item, depth + 1)
        if size is None:
            return None
        own += size
    return own


def own(value: Any, depth: int = 0) -> Any:
    """A copy that the caller may change, of nothing but what is shown: a view's copy is as large as the view."""
    kind = type(value)
    if kind in _SCALARS or _is_jax(value):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return value.detach().clone()
    if depth >= _DEEPEST or kind not in (list, tuple, dict):
        return copy.deepcopy(value)
    if kind is dict:
        return {key: own(item, depth + 1) for key, item in value.items()}
    return value[:] if _SCALARS.issuperset(map(type, value)) else kind(own(item, depth + 1) for item in value)


def _is_jax(value: Any) -> bool:
    """Arrays of JAX do not change, so that they need no copy."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)
