"""Boxes and keypoints of `decode_images`: they get the crop, the resize and the flip of their picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays_numpy import NUMPY
from penstock.augment.followers import follow_boxes
from penstock.augment.operations.base import Op
from penstock.augment.operations.crop import Resize
from penstock.augment.operations.fit import Letterbox
from penstock.augment.operations.flip import Flip
from penstock.augment.params import Drawn
from penstock.augment.points import Boxes, Keypoints, box_rows, moved_keypoints
from penstock.core.columns import Columns, stack
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.signals import surface


@dataclass(frozen=True)
class Placement:
    """How the pictures of a batch were cut: `sizes` (n, 2) before, `boxes` (n, 4) cut out of them as y, x, height and
    width, resized to `size`, and `flips`."""

    sizes: NDArray[np.int64]
    boxes: NDArray[np.int64]
    size: tuple[int, int]
    flips: Sequence[bool]
    inside: NDArray[np.int64] | None = None
    """(n, 4): where in `size` the pictures of a letterbox are."""

    def moves(self) -> tuple[tuple[Op, ...], tuple[Drawn, ...]]:
        """The same as operations of `Augment`, and their parameters."""
        every = np.ones(len(self.boxes), bool)
        cut: Drawn = {"on": every, **{name: self.boxes[:, i] for i, name in enumerate(("y", "x", "h", "w"))}}
        fit: Op = Resize(self.size)
        if self.inside is not None:
            fit = Letterbox(self.size)
            cut |= {name: self.inside[:, i] for i, name in enumerate(("top", "left", "high", "wide"))}
        return (fit, Flip(p=1.0)), (cut, {"on": np.array(self.flips, bool)})


def moved_columns(
    columns: Columns, boxes: tuple[Boxes, ...], keypoints: tuple[Keypoints, ...], placed: Placement
) -> dict[str, Any]:
    """The columns of boxes, labels and keypoints after the crop; `BadRecords` names rows that hold something else."""
    ops, drawn = placed.moves()
    size = placed.sizes.astype(np.float32)
    out: dict[str, Any] = {}
    for one in boxes:
        rows = _each(lambda value, one=one: box_rows(one, value), _column(columns, one.column))
        labels = {name: _column(columns, name) for name in one.labels}
        try:
            out.update(follow_boxes(NUMPY, one, ops, drawn, rows, labels, size))
        except RecordError as error:
            raise BadRecords([error]) from error
    for points in keypoints:
        column = _each(lambda value, points=points: _points(points, value), _column(columns, points.column))
        made = []
        for i, value in enumerate(column):
            alone = tuple({name: values[i : i + 1] for name, values in p.items()} for p in drawn)
            made.append([v[0] for v in moved_keypoints(NUMPY, points, ops, value[None], size[i : i + 1], alone)])
        out[points.column] = stack([at for at, _ in made])
        if column[0].shape[-1] == 2:
            out[points.inside] = stack([inside for _, inside in made])
    return out


def _column(columns: Columns, name: str) -> Any:
    if name not in columns:
        raise UsageError(f"a column {name!r} for .decode_images()", got=f"columns {', '.join(map(repr, columns))}")
    return columns[name]


def _each(function: Any, column: Any) -> list[NDArray[np.float32]]:
    made, errors = [], []
    for row, value in enumerate(column):
        try:
            made.append(function(value))
        except RecordError as error:
            error.row = row
            errors.append(error.with_traceback(None))
    if errors:
        raise BadRecords(errors)
    return made


def _points(keypoints: Keypoints, value: Any) -> NDArray[np.float32]:
    try:
        made = np.asarray(value if isinstance(value, np.ndarray) else list(value), np.float32)
    except (TypeError, ValueError) as error:
        surface(error)
        made = np.zeros(0, np.float32)
    places = made.shape[-2] if made.ndim >= 2 else 0
    if made.ndim < 2 or made.shape[-1] not in (2, 3) or any(max(pair) >= places for pair in keypoints.pairs):
        raise RecordError(
            f"points (..., 2) or (..., 3) in column {keypoints.column!r}, with the places that pairs= names",
            got=f"an array of shape {made.shape}" if made.ndim >= 2 else repr(value)[:80],
            fix="repair or leave out the record",
        )
    return made
