"""`audio_numpy` in torch, batched, on whatever device the audio is. Parameters come from the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.augment import spec
from penstock.augment.audio_numpy import ONE, REACH
from penstock.augment.field_torch import normal
from penstock.augment.image_torch import tensors
from penstock.augment.params import SPEED_BITS, Drawn
from penstock.core.optional import need

Kernel = Callable[[Any, Any, dict[str, Any]], Any]


def apply(ops: Sequence[spec.Op], audio: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch tensor."""
    dtype = audio.dtype
    for op, one in zip(ops, drawn, strict=True):
        if not op.exact:
            audio = as_float(audio)
        if not one["on"].any():
            continue
        p = tensors(one, audio.device)
        made = KERNELS[type(op)](op, audio, p)
        audio = made if one["on"].all() else _torch().where(_each(p["on"], audio), made, audio)
    return as_type(audio, dtype)


def _torch() -> Any:
    return need("torch", extra="torch", purpose="for Augment.torch()")


def as_float(audio: Any) -> Any:
    torch = _torch()
    if audio.dtype.is_floating_point:
        return audio.to(torch.float32)
    return audio.to(torch.float32) * (1 / (torch.iinfo(audio.dtype).max + 1))


def as_type(audio: Any, dtype: Any) -> Any:
    torch = _torch()
    if audio.dtype == dtype or dtype.is_floating_point:
        return audio.to(dtype)
    info = torch.iinfo(dtype)
    return torch.round(audio.double() * (info.max + 1)).clamp(info.min, info.max).to(dtype)


def _each(values: Any, like: Any) -> Any:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def gain(_op: spec.Gain, x: Any, p: dict[str, Any]) -> Any:
    return x * _each(p["factor"], x)


def shift(op: spec.Shift, x: Any, p: dict[str, Any]) -> Any:
    torch, length = _torch(), x.shape[-1]
    source = torch.arange(length, device=x.device) - p["shift"][:, None]
    made = _take(x, source % length)
    if op.wrap:
        return made
    return made * _row(((source >= 0) & (source < length)).to(x.dtype), x)


def _row(mask: Any, like: Any) -> Any:
    return mask.reshape(len(like), *[1] * (like.ndim - 2), like.shape[-1])


def _take(x: Any, index: Any) -> Any:
    """Row i's places `index[i]` along time."""
    return x.gather(-1, index.reshape(len(x), *[1] * (x.ndim - 2), index.shape[-1]).expand(x.shape))


def noise(_op: spec.AudioNoise, x: Any, p: dict[str, Any]) -> Any:
    return x + _each(p["level"], x) * normal(p["k0"], p["k1"], x[0].numel()).reshape(x.shape)


def spans(p: dict[str, Any], length: int) -> Any:
    place = _torch().arange(length, device=p["start"].device)
    start, stop = p["start"][..., None], (p["start"] + p["width"])[..., None]
    return ((place >= start) & (place < stop)).any(1)


def time_mask(_op: spec.TimeMask, x: Any, p: dict[str, Any]) -> Any:
    return x.masked_fill(_row(spans(p, x.shape[-1]), x), 0)


def frequency_mask(_op: spec.FrequencyMask, x: Any, p: dict[str, Any]) -> Any:
    mask = spans(p, x.shape[-2]).reshape(len(x), *[1] * (x.ndim - 3), x.shape[-2], 1)
    return x.masked_fill(mask, 0)


def speed(_op: spec.Speed, x: Any, p: dict[str, Any]) -> Any:
    torch, length = _torch(), x.shape[-1]
    rate = p["rate"][:, None]
    place = torch.arange(length, device=x.device) * rate
    whole, part = place >> SPEED_BITS, (place & (ONE - 1)).to(torch.float32) * (1 / ONE)
    cutoff = (ONE / rate.to(torch.float32)).clamp(max=1)
    total = torch.zeros_like(x)
    for tap in range(1 - REACH, REACH + 1):
        distance = tap - part
        weight = cutoff * torch.sinc(cutoff * distance) * torch.cos(distance * (torch.pi / 2 / REACH)) ** 2
        source = whole + tap
        weight = weight * ((source >= 0) & (source < length) & (whole < length))
        total = total + _row(weight, x) * _take(x, source.clamp(0, length - 1))
    return torch.where(_each(p["rate"] == ONE, x), x, total)


KERNELS: dict[type, Kernel] = {
    spec.Gain: gain, spec.Shift: shift, spec.AudioNoise: noise, spec.TimeMask: time_mask,
    spec.FrequencyMask: frequency_mask, spec.Speed: speed,
}  # fmt: skip
