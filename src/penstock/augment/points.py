"""`Boxes` and `Keypoints`: columns of coordinates that move with their image, and the arithmetic that moves them.

Coordinates are continuous: pixel i of a line covers [i, i + 1), so its centre is at i + 0.5, the right edge of an image
is its width, and a mirror image has x' = width - x. Arithmetic is float32, the same in NumPy, torch and JAX.

A column is padded, (rows, places, 4) with a column `<name>_count` of how many places are boxes, and comes back so,
boxes that stay first, in their order. On the host, without a column of counts, each row has boxes of its own: they come
back padded to `max`, or without `max` as an object column with one array per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays
from penstock.core.arguments import explained_class
from penstock.core.errors import RecordError, UsageError

if TYPE_CHECKING:
    from penstock.augment.operations.base import Op
    from penstock.augment.params import Drawn

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
T = TypeVar("T", "Boxes", "Keypoints")


@explained_class
@dataclass(frozen=True)
class Boxes:
    """A column of bounding boxes beside an image, for `decode_images(boxes=)` and `Augment(boxes=)`.

    `format` is "xyxy" (corners: Pascal VOC), "xywh" (a corner and the size: COCO) or "cxcywh" (the centre and the size:
    YOLO), in pixels or, `normalised`, as shares of the image's width and height. Boxes come back in the same format.

    Boxes are clipped to the image. One is dropped if less than `min_visible` of its area is still inside, or a side is
    shorter than `min_size` pixels, or nothing is left; its entries in the columns `labels` (one per box: class, id,
    area) are dropped with it. With `max` rows come out padded: (rows, max, 4) of zeros, labels of `label_fill`, and
    `<column>_count`. Without it each row keeps an array of its own.

    >>> Boxes("bbox", format="xywh", labels="category").labels
    ('category',)
    """

    column: str = "boxes"
    format: BoxFormat = "xyxy"
    normalised: bool = False
    labels: str | tuple[str, ...] = ()
    min_visible: float = 0.0
    min_size: float = 0.0
    max: int | None = None
    label_fill: int = -1

    def __post_init__(self) -> None:
        names: Any = (self.labels,) if isinstance(self.labels, str) else tuple(self.labels)
        object.__setattr__(self, "labels", names)
        if self.format not in get_args(BoxFormat):
            fix = 'Pascal VOC: "xyxy"; COCO: "xywh"; YOLO: "cxcywh" with normalised=True'
            raise UsageError(f"format= one of {get_args(BoxFormat)} in Boxes", got=repr(self.format), fix=fix)
        if not 0 <= self.min_visible <= 1 or not 0 <= self.min_size < float("inf"):
            got = f"min_visible={self.min_visible!r}, min_size={self.min_size!r}"
            raise UsageError("min_visible from 0 to 1 and min_size of 0 or more in Boxes", got=got)
        if self.max is not None and (isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 1):
            raise UsageError("max=, the places of a padded row, of at least 1 in Boxes", got=repr(self.max), fix="100")

    @property
    def count(self) -> str:
        """The column of how many places of a padded row are boxes."""
        return f"{self.column}_count"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that change."""
        return (self.column, *self.labels, self.count)

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"labels": list(self.labels)}


@explained_class
@dataclass(frozen=True)
class Keypoints:
    """A column of points (rows, ..., 2) as x, y or (rows, ..., 3) as x, y, visibility, in pixels or `normalised`.

    Points keep their place. One that leaves the image becomes 0, 0, 0 where there is a visibility, as COCO marks points
    without a label (these stay 0, 0, 0); else it keeps its coordinates, and a column `<column>_inside` is False there.
    `pairs` are the places along the last axis but one that change sides in a mirror image: ((1, 2),) for left and
    right eye.

    >>> Keypoints("joints", pairs=((1, 2),)).columns
    ('joints', 'joints_inside')
    """

    column: str = "keypoints"
    normalised: bool = False
    pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        try:
            pairs = tuple((int(a), int(b)) for a, b in self.pairs)
        except (TypeError, ValueError):
            pairs = ((-1, -1),)
        if any(a < 0 or b < 0 for a, b in pairs) or len({v for pair in pairs for v in pair}) != 2 * len(pairs):
            raise UsageError("pairs of places in Keypoints", got=repr(self.pairs), fix="pairs=((1, 2), (3, 4))")
        object.__setattr__(self, "pairs", pairs)

    @property
    def inside(self) -> str:
        """The column that says which points are inside, where points have no visibility of their own."""
        return f"{self.column}_inside"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that change."""
        return (self.column, self.inside)

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON."""
        return {"column": self.column, "normalised": self.normalised, "pairs": [list(pair) for pair in self.pairs]}


def declared(value: Any, kind: type[T], where: str) -> tuple[T, ...]:
    """Columns by name or by definition, one or several."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    made = tuple(kind(one) if isinstance(one, str) else one for one in values)
    for one in made:
        if not isinstance(one, kind):
            name = kind.__name__
            fix = f"{name.lower()}=ps.{name}('column')"
            raise UsageError(f"a column name or ps.{name}", got=repr(one)[:80], where=where, fix=fix)
    return made


def moved_boxes(
    xp: Arrays, boxes: Boxes, ops: tuple[Op, ...], boxes_in: Any, count: Any, start: Any, drawn: Sequence[Drawn]
) -> tuple[Any, Any, Any]:
    """Boxes (rows, places, 4) after the operations, how many stay in each row, and the old place of each new one.

    `start` is (rows, 2), height and width of each image. Places behind the last box are 0.
    """
    height, width = start[:, :1], start[:, 1:]
    at = corners(xp, boxes.format, xp.astype(boxes_in, xp.float32))
    if boxes.normalised:
        at = scaled(xp, at, width, height)
    at = _clipped(xp, at, width, height)
    share = at[..., 0] * 0 + 1
    for op, p in zip(ops, drawn, strict=True):
        moved = _moved_corners(xp, op, at, p, (height, width))
        height, width = op.sides(height, width, p)
        at = _clipped(xp, moved, width, height)
        full = area(moved)
        share = share * xp.where(full > 0, area(at) / xp.where(full > 0, full, 1.0), 0.0)
    places = at.shape[1]
    place = xp.indices(places, at)[None, :]
    sides = at[..., 2:] - at[..., :2]
    keep = (place < count[:, None]) & (xp.amin(sides, -1) > 0) & (xp.amin(sides, -1) >= boxes.min_size)
    keep = keep & (share >= boxes.min_visible - 1e-6)
    order = xp.argsort(xp.where(keep, place, place + places))
    left = keep.sum(axis=1)
    if boxes.normalised:
        at = scaled(xp, at, 1 / width, 1 / height)
    at = xp.gather(from_corners(xp, boxes.format, at), 1, order)
    return xp.where((place < left[:, None])[..., None], at, 0.0), left, order


def moved_keypoints(
    xp: Arrays, keypoints: Keypoints, ops: tuple[Op, ...], points: Any, start: Any, drawn: Sequence[Drawn]
) -> tuple[Any, Any]:
    """Points (rows, ..., 2 or 3) after the operations, and which are inside."""
    height, width = start[:, :1], start[:, 1:]
    shape, rows = points.shape, points.shape[0]
    values = xp.astype(points, xp.float32).reshape(rows, -1, shape[-1])
    at = values[..., :2]
    if keypoints.normalised:
        at = scaled(xp, at, width, height)
    mirrored = xp.full((rows,), 0, start) > 0
    inside = _inside(at, width, height)
    for op, p in zip(ops, drawn, strict=True):
        at = xp.where(p["on"][:, None, None], op.points(xp, at, p, (height, width)), at)
        height, width = op.sides(height, width, p)
        inside = inside & _inside(at, width, height)
        if op.mirrors:
            mirrored = mirrored ^ p["on"]
    if keypoints.normalised:
        at = scaled(xp, at, 1 / width, 1 / height)
    if shape[-1] == 3:
        visible = inside & (values[..., 2] != 0)
        at = xp.where(visible[..., None], xp.concatenate([at, values[..., 2:]], -1), 0.0)
    at, inside = at.reshape(shape), inside.reshape(shape[:-1])
    if keypoints.pairs:
        swap = np.arange(shape[-2])
        for a, b in keypoints.pairs:
            swap[a], swap[b] = b, a
        over = mirrored.reshape(-1, *[1] * (len(shape) - 2))
        at = xp.where(over[..., None], at[..., swap, :], at)
        inside = xp.where(over, inside[..., swap], inside)
    return at, inside


def corners(xp: Arrays, form: BoxFormat, boxes: Any) -> Any:
    """Boxes as x1, y1, x2, y2."""
    if form == "xyxy":
        return boxes
    first, size = boxes[..., :2], boxes[..., 2:]
    if form == "cxcywh":
        first = first - size * 0.5
    return xp.concatenate([first, first + size], -1)


def from_corners(xp: Arrays, form: BoxFormat, at: Any) -> Any:
    """The inverse of `corners`."""
    if form == "xyxy":
        return at
    first, size = at[..., :2], at[..., 2:] - at[..., :2]
    return xp.concatenate([first if form == "xywh" else first + size * 0.5, size], -1)


def scaled(xp: Arrays, at: Any, width: Any, height: Any) -> Any:
    """Coordinates x, y, x, y... times width and height, (rows, 1) each."""
    pairs = [at[..., i] * (height if i % 2 else width) for i in range(at.shape[-1])]
    return xp.stack(pairs, -1)


def area(at: Any) -> Any:
    return (at[..., 2] - at[..., 0]) * (at[..., 3] - at[..., 1])


def _clipped(xp: Arrays, at: Any, width: Any, height: Any) -> Any:
    cut = [xp.minimum(xp.maximum(at[..., i], 0.0), height if i % 2 else width) for i in range(4)]
    return xp.stack(cut, -1)


def _inside(at: Any, width: Any, height: Any) -> Any:
    x, y = at[..., 0], at[..., 1]
    return (x >= 0) & (x <= width) & (y >= 0) & (y <= height)


def _moved_corners(xp: Arrays, op: Op, at: Any, p: Drawn, size: tuple[Any, Any]) -> Any:
    """The upright rectangle about the moved corners of each box."""
    rows, places = at.shape[:2]
    x1, y1, x2, y2 = (at[..., i] for i in range(4))
    four = xp.stack([xp.stack([x, y], -1) for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))], 2)
    moved = op.points(xp, four.reshape(rows, places * 4, 2), p, size).reshape(rows, places, 4, 2)
    made = xp.concatenate([xp.amin(moved, 2), xp.amax(moved, 2)], -1)
    return xp.where(p["on"][:, None, None], made, at)


def box_rows(boxes: Boxes, value: Any) -> NDArray[np.float32]:
    """The boxes of one record as (n, 4); raises `RecordError` for what is not a list of boxes.

    >>> box_rows(Boxes(), [[1, 2, 3, 4]]).shape, box_rows(Boxes(), []).shape
    ((1, 4), (0, 4))
    """
    try:
        made = np.asarray(value if isinstance(value, np.ndarray) else list(value), np.float32)
    except (TypeError, ValueError):
        raise _not_boxes(boxes, repr(value)[:80]) from None
    made = made.reshape(0, 4) if made.size == 0 else made
    if made.ndim == 1 and made.size % 4 == 0:
        made = made.reshape(-1, 4)  # flat rows, as ragged columns hold them
    if made.ndim != 2 or made.shape[1] != 4:
        raise _not_boxes(boxes, f"an array of shape {made.shape}")
    sides = made[:, 2:] - made[:, :2] if boxes.format == "xyxy" else made[:, 2:]
    wrong = ~(np.isfinite(made).all(axis=1) & (sides >= 0).all(axis=1))
    if wrong.any():
        raise _not_boxes(boxes, f"{made[wrong][0].tolist()}")
    return made


def _not_boxes(boxes: Boxes, got: str) -> RecordError:
    sides = " with x1 <= x2 and y1 <= y2" if boxes.format == "xyxy" else " with sides of 0 or more"
    return RecordError(
        f"boxes of 4 finite numbers, {boxes.format}{sides}, in column {boxes.column!r}", got=got,
        fix="name the format: Boxes(format='xywh'), or repair or leave out the record",
    )  # fmt: skip
