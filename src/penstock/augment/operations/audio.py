"""Operations on audio, whose last axis is time: `Gain`, `Shift`, `TimeMask`, `FrequencyMask`, `SpecAugment`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Factor, Op, Range, Shape
from penstock.augment.params import Drawn, i32, scaled
from penstock.core import randomness
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Gain(Factor):
    """Multiplies by a factor. Not clipped."""

    amount: float | Range = 0.3
    kind: ClassVar[str] = "audio"

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return x * each(p["factor"], x)


@dataclass(frozen=True)
class Shift(Op):
    """Moves in time by a share of the length; what leaves at one end returns at the other (`wrap`), or is silence."""

    amount: float | Range = 0.1
    wrap: bool = True
    p: float = 1.0
    kind: ClassVar[str] = "audio"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 0.0, -1.0, 1.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return {"shift": i32(scaled(keys, self.amount, shape[-1]))}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        length, shift = x.shape[-1], p["shift"]
        if self.wrap:
            return xp.windows(xp.concatenate([x, x], -1), -1, ((length - shift) % max(length, 1),), (length,))
        low, high = self.amount  # type: ignore[misc]  # a pair since __post_init__
        return xp.windows(x, -1, (-shift,), (length,), ceil(max(-low, high) * length))


@dataclass(frozen=True)
class _Mask(Op):
    width: float | Range = 0.1
    count: int = 1
    p: float = 1.0
    kind: ClassVar[str] = "audio"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("width", None, 0.0, 1.0)
        if not 1 <= self.count <= 64:
            raise self._wrong("count from 1 to 64", self.count, "count=2")

    def _draw(self, keys: U64, length: int) -> Drawn:
        """Starts and widths (rows, count): a share of the length, placed anywhere it fits."""
        starts, widths = [], []
        for i in range(self.count):
            widths.append(scaled(keys, self.width, length, 2 * i).astype(np.int64))
            starts.append(randomness.integers(keys, 2 * i + 1, length - widths[-1] + 1))
        return {"start": i32(np.stack(starts, 1)), "width": i32(np.stack(widths, 1))}

    def _silence(self, xp: Arrays, x: Any, p: dict[str, Any], axis: int) -> Any:
        position = xp.indices(x.shape[axis], x)
        start, stop = p["start"][..., None], (p["start"] + p["width"])[..., None]
        mask = ((position >= start) & (position < stop)).any(axis=1)
        mask = mask.reshape(len(x), *[1] * (x.ndim - 1 + axis), x.shape[axis], *[1] * (-1 - axis))
        return xp.where(mask, xp.constant(0, x), x)


class TimeMask(_Mask):
    """Silences `count` spans of time, each `width` (a share of the length) long. Waveforms and spectrograms."""

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return self._draw(keys, shape[-1])

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return self._silence(xp, x, p, -1)


class FrequencyMask(_Mask):
    """Silences `count` bands of a spectrogram (rows, frequency, time), each `width` (a share of the bands) high."""

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        if len(shape) < 2:
            raise self._misfit("a spectrogram (rows, frequency, time)", shape, "compute mel features before it")
        return self._draw(keys, shape[-2])

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return self._silence(xp, x, p, -2)


@dataclass(frozen=True)
class SpecAugment(Op):
    """Masks `frequency_masks` bands and `time_masks` spans of a spectrogram (rows, frequency, time): up to
    `frequency_width` bands and `time_width` frames each (at most `time_share` of the row), drawn evenly from 0 on, set
    to 0 or to the row's mean (`fill="mean"`). The published LibriSpeech policy without time warping; use it before
    `.pad()`, so that masks depend on the row's own length."""

    frequency_masks: int = 2
    frequency_width: int = 27
    time_masks: int = 2
    time_width: int = 100
    time_share: float = 1.0
    fill: str = "zero"
    p: float = 1.0
    kind: ClassVar[str] = "audio"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            value, most = getattr(self, name), 64 if name.endswith("masks") else 1 << 20
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise self._wrong(f"{name} from 0 to {most}", value)
        if self.fill not in ("zero", "mean") or not 0 <= self.time_share <= 1:
            raise self._wrong('fill "zero" or "mean" and time_share from 0 to 1', (self.fill, self.time_share))

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        if len(shape) < 2:
            raise self._misfit("a spectrogram (rows, frequency, time)", shape, "compute mel features before it")
        out: Drawn = {}
        longest = min(self.time_width, int(self.time_share * shape[-1]))
        for name, count, width, length, first in (
            ("frequency", self.frequency_masks, min(self.frequency_width, shape[-2]), shape[-2], 0),
            ("time", self.time_masks, longest, shape[-1], 300),
        ):
            number = first + 2 * np.arange(count)
            sizes = randomness.integers(keys[:, None], number, width + 1)
            out[f"{name}_width"] = i32(sizes)
            out[f"{name}_start"] = i32(randomness.integers(keys[:, None], number + 1, length - sizes + 1))
        return out

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        axes = tuple(range(1, x.ndim))
        fill = xp.constant(0, x) if self.fill == "zero" else x.mean(axis=axes, keepdims=True)
        for name, axis in (("frequency", -2), ("time", -1)):
            if p[f"{name}_start"].shape[1]:
                place = xp.indices(x.shape[axis], x)
                start, width = p[f"{name}_start"][..., None], p[f"{name}_width"][..., None]
                inside = ((place >= start) & (place < start + width)).any(axis=1)
                inside = inside.reshape(len(x), *[1] * (x.ndim - 1 + axis), x.shape[axis], *[1] * (-1 - axis))
                x = xp.where(inside, fill, x)
        return x
