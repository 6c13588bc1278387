"""Operations that fit images to a size: `Letterbox`, `ShorterSide`, `FiveCrop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.masks import nearest
from penstock.augment.operations.base import Op, Shape
from penstock.augment.operations.boxes import fill_value
from penstock.augment.operations.crop import Sized, resample_box
from penstock.augment.params import Drawn, i32
from penstock.core.randomness import U64


def _whole(keys: U64, shape: Shape, more: dict[str, int]) -> Drawn:
    values = {"y": 0, "x": 0, "h": shape[0], "w": shape[1], **more}
    return {name: i32(np.full(len(keys), value)) for name, value in values.items()}


def _scaled_points(xp: Arrays, at: Any, p: dict[str, Any]) -> Any:
    """Points after a resize from h x w to `high` x `wide`."""
    x, y = (
        at[..., i] * (xp.astype(p[after], xp.float32) / xp.astype(p[before], xp.float32))[:, None]
        for i, (before, after) in enumerate((("w", "wide"), ("h", "high")))
    )
    return xp.stack([x, y], -1)


@dataclass(frozen=True)
class Letterbox(Sized):
    """Resizes to fit inside of `size`, ratio kept, and fills the rest with `fill` (0.447 is YOLO's grey), centred."""

    fill: float = 0.0
    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fill <= 1:
            raise self._wrong("fill from 0 (black) to 1 (white)", self.fill)

    def inner(self, shape: Any) -> tuple[int, int]:
        """Height and width of the resized image."""
        height, width = self.height_width
        scale = min(height / int(shape[0]), width / int(shape[1]))
        return max(1, min(height, round(int(shape[0]) * scale))), max(1, min(width, round(int(shape[1]) * scale)))

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        (high, wide), (height, width) = self.inner(shape), self.height_width
        return _whole(
            keys, shape, {"high": high, "wide": wide, "top": (height - high) // 2, "left": (width - wide) // 2}
        )

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        made = resample_box(xp, x, p, *self.inner(x.shape[1:]))
        return self._placed(xp, made, p, fill_value(xp, self.fill, made.dtype))

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        return self._placed(xp, nearest(xp, x, p, *self.inner(x.shape[1:])), p, fill)

    def _placed(self, xp: Arrays, made: Any, p: dict[str, Any], fill: Any) -> Any:
        around = max(side - inner for side, inner in zip(self.height_width, made.shape[1:3], strict=True))
        return xp.windows(made, 1, (-p["top"], -p["left"]), self.height_width, around, fill) if around else made

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        return _scaled_points(xp, at, p) + xp.astype(xp.stack([p["left"], p["top"]], -1), xp.float32)[:, None]


@dataclass(frozen=True)
class ShorterSide(Op):
    """Resizes so that the shorter side is `size`, ratio kept; with `longest`, at most that on the longer side. Images
    of different sizes stay so: an object column, on the host."""

    size: int
    longest: int | None = None
    geometric: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("size", self.size), ("longest", self.longest or self.size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._wrong(f"{name} of at least 1", value, "size=256")
        if self.longest is not None and self.longest < self.size:
            raise self._wrong("longest of at least size", self.longest, "longest=1333 with size=800")

    def inner(self, shape: Any) -> tuple[int, int]:
        """Height and width after it: torchvision's rounding."""
        height, width = int(shape[0]), int(shape[1])
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, self.size * long // short
        if self.longest is not None and new_long > self.longest:
            new_short, new_long = max(1, self.longest * short // long), self.longest
        return (new_short, new_long) if height <= width else (new_long, new_short)

    def shape(self, shape: Shape) -> Shape:
        return (*self.inner(shape), *shape[2:])

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        high, wide = self.inner(shape)
        return _whole(keys, shape, {"high": high, "wide": wide})

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return resample_box(xp, x, p, *self.inner(x.shape[1:]))

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        return nearest(xp, x, p, *self.inner(x.shape[1:]))

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        return _scaled_points(xp, at, p)

    def sides(self, height: Any, width: Any, p: dict[str, Any]) -> tuple[Any, Any]:
        return 0 * height + p["high"][:, None], 0 * width + p["wide"][:, None]


@dataclass(frozen=True)
class FiveCrop(Sized):
    """The four corners and the centre: (rows, 5, height, width, channels), or 10 with their mirror images (`flips`).
    Must be the last operation on images; masks are cut alike, boxes are refused."""

    flips: bool = False
    exact: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    def shape(self, shape: Shape) -> Shape:
        return (10 if self.flips else 5, *self.height_width, *shape[2:])

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        height, width = self.height_width
        if shape[0] < height or shape[1] < width:
            raise self._misfit(f"images of at least {height} x {width}", shape, "a smaller size, or Resize before")
        return {}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        height, width = self.height_width
        below, right = x.shape[1] - height, x.shape[2] - width
        places = ((0, 0), (0, right), (below, 0), (below, right), (round(below / 2), round(right / 2)))
        crops = [x[:, top : top + height, left : left + width] for top, left in places]
        if self.flips:
            crops += [xp.flip(crop, (2,)) for crop in crops]
        return xp.stack(crops, 1)
