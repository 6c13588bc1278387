"""Decodes, crops, resizes, flips and normalises an image directly into its row of a batch.

Peak memory is the batch and one scratch image per thread. Rows are independent, so threads can fill one batch
together; the result does not depend on their number.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.decode import ImageOptions, Picture, decode_onto
from penstock.codecs.image.geometry import Box, opencv
from penstock.codecs.image.info import ImageInfo
from penstock.codecs.image.normalise import Stat, normalise

_local = threading.local()


def fill_row(
    row: NDArray[Any],
    data: Picture,
    how: ImageOptions,
    crop: Box | None,
    flip: bool,
    mean: Stat,
    std: Stat,
    info: ImageInfo | None = None,
    inside: Box | None = None,
    fill: int = 0,
) -> None:
    """Decodes one image into `row` (H, W, C), a contiguous uint8 or float32 array with the channels of `how.mode`.

    `inside` is the (y, x, height, width) of `row` that the image takes; the rest is `fill`.

    A uint8 row gets pixels and ignores `mean` and `std`; a float32 row gets `(pixels / 255 - mean) / std`.

    >>> import io, PIL.Image
    >>> file = io.BytesIO(); PIL.Image.new("L", (40, 30), 255).save(file, "PNG")
    >>> row = np.empty((8, 8, 3), np.float32)
    >>> fill_row(row, file.getvalue(), ImageOptions(), None, True, 0.0, 1.0); float(row.min())
    1.0
    """
    if row.dtype == np.uint8:
        _decode_inside(row, data, how, crop, info, inside, fill)
        if flip:
            mirror(row)
        return
    pixels = _small(row.shape)
    _decode_inside(pixels, data, how, crop, info, inside, fill)
    if flip:
        mirror(pixels)
    normalise(pixels, mean, std, out=row)


def _decode_inside(
    out: NDArray[np.uint8], data: Picture, how: ImageOptions, crop: Box | None, info: ImageInfo | None,
    inside: Box | None, fill: int,
) -> None:  # fmt: skip
    if inside is None:
        decode_onto(out, data, how, crop, "", info)
        return
    y, x, height, width = inside
    image = np.empty((height, width, out.shape[2]), np.uint8)
    decode_onto(image, data, how, crop, "", info)
    out[...] = fill
    out[y : y + height, x : x + width] = image


def mirror(pixels: NDArray[np.uint8]) -> None:
    """Flips an image horizontally, in place."""
    opencv().flip(pixels, 1, dst=pixels)


def _small(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns this thread's uint8 buffer of the target size, reused between calls."""
    held: NDArray[np.uint8] | None = getattr(_local, "small", None)
    if held is None or held.shape != shape:
        held = _local.small = np.empty(shape, np.uint8)
    return held
