"""`text_numpy` in JAX: one row's kernel, `vmap`ped and compiled; the same ids exactly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.augment import spec
from penstock.augment.field_jax import words
from penstock.augment.field_numpy import SECOND
from penstock.augment.params import Drawn
from penstock.augment.text_numpy import BITS
from penstock.core.optional import need


def apply(ops: Sequence[spec.Op], tokens: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch, as one compiled program."""
    return program(tuple(ops))(tokens, tuple(drawn))


@lru_cache(maxsize=128)
def program(ops: tuple[spec.Op, ...]) -> Any:
    """The compiled `(tokens, parameters) -> tokens` of a list of operations."""
    jax = need("jax", extra="jax", purpose="for Augment.jax()")

    def one_row(tokens: Any, drawn: tuple[dict[str, Any], ...]) -> Any:
        for op, p in zip(ops, drawn, strict=True):
            tokens = change(op, tokens, p)
        return tokens

    return jax.jit(jax.vmap(one_row))


def change(op: Any, tokens: Any, p: dict[str, Any]) -> Any:
    """One operation on one row of tokens."""
    jnp = need("jax.numpy", extra="jax")
    place = jnp.arange(tokens.shape[-1], dtype=jnp.uint32)
    new: Any = op.mask_id if isinstance(op, spec.TokenMask) else draw_ids(p, place, op.choices, op.special)
    chosen = pick(p, place, op.rate) & p["on"] & open_to_change(tokens, op.special)
    return jnp.where(chosen, jnp.asarray(new, tokens.dtype), tokens)


def pick(p: dict[str, Any], place: Any, rate: float) -> Any:
    """Which places are among the share `rate`."""
    return (words(p["k0"], p["k1"], place) >> (32 - BITS)) < np.uint32(round(rate * (1 << BITS)))


def open_to_change(tokens: Any, special: tuple[int, ...]) -> Any:
    """Which tokens are neither special nor negative."""
    chosen = tokens >= 0
    most = np.iinfo(tokens.dtype).max
    for one in special:
        if one <= most:  # JAX cannot compare with a number its type does not hold
            chosen = chosen & (tokens != one)
    return chosen


def draw_ids(p: dict[str, Any], place: Any, choices: Any, special: tuple[int, ...]) -> Any:
    """Random ids that are not special, one per place; `choices` may be traced."""
    jnp = need("jax.numpy", extra="jax")
    drawn = words(p["k0"] ^ np.uint32(SECOND), p["k1"], place) % jnp.asarray(choices, jnp.uint32)
    ids = drawn.astype(jnp.int32)
    for one in special:
        ids = ids + (ids >= one)
    return ids
