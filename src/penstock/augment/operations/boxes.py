"""Operations on rectangles: `Erase`. Also the mask and the fill value that other operations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.params import Drawn, boxes
from penstock.codecs.image.geometry import crop_params
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Erase(Op):
    """Sets a random rectangle, `scale` of the area and `ratio` wide/high, to `fill`."""

    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: float = 0.0
    p: float = 0.5
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("scale", None, 1e-6, 1.0)
        self._range("ratio", None, 1e-6)
        if not 0 <= self.fill <= 1:
            raise self._wrong("fill from 0 (black) to 1 (white)", self.fill)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return boxes(crop_params(keys, shape[0], shape[1], self.scale, self.ratio))

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.where(inside(xp, p, x), xp.constant(fill_value(xp, self.fill, x.dtype), x), x)


def inside(xp: Arrays, p: dict[str, Any], x: Any) -> Any:
    """Mask (rows, height, width, 1) of the boxes (y, x, h, w)."""
    down, across = xp.indices(x.shape[1], x), xp.indices(x.shape[2], x)
    tall = (down >= p["y"][:, None]) & (down < (p["y"] + p["h"])[:, None])
    wide = (across >= p["x"][:, None]) & (across < (p["x"] + p["w"])[:, None])
    return (tall[:, :, None] & wide[:, None, :])[..., None]


def fill_value(xp: Arrays, fill: float, dtype: Any) -> Any:
    """`fill` in [0, 1] on the scale of a dtype."""
    return round(fill * xp.iinfo(dtype).max) if xp.is_integer(dtype) else fill
