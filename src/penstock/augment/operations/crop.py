"""Operations that change the size of images: `Crop`, `RandomResizedCrop`, `Resize`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.masks import nearest
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.operations.boxes import fill_value
from penstock.augment.params import Drawn, boxes, i32
from penstock.codecs.image.filter_resize import filter_weights
from penstock.codecs.image.geometry import crop_params
from penstock.core import randomness
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Sized(Op):
    """Base of operations whose images come out as `size`."""

    size: int | tuple[int, int]
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = (self.size, self.size) if isinstance(self.size, int) else self.size
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(v, int) and v > 0 for v in pair)):
            raise self._wrong("size as a positive integer or (height, width)", self.size, "for example size=(24, 32)")
        self._set("size", pair)

    @property
    def height_width(self) -> tuple[int, int]:
        height, width = self.size  # type: ignore[misc]  # a pair since __post_init__
        return height, width

    def shape(self, shape: Shape) -> Shape:
        return (*self.height_width, *shape[2:])

    def sides(self, height: Any, width: Any, p: dict[str, Any]) -> tuple[Any, Any]:
        tall, wide = self.height_width
        return 0 * height + tall, 0 * width + wide


@dataclass(frozen=True)
class Crop(Sized):
    """Cuts a window of `size` at a random position (or the centre), after a border of `padding` filled with `fill`."""

    padding: int = 0
    fill: float = 0.0
    where: str = "random"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.padding < 0:
            raise self._wrong("padding of 0 or more", self.padding, "padding=4")
        if self.where not in ("random", "center"):
            raise self._wrong('where "random" or "center"', self.where, 'where="random"')
        if not 0 <= self.fill <= 1:
            raise self._wrong("fill from 0 (black) to 1 (white)", self.fill)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        height, width = self.height_width
        room_y, room_x = shape[0] + 2 * self.padding - height, shape[1] + 2 * self.padding - width
        if room_y < 0 or room_x < 0:
            fix = "a smaller size, more padding, or RandomResizedCrop"
            raise self._misfit(f"images of at least {height} x {width} with padding {self.padding}", shape, fix)
        if self.where == "center":
            y, x = np.full(len(keys), room_y // 2), np.full(len(keys), room_x // 2)
        else:
            y, x = randomness.integers(keys, 0, room_y + 1), randomness.integers(keys, 1, room_x + 1)
        return {"y": i32(y - self.padding), "x": i32(x - self.padding)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return self._window(xp, x, p, fill_value(xp, self.fill, x.dtype))

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        return self._window(xp, x, p, fill)

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        return at - xp.astype(xp.stack([p["x"], p["y"]], -1), xp.float32)[:, None]

    def needs_range(self) -> bool:
        return self.padding > 0

    def _window(self, xp: Arrays, x: Any, p: dict[str, Any], fill: Any) -> Any:
        return xp.windows(x, 1, (p["y"], p["x"]), self.height_width, self.padding, fill)


@dataclass(frozen=True)
class _Resampled(Sized):
    """The box (y, x, h, w) of each image, resized with a triangle filter."""

    row_by_row: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        return nearest(xp, x, p, *self.height_width)

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        y, x, tall, wide = (xp.astype(p[name], xp.float32)[:, None] for name in ("y", "x", "h", "w"))
        height, width = self.height_width
        return xp.stack([(at[..., 0] - x) * (width / wide), (at[..., 1] - y) * (height / tall)], -1)

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return resample_box(xp, x, p, *self.height_width)


def resample_box(xp: Arrays, x: Any, p: dict[str, Any], height: int, width: int) -> Any:
    """The box (y, x, h, w) of each image, resized with an antialiased triangle filter."""
    x, y, left = xp.part(x, p)
    down = _weights(xp, y, p["h"], x.shape[1], height)
    across = _weights(xp, left, p["w"], x.shape[2], width)
    return xp.resample(down, across, x)


def _weights(xp: Arrays, start: Any, length: Any, total: int, size: int) -> Any:
    """Filters (rows, size, total) that resample the pixels [start, start + length) of `total` to `size`; a start of
    None means all of them."""
    if start is None:
        return _all_weights(total, size)
    length = xp.astype(length, xp.float32)[:, None, None]
    pixels = xp.floats(0, total, length) - xp.astype(start, xp.float32)[:, None, None]
    inside = (pixels >= 0) & (pixels < length)
    return filter_weights(xp, pixels, xp.floats(0, size, length), length / size, inside=inside)


@lru_cache(maxsize=32)
def _all_weights(total: int, size: int) -> Any:
    pixels, outputs = np.arange(total, dtype=np.float32), np.arange(size, dtype=np.float32)
    return filter_weights(np, pixels, outputs, np.float32(total) / np.float32(size))[None]


@dataclass(frozen=True)
class RandomResizedCrop(_Resampled):
    """A random part, `scale` of the area and `ratio` wide/high, resized to `size` with a triangle filter."""

    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("scale", None, 1e-6, 1.0)
        self._range("ratio", None, 1e-6)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return boxes(crop_params(keys, shape[0], shape[1], self.scale, self.ratio))


@dataclass(frozen=True)
class Resize(_Resampled):
    """Resizes to `size` with an antialiased triangle filter (Pillow's BILINEAR). No randomness."""

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return boxes(np.tile(np.array([0, 0, shape[0], shape[1]]), (len(keys), 1)))
