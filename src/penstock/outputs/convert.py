"""NumPy arrays as torch tensors or JAX arrays, one array at a time.

torch shares memory with the array (copied only when it is read-only, has negative strides or an order of bytes torch
does not know); JAX copies to its default device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.optional import need


@cache
def _torch() -> Any:
    return need("torch", extra="torch", purpose="for return_tensors='pt'")


def to_torch_tensor(array: NDArray[Any]) -> Any:
    """A torch tensor over the same memory where torch can share it.

    >>> to_torch_tensor(np.arange(3))
    tensor([0, 1, 2])
    """
    torch = _torch()
    if array.dtype.kind not in "biufc":
        raise UsageError(
            "an array of numbers to make a tensor of",
            got=f"dtype {array.dtype}",
            fix="leave text and objects as lists, or use return_tensors='np'",
        )
    flags = array.flags
    plain = flags.writeable and flags.aligned and array.dtype.isnative
    if not plain or not (flags.c_contiguous or min(array.strides) >= 0):
        array = np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


def to_jax_array(array: NDArray[Any]) -> Any:
    """A JAX array on the default device; 64-bit integers become 32-bit ones where JAX has no 64-bit types switched on.

    Values that 32 bits cannot hold are refused instead of wrapped.

    >>> to_jax_array(np.arange(3)).dtype
    dtype('int32')
    """
    jax = need("jax", extra="jax", purpose="for return_tensors='jax'")
    if array.dtype.kind not in "biufc":
        raise UsageError(
            "an array of numbers to make a JAX array of",
            got=f"dtype {array.dtype}",
            fix="leave text and objects as lists, or use return_tensors='np'",
        )
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu" and not jax.config.jax_enable_x64:
        narrow = np.dtype(np.int32 if array.dtype.kind == "i" else np.uint32)
        info = np.iinfo(narrow)
        if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
            raise UsageError(
                f"values that fit {narrow}, since JAX has 64-bit types switched off",
                got=f"values from {array.min()} to {array.max()}",
                fix="jax.config.update('jax_enable_x64', True), or keep the column as NumPy",
            )
        array = array.astype(narrow)
    elif array.dtype == np.float64 and not jax.config.jax_enable_x64:
        array = array.astype(np.float32)
    return jax.numpy.array(array)
