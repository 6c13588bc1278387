"""Converts uint8 pixels to normalised float32 through a table of 256 values per channel.

A table costs one lookup per value and produces the same floats on every machine, which multiply-add instructions do
not guarantee.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import opencv
from penstock.core.errors import UsageError

Stat = float | tuple[float, ...]


def normalise(
    pixels: NDArray[np.uint8], mean: Stat = 0.0, std: Stat = 1.0, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """(pixels / 255 - mean) / std as float32, for (..., C) pixels; `mean` and `std` are one number or C of them.

    >>> normalise(np.array([[[0, 255, 51]]], np.uint8)).tolist()
    [[[0.0, 1.0, 0.20000000298023224]]]
    """
    if out is None:
        out = np.empty(pixels.shape, np.float32)
    channels = pixels.shape[-1]
    table = table_for(numbers(mean), numbers(std), channels)
    if table.shape[0] == 1:
        shape: tuple[int, ...] = (-1, 1)
        lut: NDArray[Any] = table[0]
    else:
        shape = (-1, 1, channels)
        lut = table.T.reshape(1, 256, channels)
    cv2 = opencv()
    flat, target = pixels.reshape(shape), out.reshape(shape)
    made = cv2.LUT(flat, np.ascontiguousarray(lut), dst=target)
    if not np.shares_memory(made, target):
        target[...] = made.reshape(target.shape)
    return out


def numbers(value: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in np.atleast_1d(np.asarray(value, np.float64)))


@lru_cache(maxsize=64)
def table_for(mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> NDArray[np.float32]:
    """Returns the table (1 or C, 256) of the normalised value of each pixel value."""
    if {len(mean), len(std)} - {1, channels} or min(std) <= 0:
        raise UsageError(
            f"mean and std of 1 or {channels} numbers, std above 0", got=f"mean={mean}, std={std}", where="normalise"
        )
    values = np.arange(256, dtype=np.float64) / 255.0
    table = (values[None] - np.array(mean)[:, None]) / np.array(std)[:, None]
    return np.ascontiguousarray(table.astype(np.float32))
