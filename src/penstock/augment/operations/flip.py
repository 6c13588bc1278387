"""`Flip` and `Rot90`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Op, Shape
from penstock.augment.params import Drawn
from penstock.core import randomness
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Flip(Op):
    """Mirrors left to right ("horizontal") or top to bottom ("vertical")."""

    axis: str = "horizontal"
    p: float = 0.5
    exact: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    geometric: ClassVar[bool] = True
    mirrors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis not in ("horizontal", "vertical"):
            raise self._wrong('axis "horizontal" or "vertical"', self.axis, 'axis="horizontal"')

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.flip(x, (2 if self.axis == "horizontal" else 1,))

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        height, width = size
        x, y = at[..., 0], at[..., 1]
        return xp.stack([width - x, y] if self.axis == "horizontal" else [x, height - y], -1)


@dataclass(frozen=True)
class Rot90(Op):
    """Turns by quarter turns, counter-clockwise; each of `turns` is equally likely. Images that are not square use
    only the even ones, as the shape of a batch cannot depend on the row."""

    turns: tuple[int, ...] = (0, 1, 2, 3)
    p: float = 1.0
    exact: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("turns", tuple(self.turns))
        if not self.turns or not set(self.turns) <= {0, 1, 2, 3}:
            raise self._wrong("turns out of 0, 1, 2, 3", self.turns, "turns=(0, 1, 2, 3)")

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        square = shape[0] == shape[1]
        turns = np.array([t for t in self.turns if square or t % 2 == 0], np.int32)
        if not len(turns):
            raise self._misfit("square images for quarter turns", shape, "crop to a square first, or turns=(0, 2)")
        return {"k": turns[randomness.integers(keys, 0, len(turns))]}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.rot90(x, p["k"])

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        (height, width), k = size, p["k"][:, None]
        x, y = at[..., 0], at[..., 1]
        return xp.stack(
            [
                xp.where(k == 0, x, xp.where(k == 1, y, xp.where(k == 2, width - x, height - y))),
                xp.where(k == 0, y, xp.where(k == 1, width - x, xp.where(k == 2, height - y, x))),
            ],
            -1,
        )
