"""`field_numpy` in JAX, for one row; works under jit and vmap."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._optional import need
from penstock.augment.field_numpy import M1, M2, SECOND, STEP


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
    place = jnp.arange((size + 1) // 2, dtype=jnp.uint32)
    first, second = words(k0, k1, place), words(k0 ^ np.uint32(SECOND), k1, place)
    unit = ((first >> 8) + 1).astype(jnp.float32) * np.float32(2.0**-24)
    radius = jnp.sqrt(np.float32(-2) * jnp.log(unit))
    angle = (second >> 8).astype(jnp.float32) * np.float32(2 * np.pi * 2.0**-24)
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:size]
