"""Audio operations on the host, in NumPy: batches whose last axis is time, (N, samples) or (N, bands, frames).

Audio is float, or integers that are scaled to [-1, 1) while an operation computes and rounded once at the end. Agrees
with `audio_torch` and `audio_jax` within 2e-5 for the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment import spec
from penstock.augment.field_numpy import normal
from penstock.augment.params import SPEED_BITS, Drawn

Audio = NDArray[Any]
Kernel = Callable[[Any, Audio, Drawn], Audio]

REACH = 16
"""Half width of the resampling filter, in samples."""
ONE = 1 << SPEED_BITS


def apply(ops: Sequence[spec.Op], audio: Audio, drawn: Sequence[Drawn]) -> Audio:
    """All operations in turn on a batch, with the parameters drawn for it. The input is never written to."""
    dtype = audio.dtype
    for op, one in zip(ops, drawn, strict=True):
        if not op.exact:
            audio = as_float(audio)
        rows = np.flatnonzero(one["on"])
        if len(rows) == len(audio):
            audio = KERNELS[type(op)](op, audio, one)
        elif len(rows):
            out = audio.copy()
            out[rows] = KERNELS[type(op)](op, audio[rows], {name: values[rows] for name, values in one.items()})
            audio = out
    return np.ascontiguousarray(as_type(audio, dtype))


def as_float(audio: Audio) -> Audio:
    if audio.dtype.kind == "i":
        return audio.astype(np.float32) * np.float32(1 / (np.iinfo(audio.dtype).max + 1))
    return audio.astype(np.float32, copy=False)


def as_type(audio: Audio, dtype: np.dtype[Any]) -> Audio:
    if audio.dtype == dtype:
        return audio
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        return np.clip(np.rint(audio.astype(np.float64) * (info.max + 1)), info.min, info.max).astype(dtype)
    return audio.astype(dtype)


def _each(values: NDArray[Any], like: Audio) -> NDArray[Any]:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def gain(_op: spec.Gain, x: Audio, p: Drawn) -> Audio:
    return np.asarray(x * _each(p["factor"], x))


def shift(op: spec.Shift, x: Audio, p: Drawn) -> Audio:
    length = x.shape[-1]
    out = np.zeros_like(x)
    for i, by in enumerate(p["shift"].tolist()):
        if op.wrap:
            out[i] = np.roll(x[i], by, axis=-1)
        elif by >= 0:
            out[i, ..., by:] = x[i, ..., : length - by]
        else:
            out[i, ..., : length + by] = x[i, ..., -by:]
    return out


def noise(_op: spec.AudioNoise, x: Audio, p: Drawn) -> Audio:
    field = normal(p["k0"], p["k1"], int(np.prod(x.shape[1:]))).reshape(x.shape)
    return np.asarray(x + _each(p["level"], x) * field)


def spans(p: Drawn, length: int) -> NDArray[np.bool_]:
    """Mask (rows, length) of the places in any span."""
    place = np.arange(length, dtype=np.int32)
    start, stop = p["start"][..., None], (p["start"] + p["width"])[..., None]
    made: NDArray[np.bool_] = np.asarray(((place >= start) & (place < stop)).any(1))
    return made


def time_mask(_op: spec.TimeMask, x: Audio, p: Drawn) -> Audio:
    mask = spans(p, x.shape[-1]).reshape(len(x), *[1] * (x.ndim - 2), x.shape[-1])
    return np.where(mask, np.zeros((), x.dtype), x)


def frequency_mask(_op: spec.FrequencyMask, x: Audio, p: Drawn) -> Audio:
    mask = spans(p, x.shape[-2]).reshape(len(x), *[1] * (x.ndim - 3), x.shape[-2], 1)
    return np.where(mask, np.zeros((), x.dtype), x)


def speed(_op: spec.Speed, x: Audio, p: Drawn) -> Audio:
    """Sample t of the answer is the input at t * rate, in fixed point so that every execution has the same fraction."""
    out = np.empty_like(x)
    for i, rate in enumerate(p["rate"].tolist()):
        out[i] = x[i] if rate == ONE else _resample(x[i], rate)
    return out


def _resample(x: Audio, rate: int) -> Audio:
    length = x.shape[-1]
    place = np.arange(length, dtype=np.int64) * rate
    whole, part = place >> SPEED_BITS, (place & (ONE - 1)).astype(np.float32) * np.float32(1 / ONE)
    cutoff = np.float32(min(1.0, ONE / rate))
    inside = int(np.searchsorted(whole, length))  # later samples lie past the end of the recording: silence
    whole, part = whole[:inside], part[:inside]
    wide = np.concatenate([np.zeros((*x.shape[:-1], REACH), x.dtype), x, np.zeros((*x.shape[:-1], REACH), x.dtype)], -1)
    total = np.zeros((*x.shape[:-1], inside), np.float32)
    for tap in range(1 - REACH, REACH + 1):
        distance = np.float32(tap) - part
        weight = cutoff * np.sinc(cutoff * distance) * np.cos(distance * np.float32(np.pi / 2 / REACH)) ** 2
        total += weight.astype(np.float32) * wide[..., whole + (tap + REACH)]
    out = np.zeros_like(x)
    out[..., :inside] = total
    return out


KERNELS: dict[type, Kernel] = {
    spec.Gain: gain, spec.Shift: shift, spec.AudioNoise: noise, spec.TimeMask: time_mask,
    spec.FrequencyMask: frequency_mask, spec.Speed: speed,
}  # fmt: skip
