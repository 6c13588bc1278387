"""Operations that move every pixel: `Rotate`, `Affine`, `Shear`, `Translate`, `Perspective`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.operations.boxes import fill_value
from penstock.augment.params import Drawn, f32
from penstock.augment.warp import F64, affine, coefficients, homography, move_points, warp
from penstock.core import randomness
from penstock.core.randomness import U64

INTERPOLATIONS = ("bilinear", "nearest")


def check_moving(op: Op, fill: float, interpolation: str, usual: str) -> None:
    """The arguments of every operation that moves pixels."""
    if interpolation not in INTERPOLATIONS:
        raise op._wrong(f"interpolation one of {INTERPOLATIONS}", interpolation, usual)
    if not 0 <= fill <= 1:
        raise op._wrong("fill from 0 (black) to 1 (white)", fill)


class Warp(Op):
    """Base: `maps` draws how coordinates move. `fill` is 0 (black) to 1 (white); `interpolation` "bilinear" or
    "nearest", which keeps integers exactly."""

    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0
    geometric: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moving(self, self.fill, self.interpolation, '"bilinear"')

    @property
    def exact(self) -> bool:  # type: ignore[override]  # by interpolation
        return self.interpolation == "nearest"

    @abstractmethod
    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        """Maps of coordinates (n, 3, 3), and what was drawn for them."""

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        maps, drawn = self.maps(keys, shape)
        return drawn | coefficients(maps)

    def describe(self, p: Drawn) -> dict[str, Any]:
        return {name: value for name, value in super().describe(p).items() if name not in ("m", "f")}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return warp(xp, x, p["m"], fill_value(xp, self.fill, x.dtype), self.interpolation == "nearest")

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        return warp(xp, x, p["m"], fill, True)

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        return move_points(xp, at, p["f"])


def _drawn(keys: U64, number: int, pair: Any) -> F64:
    return randomness.uniform(keys, number, float(pair[0]), float(pair[1]))


@dataclass(frozen=True)
class Rotate(Warp):
    """Turns about the centre by `degrees`, counter-clockwise; a number means (-number, number). The size stays."""

    degrees: float | Range = 30.0
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("degrees", 0.0, -360.0, 360.0)

    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        degrees = _drawn(keys, 0, self.degrees)
        return affine(shape[0], shape[1], -degrees, 0.0, 0.0, 1.0, 0.0, 0.0), {"degrees": f32(degrees)}


@dataclass(frozen=True)
class Translate(Warp):
    """Shifts by shares `x` of the width and `y` of the height, rounded to pixels; a number means (-number, number)."""

    x: float | Range = 0.1
    y: float | Range = 0.1
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("x", 0.0, -1.0, 1.0)
        self._range("y", 0.0, -1.0, 1.0)

    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        dx, dy = np.rint(_drawn(keys, 0, self.x) * shape[1]), np.rint(_drawn(keys, 1, self.y) * shape[0])
        return affine(shape[0], shape[1], 0.0, dx, dy, 1.0, 0.0, 0.0), {"dx": f32(dx), "dy": f32(dy)}


@dataclass(frozen=True)
class Shear(Warp):
    """Shears about the centre by angles `x` (rows slide) and `y` (columns slide) in degrees; a number means (-number,
    number)."""

    x: float | Range = 15.0
    y: float | Range = 0.0
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("x", 0.0, -80.0, 80.0)
        self._range("y", 0.0, -80.0, 80.0)

    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        x, y = _drawn(keys, 0, self.x), _drawn(keys, 1, self.y)
        return affine(shape[0], shape[1], 0.0, 0.0, 0.0, 1.0, x, y), {"shear_x": f32(x), "shear_y": f32(y)}


@dataclass(frozen=True)
class Affine(Warp):
    """Rotation (`degrees`, clockwise), `shear` and `shear_y` (degrees), `scale` about the centre, then a shift by up to
    shares `translate` (x, y), rounded to pixels: torchvision's RandomAffine."""

    degrees: float | Range = 15.0
    translate: tuple[float, float] = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: float | Range = 0.0
    shear_y: float | Range = 0.0
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("degrees", 0.0, -360.0, 360.0)
        self._range("shear", 0.0, -80.0, 80.0)
        self._range("shear_y", 0.0, -80.0, 80.0)
        if isinstance(self.scale, int | float):
            raise self._wrong("scale as (low, high)", self.scale, "scale=(0.8, 1.2)")
        self._range("scale", None, 1e-3, 1e3)
        try:
            x, y = self.translate
            good = 0 <= x <= 1 and 0 <= y <= 1
        except (TypeError, ValueError):
            good = False
        if not good:
            raise self._wrong("translate as shares (x, y) from 0 to 1", self.translate, "translate=(0.1, 0.1)")
        self._set("translate", (float(x), float(y)))

    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        angle, scale = _drawn(keys, 0, self.degrees), _drawn(keys, 1, self.scale)
        sx, sy = _drawn(keys, 2, self.shear), _drawn(keys, 3, self.shear_y)
        most_x, most_y = (share * side for share, side in zip(self.translate, (shape[1], shape[0]), strict=True))
        dx, dy = np.rint(_drawn(keys, 4, (-most_x, most_x))), np.rint(_drawn(keys, 5, (-most_y, most_y)))
        drawn = {"degrees": angle, "scale": scale, "shear_x": sx, "shear_y": sy, "dx": dx, "dy": dy}
        maps = affine(shape[0], shape[1], angle, dx, dy, scale, sx, sy)
        return maps, {name: f32(values) for name, values in drawn.items()}


@dataclass(frozen=True)
class Perspective(Warp):
    """Moves each corner inwards by up to half of `distortion` of the width and of the height: torchvision's
    RandomPerspective, with corners at the edges of the image."""

    distortion: float = 0.5
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.distortion <= 1:
            raise self._wrong("distortion from 0 to 1", self.distortion, "distortion=0.5")

    def maps(self, keys: U64, shape: Shape) -> tuple[F64, Drawn]:
        height, width = shape[:2]
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
        inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
        share = np.stack([randomness.uniform(keys, i, 0.0, self.distortion / 2) for i in range(8)], 1)
        ends = corners + inwards * share.reshape(-1, 4, 2) * 0.999 * [width, height]
        starts = np.broadcast_to(corners, ends.shape)
        return homography(starts, ends), {"corners": f32(ends)}
