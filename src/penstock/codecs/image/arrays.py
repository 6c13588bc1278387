"""Images that arrive decoded, as uint8 arrays (H, W, C) or (H, W): checked, cropped and converted like files.

Datasets of TensorFlow and `datasets` hand out pixels instead of files. Only uint8 says by itself what black and white
are, so floats and wider integers are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.info import ImageInfo, too_large
from penstock.core.errors import RecordError
from penstock.core.limits import Limits
from penstock.core.optional import need

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}


def probe_array(pixels: NDArray[Any], where: str, limits: Limits) -> ImageInfo:
    """Size and channels of decoded pixels; raises if they are not uint8 (H, W), or (H, W, C) of 1, 3 or 4 channels.

    >>> probe_array(np.zeros((20, 30, 3), np.uint8), "", Limits()).width
    30
    """
    shape = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    if pixels.dtype != np.uint8:
        raise RecordError(
            "decoded images of dtype uint8", got=f"{pixels.dtype} of shape {pixels.shape}", where=where,
            fix="convert them before, e.g. in .map(): (pixels * 255).round().astype(np.uint8) for floats in [0, 1]",
        )  # fmt: skip
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or 0 in shape:
        raise RecordError(
            "decoded images of shape (H, W) or (H, W, C) with 1, 3 or 4 channels", got=f"{pixels.shape}", where=where,
            fix="move the channels last, e.g. in .map(): pixels.transpose(1, 2, 0)",
        )  # fmt: skip
    if shape[0] * shape[1] > limits.pixels:
        raise too_large(f"an array of {shape[0]} x {shape[1]}", where, limits)
    return ImageInfo("array", shape[0], shape[1], shape[2])


def convert(pixels: NDArray[np.uint8], mode: str) -> NDArray[np.uint8]:
    """Pixels (H, W) or (H, W, C) as (H, W, channels of `mode`), by Pillow's formulas.

    >>> convert(np.full((1, 1), 7, np.uint8), "RGB").tolist()
    [[[7, 7, 7]]]
    """
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] == CHANNELS[mode]:
        return pixels
    image = need("PIL.Image", extra="image").fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    made: NDArray[np.uint8] = np.asarray(image.convert(mode))
    return made if made.ndim == 3 else made[..., None]
