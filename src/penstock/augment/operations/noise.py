"""Gaussian noise: `Noise` on images, `AudioNoise` on audio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.augment.arrays import Arrays, each
from penstock.augment.field import normal
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.params import Drawn, field_keys, uniform
from penstock.core.randomness import U64


@dataclass(frozen=True)
class _Noise(Op):
    level: float | Range = 0.05
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("level", None, 0.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return {"level": uniform(keys, self.level), **field_keys(keys)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        made = normal(xp, p["k0"], p["k1"], x)
        made *= each(p["level"], x)
        made += x
        return made


class Noise(_Noise):
    """Adds Gaussian noise whose standard deviation is drawn from `level` (a number means (0, number)), clipped."""

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.clip01(super().apply(xp, x, p))


class AudioNoise(_Noise):
    """Adds Gaussian noise whose standard deviation is drawn from `level` (a number means (0, number))."""

    kind: ClassVar[str] = "audio"
