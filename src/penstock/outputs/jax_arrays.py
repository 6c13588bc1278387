"""NumPy to JAX for the datasets, and JAX's random keys to and from plain integers.

The one place the datasets touch JAX. Nothing here is called until an array or a key is really wanted, so that
generation, `read` and pipelines work without JAX installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.optional import need


def jax_module() -> Any:
    """JAX itself, or the exact command that installs it."""
    return need("jax", extra="jax", purpose="for datasets that give JAX arrays")


def jax_array(array: Any) -> Any:
    """A JAX array on the default device. 64-bit numbers become 32-bit ones unless JAX has those switched on.

    >>> jax_array(np.arange(3)).dtype
    dtype('int32')
    """
    jax = jax_module()
    if isinstance(array, jax.Array):
        return array
    held = np.asarray(array)
    if held.dtype.itemsize == 8 and held.dtype.kind in "iuf" and not jax.config.jax_enable_x64:
        small = np.dtype(held.dtype.kind + "4")
        if held.dtype.kind != "f" and held.size:
            bounds = np.iinfo(small)
            if int(held.min()) < bounds.min or int(held.max()) > bounds.max:
                raise UsageError(
                    f"integers that fit {small}, since JAX has 64-bit types switched off",
                    got=f"{held.min()} to {held.max()}",
                    fix='jax.config.update("jax_enable_x64", True)',
                )
        held = held.astype(small)
    return jax.device_put(held)


def is_jax_array(value: Any) -> bool:
    """Whether a value is a JAX array; never imports JAX to find out that nothing can be one.

    >>> is_jax_array(np.zeros(2))
    False
    """
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def stack_arrays(values: Sequence[Any]) -> Any:
    """Equal shapes one above another, on the device if that is where they are."""
    if any(is_jax_array(value) for value in values):
        return jax_module().numpy.stack(list(values))
    return jax_array(np.stack([np.asarray(value) for value in values]))


def concat_arrays(parts: Sequence[Any]) -> Any:
    """Parts one after another along rows."""
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
    """A JAX random key of `seed` and parts: the same on every machine, and another one for other parts.

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
