"""`field_numpy` in JAX, for one row; works under jit and vmap."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.augment.field_numpy import FAR, HALF, M1, M2, MIDDLE, STEP, horner
from penstock.core.optional import need


def _mix(x: Any) -> Any:
    x = (x ^ (x >> 16)) * np.uint32(M1)
    x = (x ^ (x >> 15)) * np.uint32(M2)
    return x ^ (x >> 16)


def words(k0: Any, k1: Any, place: Any) -> Any:
    """32 random bits for each place, as uint32."""
    return _mix(_mix(place * np.uint32(STEP) + k0) ^ k1)


def normal(k0: Any, k1: Any, size: int) -> Any:
    """Standard normal numbers (size,), float32."""
    jnp = need("jax.numpy", extra="jax")
    unit = words(k0, k1, jnp.arange(size, dtype=jnp.uint32)) >> 8
    x = (unit.astype(jnp.float32) - np.float32(HALF)) * np.float32(1 / (HALF + 0.5))
    w = -jnp.log((1 - x) * (1 + x))
    far = horner(FAR, jnp.sqrt(w) - 3)
    return jnp.where(w < 5, horner(MIDDLE, w - 2.5), far) * x
