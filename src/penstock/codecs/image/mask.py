"""Decodes masks: the class number that is stored for each pixel, never averaged and never looked up in a palette.

Palette images give their indices, grey images their values (those of PNGs of 1, 2 or 4 bits as stored, not scaled to
255). A colour image is refused: which colour is which class is not known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image import png
from penstock.codecs.image.decode import Picture, probe_picture
from penstock.codecs.image.geometry import Box, orient, stored_box
from penstock.codecs.image.pillow import stored_values
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits


def decode_mask(
    data: Picture,
    image_size: tuple[int, int],
    crop: Box | None,
    size: tuple[int, int],
    *,
    exif: str = "apply",
    strict: bool = True,
    limits: Limits = LIMITS,
) -> NDArray[np.uint8]:
    """Returns (height, width) class numbers of the crop of a mask, by the nearest pixel.

    `image_size` is (height, width) of the image that the mask belongs to; a mask of another size is a bad record.

    >>> decode_mask(np.array([[1, 2], [3, 4]], np.uint8), (2, 2), None, (2, 4)).tolist()
    [[1, 1, 2, 2], [3, 3, 4, 4]]
    """
    info = probe_picture(data, limits=limits)
    turn = info.orientation if exif == "apply" else 1
    found = (info.width, info.height) if turn >= 5 else (info.height, info.width)
    if found != image_size:
        raise RecordError(
            f"a mask of {image_size[0]} x {image_size[1]}, the size of its image", got=f"{found[0]} x {found[1]}",
            fix="resize the masks to their images, or leave the record out",
        )  # fmt: skip
    box = stored_box(crop or (0, 0, *found), turn, info.height, info.width)
    if isinstance(data, np.ndarray):
        y, x, h, w = box
        values: NDArray[Any] = data[y : y + h, x : x + w]
    else:
        if info.format == "PNG" and strict:
            png.check(data, "")
        values = stored_values(data, box, info, "", limits)
    values = orient(_one_channel(values)[..., None], turn)[..., 0]
    rows, columns = (_nearest(before, after) for before, after in zip(values.shape, size, strict=True))
    return np.ascontiguousarray(values[rows[:, None], columns], np.uint8)


def _one_channel(values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2:
        raise RecordError(
            "a mask of one channel", got=f"{values.shape[-1]} channels",
            fix="write class numbers into a grey or palette PNG",
        )  # fmt: skip
    if values.size and int(values.max()) > 255:
        raise RecordError("class numbers from 0 to 255", got=f"{int(values.max())}")
    return values


def _nearest(before: int, after: int) -> NDArray[np.int64]:
    """Which of `before` pixels lies under the centre of each of `after`."""
    return ((2 * np.arange(after, dtype=np.int64) + 1) * before) // (2 * after)
