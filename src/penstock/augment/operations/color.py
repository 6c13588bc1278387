"""Operations on pixel values: `Brightness`, `Contrast`, `Saturation`, `Hue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Factor, Op, Range, Shape
from penstock.augment.params import Drawn, uniform
from penstock.core.randomness import U64

LUMA = (0.299, 0.587, 0.114)


class Brightness(Factor):
    """Multiplies by a factor, clipped to [0, 1]."""

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.clip01(x * each(p["factor"], x))


class Contrast(Factor):
    """Stretches about the mean of the picture by a factor, clipped to [0, 1]."""

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return stretch(xp, x, x.mean(axis=(1, 2, 3), keepdims=True), p)


class Saturation(Factor):
    """Stretches about each pixel's grey by a factor, clipped to [0, 1]. Three channels."""

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        check_colour(self, shape)
        return super().draw(keys, shape)

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return stretch(xp, x, xp.matmul(x, xp.constant(LUMA, x))[..., None], p)


def stretch(xp: Arrays, x: Any, middle: Any, p: dict[str, Any]) -> Any:
    made = x - middle
    made *= each(p["factor"], x) - 1
    made += x
    return xp.clip01(made)


@dataclass(frozen=True)
class Hue(Op):
    """Turns the HSV hue by a share of the colour circle (0.5 is the opposite colour). Three channels."""

    amount: float | Range = 0.1
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 0.0, -0.5, 0.5)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        check_colour(self, shape)
        return {"factor": uniform(keys, self.amount)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        """The maximum and the chroma stay."""
        r, g, b = x[..., 0], x[..., 1], x[..., 2]
        top = xp.amax(x, -1)
        chroma = top - xp.amin(x, -1)
        safe = xp.where(chroma > 0, chroma, 1.0)
        sixth = xp.where(top == r, (g - b) / safe, xp.where(top == g, (b - r) / safe + 2, (r - g) / safe + 4))
        sixth = sixth + 6 * p["factor"][:, None, None]
        k = (xp.constant([5, 3, 1], x) + sixth[..., None]) % 6
        share = xp.clip01(xp.minimum(k, 4 - k))
        made = xp.clip01(top[..., None] - chroma[..., None] * share)
        return xp.where(each(p["factor"], x) == 0, x, made)


def check_colour(op: Op, shape: Shape) -> None:
    if shape[-1] != 3:
        raise op._misfit("three channels", shape, "leave it out for grey images, or decode to RGB")
