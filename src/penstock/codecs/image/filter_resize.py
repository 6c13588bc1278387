"""Antialiased resizing of float or integer arrays in plain NumPy: two small matrix products per image.

The filters are Pillow's: their support widens with the shrink factor, so that no pixel is skipped. Slower than the
OpenCV path in `resize`, but works for any dtype and number of channels, and needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError


def _triangle(xp: Any, x: Any) -> Any:
    return xp.maximum(1 - xp.abs(x), 0)


def _cubic(xp: Any, x: Any) -> Any:
    """Keys' cubic with a = -0.5."""
    x = xp.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return xp.where(x < 1, near, xp.where(x < 2, far, 0.0))


FILTERS: dict[str, Callable[[Any, Any], Any]] = {"bilinear": _triangle, "bicubic": _cubic}
METHODS = ("bilinear", "bicubic", "nearest")


def filter_weights(xp: Any, pixels: Any, outputs: Any, scale: Any, method: str = "bilinear", inside: Any = None) -> Any:
    """Returns the matrix (..., outputs, pixels) that resizes one axis; each row sums to 1.

    `pixels` and `outputs` are pixel numbers before and after as floats, `scale` is size before / size after; other
    axes broadcast. Computed in their dtype with `xp`: NumPy, or an object with its `abs`, `maximum` and `where`.
    Pixels for which `inside` is False get no weight.
    """
    centres = (outputs[:, None] + 0.5) * scale
    matrix = FILTERS[method](xp, (pixels + 0.5 - centres) / xp.maximum(scale, 1))
    if inside is not None:
        matrix = matrix * inside
    return matrix / matrix.sum(axis=-1, keepdims=True)


@lru_cache(maxsize=64)
def weights(before: int, after: int, method: str = "bilinear") -> NDArray[np.float32]:
    """Returns the matrix (after, before) that resizes one axis, computed in float64; each row sums to 1.

    >>> weights(4, 2).tolist()[0] == [np.float32(w / 7) for w in (3, 3, 1, 0)]
    True
    """
    scale = np.float64(before / after)
    if method == "nearest":
        matrix = np.zeros((after, before))
        centres = (np.arange(after) + 0.5) * scale
        matrix[np.arange(after), np.minimum(centres.astype(np.int64), before - 1)] = 1.0
    else:
        matrix = filter_weights(np, np.arange(before, dtype=float), np.arange(after, dtype=float), scale, method)
    out = matrix.astype(np.float32)
    out.setflags(write=False)  # cached: shared by every caller
    return out


def resize_images(images: NDArray[Any], height: int, width: int, method: str = "bilinear") -> NDArray[np.float32]:
    """Resizes (N, H, W, C) of any numeric dtype to float32 (N, height, width, C).

    >>> resize_images(np.full((1, 4, 6, 3), 9, np.uint8), 2, 3)[0, 0, 0].tolist()
    [9.0, 9.0, 9.0]
    """
    if method not in METHODS:
        raise UsageError(f"resize_method one of {', '.join(map(repr, METHODS))}", got=repr(method))
    n, before_h, before_w, channels = images.shape
    if (before_h, before_w) == (height, width):
        return images.astype(np.float32)
    down, across = weights(before_h, height, method), weights(before_w, width, method)
    out = np.empty((n, height, width, channels), np.float32)
    for i in range(n):
        tall = down @ images[i].reshape(before_h, -1).astype(np.float32)
        out[i] = np.matmul(across, tall.reshape(height, before_w, channels))
    return out
