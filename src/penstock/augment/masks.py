"""Masks follow their image: the geometric operations of an `Augment`, with the same draw, on class numbers.

Class numbers are never averaged: crops that resize take the nearest pixel. A column beside the image that would have to
move with it (a mask, boxes, keypoints) and that was neither declared nor excluded is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Op, Shape
from penstock.augment.params import Drawn
from penstock.core.errors import UsageError

MASKS = frozenset(["mask", "masks", "seg", "segmentation", "segmentation_mask", "semseg", "panoptic", "instances"])
POINTS = frozenset(["box", "boxes", "bbox", "bboxes", "keypoints", "landmarks", "polygons"])


@dataclass(frozen=True)
class OnMask(Op):
    """A geometric operation as it acts on a mask."""

    op: Op
    fill: int
    exact: ClassVar[bool] = True

    @property
    def p(self) -> float:  # type: ignore[override]
        return self.op.p

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return self.op.apply_mask(xp, x, p, self.fill)

    def shape(self, shape: Shape) -> Shape:
        return self.op.shape(shape)


def geometric(ops: Sequence[Op], drawn: Sequence[Drawn], fill: int) -> tuple[tuple[Op, ...], tuple[Drawn, ...]]:
    """The operations that move pixels, as they act on masks, and their parameters."""
    pairs = [(OnMask(op, fill), p) for op, p in zip(ops, drawn, strict=True) if op.geometric]
    return tuple(op for op, _ in pairs), tuple(p for _, p in pairs)


def as_images(column: Any, name: str, height: int, width: int) -> tuple[Any, int | None]:
    """A mask column as (N, H, W, 1), and the axis of its channel: None for (N, H, W)."""
    shape = tuple(int(n) for n in column.shape)
    if shape[1:] == (height, width):
        return column[..., None], None
    if len(shape) == 4 and shape[1:3] == (height, width):
        return column, 3
    if len(shape) == 4 and shape[2:4] == (height, width):
        return column.swapaxes(1, 2).swapaxes(2, 3), 1
    raise UsageError(
        f"masks of the size of their images, {height} x {width}, in column {name!r}",
        got=f"rows of shape {shape[1:]}",
        where="Augment",
        fix="decode or resize both to one size first",
    )


def back(made: Any, channel: int | None) -> Any:
    """The result in the layout of the column."""
    if channel is None:
        return made[..., 0]
    return made.swapaxes(-1, -2).swapaxes(-2, -3) if channel == 1 else made


def check_others(
    columns: dict[str, Any], image: str, known: frozenset[str], height: int, width: int, where: str = "Augment"
) -> None:
    """Raises for a column that has to move with the image and is not in `known`."""
    for name, column in columns.items():
        if name == image or name in known:
            continue
        if name in POINTS or (_is_array(column) and _is_picture(name, column, height, width)):
            raise UsageError(
                f"to know what to do with column {name!r}, which has to move with {image!r}",
                got="geometric operations, which would leave it as it is",
                where=where,
                fix=f"Augment(..., {argument_for(name)}={name!r}) moves it too; "
                + f"Augment(..., ignore={name!r}) leaves it",
            )


def argument_for(name: str) -> str:
    """The argument that makes a column of this name move with its image."""
    return "masks" if name not in POINTS else "boxes" if "box" in name else "keypoints"


def _is_array(column: Any) -> bool:
    return hasattr(column, "shape") and hasattr(column, "dtype")


def _is_picture(name: str, column: Any, height: int, width: int) -> bool:
    """Whether a column has values for each pixel: by its shape, or as an array of two axes or more by its name."""
    shape = tuple(int(n) for n in column.shape)[1:]
    if name in MASKS and len(shape) >= 2:
        return True
    size = (height, width)
    return shape == size or (len(shape) == 3 and size in (shape[:2], shape[1:]))


def nearest(xp: Arrays, x: Any, p: dict[str, Any], height: int, width: int) -> Any:
    """The box (y, x, h, w) of each row of (N, H, W, C), resized to `height` x `width` by taking the nearest pixel."""
    for axis, start, length, size in ((1, "y", "h", height), (2, "x", "w", width)):
        place = (xp.floats(0, size, x) + 0.5) / size
        offset = xp.floor(place * xp.astype(p[length], xp.float32)[:, None])
        index = p[start][:, None] + xp.astype(offset, p[start].dtype)
        x = xp.gather(x, axis, index)
    return x


def names_of(value: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def check_fill(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UsageError("mask_fill, a class number,", got=repr(value), where="Augment(...)", fix="mask_fill=255")
    return int(value)
