"""`audio_numpy` in JAX: kernels for one row, `vmap`ped over the batch and compiled as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.augment import spec
from penstock.augment.audio_numpy import ONE, REACH
from penstock.augment.field_jax import normal
from penstock.augment.params import SPEED_BITS, Drawn
from penstock.core.optional import need

Kernel = Callable[[Any, Any, dict[str, Any]], Any]

_CUT = 10
"""Low bits of a place that are multiplied apart, as place * rate does not fit 32 bits."""


def apply(ops: Sequence[spec.Op], audio: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch, as one compiled program."""
    return program(tuple(ops))(audio, tuple(drawn))


@lru_cache(maxsize=128)
def program(ops: tuple[spec.Op, ...]) -> Any:
    """The compiled `(audio, parameters) -> audio` of a list of operations."""
    jax = need("jax", extra="jax", purpose="for Augment.jax()")

    def one_row(x: Any, drawn: tuple[dict[str, Any], ...]) -> Any:
        dtype = x.dtype
        for op, p in zip(ops, drawn, strict=True):
            if not op.exact:
                x = as_float(x)
            made = KERNELS[type(op)](op, x, p)
            x = made if getattr(op, "p", 1.0) == 1 else _jnp().where(p["on"], made, x)
        return as_type(x, dtype)

    return jax.jit(jax.vmap(one_row))


def _jnp() -> Any:
    return need("jax.numpy", extra="jax")


def as_float(x: Any) -> Any:
    jnp = _jnp()
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(jnp.float32) * np.float32(1 / (jnp.iinfo(x.dtype).max + 1))
    return x.astype(jnp.float32)


def as_type(x: Any, dtype: Any) -> Any:
    jnp = _jnp()
    if x.dtype == dtype or not jnp.issubdtype(dtype, jnp.integer):
        return x.astype(dtype)
    info = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(x * np.float32(info.max + 1)), info.min, info.max).astype(dtype)


def gain(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    return x * p["factor"]


def shift(op: Any, x: Any, p: dict[str, Any]) -> Any:
    jnp = _jnp()
    if op.wrap:
        return jnp.roll(x, p["shift"], axis=-1)
    source = jnp.arange(x.shape[-1], dtype=jnp.int32) - p["shift"]
    moved = jnp.take(x, source, axis=-1, mode="clip")
    return jnp.where((source >= 0) & (source < x.shape[-1]), moved, jnp.zeros((), x.dtype))


def noise(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    return x + p["level"] * normal(p["k0"], p["k1"], x.size).reshape(x.shape)


def spans(p: dict[str, Any], length: int) -> Any:
    place = np.arange(length, dtype=np.int32)
    start, stop = p["start"][:, None], (p["start"] + p["width"])[:, None]
    return ((place >= start) & (place < stop)).any(0)


def time_mask(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    jnp = _jnp()
    return jnp.where(spans(p, x.shape[-1]), jnp.zeros((), x.dtype), x)


def frequency_mask(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    jnp = _jnp()
    return jnp.where(spans(p, x.shape[-2])[:, None], jnp.zeros((), x.dtype), x)


def speed(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    """As the NumPy kernel; the product place * rate is had from two 32-bit products, exactly."""
    jnp, lax, length = _jnp(), need("jax", extra="jax").lax, x.shape[-1]
    rate = p["rate"]
    place = jnp.arange(length, dtype=jnp.int32)
    high, low = (place >> _CUT) * rate, (place & ((1 << _CUT) - 1)) * rate
    rest = SPEED_BITS - _CUT
    sums = ((high & ((1 << rest) - 1)) << _CUT) + low
    whole = (high >> rest) + (sums >> SPEED_BITS)
    part = (sums & (ONE - 1)).astype(jnp.float32) * np.float32(1 / ONE)
    cutoff = jnp.minimum(1, ONE / rate.astype(jnp.float32))

    def add(i: Any, total: Any) -> Any:
        tap = i + 1 - REACH
        distance = tap - part
        weight = cutoff * jnp.sinc(cutoff * distance) * jnp.cos(distance * np.float32(np.pi / 2 / REACH)) ** 2
        source = whole + tap
        weight = weight * ((source >= 0) & (source < length) & (whole < length))
        return total + weight * jnp.take(x, source, axis=-1, mode="clip")

    return jnp.where(rate == ONE, x, lax.fori_loop(0, 2 * REACH, add, jnp.zeros_like(x)))


KERNELS: dict[type, Kernel] = {
    spec.Gain: gain, spec.Shift: shift, spec.AudioNoise: noise, spec.TimeMask: time_mask,
    spec.FrequencyMask: frequency_mask, spec.Speed: speed,
}  # fmt: skip
