"""What moves with the images of an `Augment`: masks, boxes with their labels, keypoints.

The geometric operations act on each with the parameters that were drawn for the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays
from penstock.augment.kinds import Kind
from penstock.augment.masks import as_images, back, geometric
from penstock.augment.operations.base import Op, Shape
from penstock.augment.params import Drawn
from penstock.augment.points import Boxes, Keypoints, box_rows, moved_boxes, moved_keypoints
from penstock.core.columns import Ragged, strings
from penstock.core.errors import RecordError, UsageError

PLAIN = Kind()
"""Of masks: operations get and return them as they are."""


@dataclass(frozen=True)
class Followers:
    """The columns beside an image that move with it."""

    masks: tuple[str, ...] = ()
    mask_fill: int = 0
    boxes: tuple[Boxes, ...] = ()
    keypoints: tuple[Keypoints, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.masks or self.boxes or self.keypoints)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are moved, dropped or made."""
        boxes = [name for one in self.boxes for name in one.columns]
        return (*self.masks, *boxes, *[name for one in self.keypoints for name in one.columns])

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON, without what is not there."""
        plain: dict[str, Any] = {"masks": list(self.masks), "fill": self.mask_fill} if self.masks else {}
        if self.boxes:
            plain["boxes"] = [one.spec() for one in self.boxes]
        if self.keypoints:
            plain["keypoints"] = [one.spec() for one in self.keypoints]
        return plain

    def moved(
        self, xp: Arrays, ops: Sequence[Op], drawn: Sequence[Drawn], batch: dict[str, Any], shape: Shape
    ) -> dict[str, Any]:
        """The columns after the geometric operations of images of `shape`."""
        out: dict[str, Any] = {}
        moving = tuple(op for op in ops if op.geometric)
        parameters = tuple(p for op, p in zip(ops, drawn, strict=True) if op.geometric)
        for name in self.masks:
            out[name] = self._mask(xp, ops, drawn, batch, name, shape)
        for boxes in self.boxes:
            out.update(_boxes(xp, boxes, moving, parameters, batch, shape))
        for keypoints in self.keypoints:
            out.update(_keypoints(xp, keypoints, moving, parameters, batch, shape))
        return out

    def _mask(
        self, xp: Arrays, ops: Sequence[Op], drawn: Sequence[Drawn], batch: dict[str, Any], name: str, shape: Shape
    ) -> Any:
        moving, parameters = geometric(ops, drawn, self.mask_fill)
        column, channel = as_images(xp.asarray(_column(batch, name, "masks")), name, *shape[:2])
        return xp.contiguous(back(xp.run(PLAIN, moving, column, parameters), channel))


def _column(batch: dict[str, Any], name: str, argument: str) -> Any:
    if name not in batch:
        fix = f"name the column: {argument}='...'"
        raise UsageError(f"a column {name!r}", got=f"columns {sorted(batch)}", where=f"Augment, {argument}=", fix=fix)
    return batch[name]


def _sizes(xp: Arrays, rows: int, shape: Shape, like: Any) -> Any:
    return xp.constant(np.tile(np.array(shape[:2], np.float32), (rows, 1)), like, xp.float32)


def _boxes(
    xp: Arrays, boxes: Boxes, ops: tuple[Op, ...], drawn: tuple[Drawn, ...], batch: dict[str, Any], shape: Shape
) -> dict[str, Any]:
    column = _column(batch, boxes.column, "boxes")
    labels = {name: _column(batch, name, "boxes") for name in boxes.labels}
    if _is_uneven(column) or (xp.host and boxes.count not in batch):  # not by shape: rows may be equal by chance
        if not xp.host:
            fix = "Boxes(max=100): padded rows, from decode_images or from an Augment on the host before"
            raise UsageError("padded boxes on a device", got=repr(column)[:60], where="Augment, boxes=", fix=fix)
        return _uneven_boxes(xp, boxes, ops, drawn, column, labels, shape)
    column = xp.asarray(column)
    if column.ndim != 3 or int(column.shape[2]) != 4:
        got = f"rows of shape {tuple(int(n) for n in column.shape[1:])}"
        raise UsageError(f"boxes (rows, places, 4) in column {boxes.column!r}", got=got, where="Augment, boxes=")
    rows, places = int(column.shape[0]), int(column.shape[1])
    count = batch.get(boxes.count)
    count = xp.full((rows,), places, xp.indices(1, column)) if count is None else xp.asarray(count)
    parameters = tuple(xp.parameters(p, column) for p in drawn)
    at, left, order = xp.call(moved_boxes, (boxes, ops), column, count, _sizes(xp, rows, shape, column), parameters)
    out = {boxes.column: xp.astype(at, xp.float32), boxes.count: xp.astype(left, xp.int32)}
    for name, label in labels.items():
        values = xp.asarray(label)
        if tuple(int(n) for n in values.shape[:2]) != (rows, places):
            raise _not_one_each(boxes, name, f"shape {tuple(values.shape)} beside boxes of {tuple(column.shape)}")
        there = xp.indices(places, column)[None, :] < left[:, None]
        there = there.reshape(rows, places, *[1] * (values.ndim - 2))
        out[name] = xp.where(there, xp.gather(values, 1, order), xp.constant(boxes.label_fill, values))
    return out


def _uneven_boxes(
    xp: Arrays, boxes: Boxes, ops: tuple[Op, ...], drawn: tuple[Drawn, ...], column: Any, labels: dict[str, Any],
    shape: Shape,
) -> dict[str, Any]:  # fmt: skip
    rows = [box_rows(boxes, column[i]) for i in range(len(column))]
    size = np.tile(np.array(shape[:2], np.float32), (len(rows), 1))
    return follow_boxes(xp, boxes, ops, drawn, rows, labels, size)


def follow_boxes(
    xp: Arrays, boxes: Boxes, ops: tuple[Op, ...], drawn: Sequence[Drawn], rows: list[NDArray[np.float32]],
    labels: dict[str, Any], size: NDArray[np.float32],
) -> dict[str, Any]:  # fmt: skip
    """Columns of boxes and labels on the host, of rows of different numbers; `size` is (rows, 2), of each image.

    Padded to `boxes.max`, or an object column with an array per row.
    """
    counts = np.array([len(one) for one in rows], np.int32)
    padded = np.zeros((len(rows), int(counts.max(initial=0)), 4), np.float32)
    for place, one in zip(padded, rows, strict=True):
        place[: len(one)] = one
    at, left, order = moved_boxes(xp, boxes, ops, padded, counts, size, drawn)
    stay = [order[i, :n] for i, n in enumerate(left.tolist())]
    out: dict[str, Any] = {boxes.column: _laid_out([at[i, : len(s)] for i, s in enumerate(stay)], boxes, 0, (4,))}
    for name, column in labels.items():
        kept: list[NDArray[Any]] = []
        for i, places in enumerate(stay):
            values = np.asarray(column[i])
            if len(values) != len(rows[i]):
                raise RecordError(
                    f"one entry of column {name!r} for each box in {boxes.column!r}",
                    got=f"{len(values)} beside {len(rows[i])} boxes",
                    fix="leave the column out of Boxes(labels=), or repair the record",
                    row=i,
                )
            kept.append(values[places])
        out[name] = _laid_out(kept, boxes, boxes.label_fill, ())
    return out | ({boxes.count: left.astype(np.int32)} if boxes.max is not None else {})


def _laid_out(rows: list[NDArray[Any]], boxes: Boxes, fill: int, shape: tuple[int, ...]) -> NDArray[Any]:
    if boxes.max is None:
        return strings(rows)
    longest = max((len(row) for row in rows), default=0)
    if longest > boxes.max:
        at = next(i for i, row in enumerate(rows) if len(row) > boxes.max)
        raise RecordError(
            f"at most {boxes.max} boxes of a record in column {boxes.column!r}, as Boxes(max=) says",
            got=f"{len(rows[at])}",
            fix=f"max={longest}, or leave such records out before",
            row=at,
        )
    kinds = [row.dtype for row in rows if row.size] or [np.dtype(np.float32 if shape else np.int64)]
    shape = next((row.shape[1:] for row in rows if row.size), shape)
    if np.result_type(*kinds).kind not in "biuf":
        raise UsageError("numbers as labels with Boxes(max=)", got=f"{kinds[0]}", fix="class numbers, or max=None")
    made = np.full((len(rows), boxes.max, *shape), fill, np.result_type(*kinds))
    for place, row in zip(made, rows, strict=True):
        if row.size:
            place[: len(row)] = row
    return made


def _keypoints(
    xp: Arrays, keypoints: Keypoints, ops: tuple[Op, ...], drawn: tuple[Drawn, ...], batch: dict[str, Any], shape: Shape
) -> dict[str, Any]:
    column = _column(batch, keypoints.column, "keypoints")
    if _is_uneven(column):
        if not xp.host:
            fix = "keypoints of one shape, (rows, places, 2 or 3)"
            raise UsageError(
                "padded keypoints on a device", got=repr(column)[:60], where="Augment, keypoints=", fix=fix
            )
        made = [
            _keypoints(
                xp, keypoints, ops, tuple({k: v[i : i + 1] for k, v in p.items()} for p in drawn),
                {keypoints.column: np.asarray(column[i], np.float32)[None]}, shape,
            )
            for i in range(len(column))
        ]  # fmt: skip
        return {name: strings([one[name][0] for one in made]) for name in (made[0] if made else ())}
    column = xp.asarray(column)
    if column.ndim < 3 or int(column.shape[-1]) not in (2, 3):
        raise UsageError(
            f"points (rows, ..., 2) or (rows, ..., 3) in column {keypoints.column!r}",
            got=f"rows of shape {tuple(int(n) for n in column.shape[1:])}", where="Augment, keypoints=",
        )  # fmt: skip
    most = max((v for pair in keypoints.pairs for v in pair), default=-1)
    if most >= int(column.shape[-2]):
        got = f"{int(column.shape[-2])} places"
        raise UsageError(f"a place {most} as pairs= says", got=got, where="Augment, keypoints=")
    parameters = tuple(xp.parameters(p, column) for p in drawn)
    sizes = _sizes(xp, int(column.shape[0]), shape, column)
    at, inside = xp.call(moved_keypoints, (keypoints, ops), column, sizes, parameters)
    return {keypoints.column: at} | ({} if int(column.shape[-1]) == 3 else {keypoints.inside: inside})


def _not_one_each(boxes: Boxes, name: str, got: str) -> UsageError:
    return UsageError(
        f"one entry of column {name!r} for each box in {boxes.column!r}", got=got, where="Boxes(labels=)",
        fix="leave it out of labels=, or repair the record",
    )  # fmt: skip


def _is_uneven(column: Any) -> bool:
    return isinstance(column, Ragged | list) or (isinstance(column, np.ndarray) and column.dtype == object)
