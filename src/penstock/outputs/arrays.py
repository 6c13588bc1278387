"""NumPy arrays as torch tensors or JAX arrays, one array at a time, and JAX's random keys from plain integers.

torch shares memory with the array (copied only if it is read-only, has negative strides or a foreign byte order); JAX
copies to its default device. No framework is imported until one of these functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.outputs.floats import check_range

Cast = Callable[[NDArray[Any], "np.dtype[Any]"], NDArray[Any]]


@cache
def _torch() -> Any:
    return need("torch", extra="torch", purpose="for return_tensors='pt'")


def jax_module() -> Any:
    """JAX itself, or the exact command that installs it."""
    return need("jax", extra="jax", purpose="for JAX arrays")


def torch_tensor(array: NDArray[Any]) -> Any:
    """A torch tensor over the same memory where torch can share it.

    >>> torch_tensor(np.arange(3))
    tensor([0, 1, 2])
    """
    torch = _torch()
    _check_numbers(array)
    flags = array.flags
    plain = flags.writeable and flags.aligned and array.dtype.isnative
    if not plain or not (flags.c_contiguous or min(array.strides) >= 0):
        array = np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


def jax_array(array: Any) -> Any:
    """A copy as a JAX array on the default device; a JAX array is returned as it is.

    64-bit numbers become 32-bit ones unless JAX has 64-bit types switched on; see `narrowed`.

    >>> jax_array(np.arange(3)).dtype
    dtype('int32')
    """
    jax = jax_module()
    if isinstance(array, jax.Array):
        return array
    host = np.asarray(array)
    _check_numbers(host)
    held = host if jax.config.jax_enable_x64 else narrowed(host)
    return jax.device_put(held.copy() if held is host else held)  # without the copy JAX may share the memory


def _check_numbers(array: NDArray[Any]) -> None:
    if array.dtype.kind not in "biufc":
        raise UsageError(
            "an array of numbers",
            got=f"dtype {array.dtype}",
            fix="leave text and objects as lists, or use return_tensors='np'",
        )


def narrowed(array: NDArray[Any], name: str = "", cast: Cast = np.ndarray.astype) -> NDArray[Any]:
    """64-bit numbers as 32-bit ones, as JAX has them by default; integers that do not fit are refused, not wrapped.

    `name` is the column for the error; `cast` copies into another dtype.

    >>> narrowed(np.array([1.5])).dtype, narrowed(np.array([1], np.uint8)).dtype
    (dtype('float32'), dtype('uint8'))
    """
    kind = array.dtype.kind
    if array.dtype.char in "gG":
        raise UsageError(
            "numbers of a type that JAX has" + (f" in column {name!r}" if name else ""),
            got=str(array.dtype),
            fix=".map() the column to float64, or leave it out",
        )
    if array.dtype.itemsize != 8 or kind not in "iuf":
        return array
    small = np.dtype(f"{kind}4")
    if kind != "f" and array.size:
        bounds, low, high = np.iinfo(small), int(array.min()), int(array.max())
        if low < bounds.min or high > bounds.max:
            raise UsageError(
                f"integers that fit 32 bits ({small}), since JAX has 64-bit types switched off",
                got=f"values from {low} to {high}" + (f" in {name!r}" if name else ""),
                fix="map the column to smaller values, keep it as NumPy, or "
                'jax.config.update("jax_enable_x64", True) where you make JAX arrays yourself',
            )
    with np.errstate(over="ignore"):
        made = cast(array, small)
    if kind == "f" and bool(np.isinf(made).any()):
        check_range(name, "float32", bool((np.isinf(made) & ~np.isinf(array)).any()))
    return made


def is_jax_array(value: Any) -> bool:
    """Whether a value is a JAX array. Never imports JAX.

    >>> is_jax_array(np.zeros(2))
    False
    """
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def is_traced(value: Any) -> bool:
    """Whether a value stands for a JAX array inside a jitted function. Never imports JAX."""
    return is_jax_array(value) and isinstance(value, jax_module().core.Tracer)


def stack_arrays(values: Sequence[Any]) -> Any:
    """Arrays of equal shape stacked along a new first axis, as a JAX array."""
    if any(is_jax_array(value) for value in values):
        return jax_module().numpy.stack(list(values))
    return jax_array(np.stack([np.asarray(value) for value in values]))


def concat_arrays(parts: Sequence[Any]) -> Any:
    """Arrays joined along rows, as a JAX array."""
    return jax_module().numpy.concatenate(list(parts))


def key_words(key: Any) -> list[int]:
    """The 32-bit words of a JAX random key, typed or raw.

    >>> import jax
    >>> key_words(jax.random.key(7))
    [0, 7]
    """
    jax = jax_module()
    data = jax.random.key_data(key) if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return [int(word) for word in np.asarray(data).ravel()]


def jax_key(seed: int, *parts: int | str) -> Any:
    """A JAX random key of `seed` and parts: the same on every machine, different for different parts.

    >>> import jax
    >>> bool((jax.random.key_data(jax_key(1, "a", 0)) == jax.random.key_data(jax_key(1, "a", 1))).all())
    False
    """
    return record_keys(np.array([randomness.key(seed, *parts)], np.uint64))[0]


def record_keys(keys: NDArray[np.uint64]) -> Any:
    """JAX random keys, one for each 64-bit key of `penstock.core.randomness`.

    >>> record_keys(np.array([1, 2, 3], np.uint64)).shape
    (3,)
    """
    words = np.stack([keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    return jax_module().random.wrap_key_data(words, impl="threefry2x32")
