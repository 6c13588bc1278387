"""`Blur`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.params import Drawn, uniform
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Blur(Op):
    """Gaussian blur, sigma in pixels drawn from `sigma`; edges repeat the last pixel. Costs 2 * radius + 1 taps twice,
    with radius three times the largest sigma."""

    sigma: float | Range = (0.1, 2.0)
    p: float = 0.5
    bounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("sigma", None, 0.0, 50.0)

    @property
    def radius(self) -> int:
        _, high = self.sigma  # type: ignore[misc]  # a pair since __post_init__
        return ceil(3 * high)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return {"sigma": uniform(keys, self.sigma)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        radius = self.radius
        offset = xp.floats(-radius, radius + 1, x)
        taps = xp.exp(-0.5 * (offset / xp.maximum(p["sigma"], 1e-3)[:, None]) ** 2)
        taps = taps / taps.sum(axis=1, keepdims=True)
        for axis in (1, 2):
            wide, length = xp.pad_edge(x, axis, radius), x.shape[axis]
            views = (
                wide[:, i : i + length] if axis == 1 else wide[:, :, i : i + length] for i in range(2 * radius + 1)
            )
            x = each(taps[:, 0], x) * next(views)
            for i, view in enumerate(views, 1):
                x += each(taps[:, i], x) * view
        return x
