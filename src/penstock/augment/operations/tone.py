"""Operations on levels of brightness: `Grayscale`, `Invert`, `Posterize`, `Solarize`, `AutoContrast`, `Equalize`,
`Sharpness`.

On uint8 they are Pillow's `ImageOps` in integers (`AutoContrast` in exact arithmetic, where Pillow's floats are at
times one level lower); floats from 0 to 1 are rounded to 256 levels where the definition has levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Factor, Op, Range, Shape
from penstock.augment.operations.color import LUMA, check_colour
from penstock.augment.params import Drawn, i32, uniform
from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Grayscale(Op):
    """Grey in all three channels: 0.299 red + 0.587 green + 0.114 blue."""

    p: float = 0.1
    exact: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        check_colour(self, shape)
        return {}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        if not xp.is_integer(x.dtype):
            grey = xp.matmul(x, xp.constant(LUMA, x))[..., None]
        else:
            red, green, blue = (xp.astype(x[..., i : i + 1], xp.int32) for i in range(3))
            if xp.iinfo(x.dtype).max > 255:
                grey = (red * 4899 + green * 9617 + blue * 1868 + (1 << 13)) >> 14
            else:
                grey = (red * 19595 + green * 38470 + blue * 7471 + (1 << 15)) >> 16
            grey = xp.astype(grey, x.dtype)
        return xp.concatenate([grey, grey, grey], -1)


@dataclass(frozen=True)
class Invert(Op):
    """White minus the value."""

    p: float = 0.5
    exact: ClassVar[bool] = True

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return white(xp, x.dtype) - x


@dataclass(frozen=True)
class Solarize(Op):
    """Inverts what is at least as bright as a threshold, drawn from `threshold`: 0 (black) to 1 (white)."""

    threshold: float | Range = 0.5
    p: float = 0.5
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.threshold, int | float):
            self._set("threshold", (self.threshold, self.threshold))
        self._range("threshold", None, 0.0, 1.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return {"threshold": uniform(keys, self.threshold)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return solarized(xp, x, p["threshold"])


class _Levels(Op):
    """Base of operations on 256 levels."""

    exact: ClassVar[bool] = True

    def check_dtype(self, dtype: Any) -> None:
        name = str(dtype).rpartition(".")[2]
        if "int" in name and name != "uint8":
            raise UsageError(
                f"uint8 or floats from 0 to 1 for {type(self).__name__}",
                got=name,
                where=f"augment operation {type(self).__name__}",
                fix="convert to 8 bits, or to floats from 0 to 1, before",
            )


@dataclass(frozen=True)
class Posterize(_Levels):
    """Keeps the highest `bits` bits of 8; an integer, or (low, high) drawn evenly."""

    bits: int | tuple[int, int] = (4, 7)
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = (self.bits, self.bits) if isinstance(self.bits, int) else tuple(self.bits)
        if len(pair) != 2 or not all(isinstance(v, int) for v in pair) or not 0 <= pair[0] <= pair[1] <= 8:
            raise self._wrong("bits from 0 to 8, or (low, high)", self.bits, "bits=4")
        self._set("bits", pair)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        low, high = self.bits  # type: ignore[misc]  # a pair since __post_init__
        return {"bits": i32(low + randomness.integers(keys, 0, high - low + 1))}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return posterized(xp, x, p["bits"])


@dataclass(frozen=True)
class AutoContrast(_Levels):
    """Stretches each channel so that its darkest value is black and its brightest white."""

    p: float = 0.5

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return contrast_stretched(xp, x)


@dataclass(frozen=True)
class Equalize(_Levels):
    """Spreads the levels of each channel so that they are about equally frequent."""

    p: float = 0.5

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return equalized(xp, x)


class Sharpness(Factor):
    """Away from (factor above 1) or towards (below 1) a smoothed picture: 3 x 3, weight 5 in the middle; the outermost
    pixels stay. Pillow's `ImageEnhance.Sharpness`."""

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return sharpened(xp, x, p["factor"])


def white(xp: Arrays, dtype: Any) -> Any:
    """The value of white in a column of this dtype."""
    return int(xp.iinfo(dtype).max) if xp.is_integer(dtype) else 1.0


def solarized(xp: Arrays, x: Any, threshold: Any) -> Any:
    """`x`, inverted where it is at least `threshold` (one from 0 to 1 per row)."""
    top = white(xp, x.dtype)
    return xp.where(xp.astype(x, xp.float32) >= each(threshold * float(top), x), top - x, x)


def levels(xp: Arrays, x: Any) -> Any:
    """uint8, or floats from 0 to 1, as integers from 0 to 255."""
    if xp.is_integer(x.dtype):
        return xp.astype(x, xp.int32)
    return xp.astype(xp.round(xp.clip(x, 0, 1) * 255.0), xp.int32)


def from_levels(xp: Arrays, made: Any, dtype: Any) -> Any:
    """The inverse of `levels`."""
    return xp.astype(made, dtype) if xp.is_integer(dtype) else xp.astype(made, dtype) * float(np.float32(1 / 255))


def posterized(xp: Arrays, x: Any, bits: Any) -> Any:
    """The highest `bits` (one per row) bits of each level."""
    drop = each(8 - xp.astype(bits, xp.int32), x)
    return from_levels(xp, (levels(xp, x) >> drop) << drop, x.dtype)


def contrast_stretched(xp: Arrays, x: Any) -> Any:
    """Each channel of each row from its darkest and brightest value to black and white."""
    if xp.is_integer(x.dtype):
        x, dtype = xp.astype(x, xp.int32), x.dtype
        low, high = _extremes(xp, x)
        span = xp.where(high > low, high - low, 255)
        return xp.astype((x - xp.where(high > low, low, 0)) * 255 // span, dtype)
    low, high = _extremes(xp, x)
    wide = high > low
    return xp.where(wide, (x - low) / xp.where(wide, high - low, 1.0), x)


def _extremes(xp: Arrays, x: Any) -> tuple[Any, Any]:
    rows, _, _, channels = x.shape
    flat = x.reshape(rows, -1, channels)
    low, high = (find(flat, 1).reshape(rows, 1, 1, channels) for find in (xp.amin, xp.amax))
    return low, high


def equalized(xp: Arrays, x: Any) -> Any:
    """Each channel of each row through the table that makes its levels about equally frequent."""
    rows, height, width, channels = x.shape
    values = xp.movechannel(levels(xp, x).reshape(rows, height * width, channels)).reshape(rows * channels, -1)
    counts = xp.histogram(values, 256)
    place = xp.indices(256, values)[None, :]
    last = xp.amax(xp.where(counts > 0, place, 0), 1)
    brightest = xp.gather(counts, 1, last[:, None])
    step = (height * width - brightest) // 255
    safe = xp.where(step > 0, step, 1)
    table = xp.clip((safe // 2 + xp.cumsum(counts, 1) - counts) // safe, None, 255)
    table = xp.where(step > 0, table, place)
    made = xp.gather(table, 1, values).reshape(rows, channels, height * width)
    return from_levels(xp, xp.movechannel(made).reshape(x.shape), x.dtype)


def sharpened(xp: Arrays, x: Any, factor: Any) -> Any:
    """`smooth + factor * (x - smooth)`, clipped."""
    height, width = x.shape[1:3]
    wide = xp.pad_edge(xp.pad_edge(x, 1, 1), 2, 1)
    tall = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    smooth = (tall[:, :, :-2] + tall[:, :, 1:-1] + tall[:, :, 2:] + 4 * x) * (1 / 13)
    row, column = (xp.indices(side, x) for side in (height, width))
    inner = ((row > 0) & (row < height - 1))[:, None] & ((column > 0) & (column < width - 1))[None, :]
    made = smooth + (x - smooth) * each(factor, x)
    return xp.clip01(xp.where(inner[None, :, :, None], made, x))
