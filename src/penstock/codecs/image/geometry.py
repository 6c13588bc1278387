"""Crop boxes (fixed, and random ones drawn from keys) and EXIF orientation.

Boxes are (y, x, height, width) in pixels of the image as displayed (orientation applied). The random boxes of a batch
are drawn in a few NumPy calls from record keys, before anything is decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.core.randomness import U64, integers, uniform

Box = tuple[int, int, int, int]

TRIES = 10
"""Draws of area and ratio before a random resized crop falls back to a centre crop."""

_ATTEMPTS = np.arange(TRIES)


def crop_params(
    keys: U64,
    heights: Any,
    widths: Any,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> NDArray[np.int64]:
    """Draws boxes (n, 4) of random resized crops: uniform share of the area, log-uniform width/height ratio.

    Up to ten draws until the box fits, else the largest centred box within `ratio`: the usual "random resized crop".

    >>> from penstock.core import randomness
    >>> boxes = crop_params(randomness.keys(randomness.key(7, "crop"), np.arange(3)), [100, 200, 50], [100, 300, 60])
    >>> boxes.shape, bool((boxes[:, 0] + boxes[:, 2] <= [100, 200, 50]).all())
    ((3, 4), True)
    """
    _check_range("scale", scale)
    _check_range("ratio", ratio)
    tall, wide = (np.broadcast_to(np.asarray(side, np.int64), keys.shape) for side in (heights, widths))
    area = (tall * wide).astype(np.float64)
    each = keys[:, None]
    target = area[:, None] * uniform(each, 3 * _ATTEMPTS, *scale)
    aspect = np.exp(uniform(each, 3 * _ATTEMPTS + 1, float(np.log(ratio[0])), float(np.log(ratio[1]))))
    w = np.rint(np.sqrt(target * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(target / aspect)).astype(np.int64)
    good = (w > 0) & (w <= wide[:, None]) & (h > 0) & (h <= tall[:, None])
    row, attempt = np.arange(len(keys)), good.argmax(axis=1)
    h, w = h[row, attempt], w[row, attempt]
    found = good[row, attempt]
    y = integers(keys, 3 * attempt + 2, np.where(found, tall - h, 0) + 1)
    x = integers(keys, 3 * TRIES + attempt, np.where(found, wide - w, 0) + 1)
    drawn = np.stack([y, x, h, w], axis=1)
    return drawn if found.all() else np.where(found[:, None], drawn, _fallback(tall, wide, ratio))


def flip_params(keys: U64, p: float = 0.5) -> NDArray[np.bool_]:
    """Draws whether each record is flipped horizontally, independent of the draws of `crop_params`.

    >>> from penstock.core import randomness
    >>> flip_params(randomness.keys(1, np.arange(4)), p=1.0).tolist()
    [True, True, True, True]
    """
    return uniform(keys, 4 * TRIES) < p


def center_crop_params(heights: Any, widths: Any, ratio: float = 1.0, share: float = 1.0) -> NDArray[np.int64]:
    """Returns the largest centred box of width/height `ratio`, its sides scaled by `share` (usually 0.875).

    >>> center_crop_params([100], [200]).tolist(), center_crop_params([100], [200], share=0.5).tolist()
    ([[0, 50, 100, 100]], [[25, 75, 50, 50]])
    """
    tall, wide = np.atleast_1d(np.asarray(heights, np.int64)), np.atleast_1d(np.asarray(widths, np.int64))
    h = np.minimum(tall.astype(np.float64), wide / ratio) * share
    size_h = np.clip(np.rint(h).astype(np.int64), 1, tall)
    size_w = np.clip(np.rint(h * ratio).astype(np.int64), 1, wide)
    return np.stack([(tall - size_h) // 2, (wide - size_w) // 2, size_h, size_w], axis=1)


def _fallback(tall: NDArray[np.int64], wide: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    shape = wide / tall
    w = np.where(shape > ratio[1], np.rint(tall * ratio[1]).astype(np.int64), wide)
    h = np.where(shape < ratio[0], np.rint(wide / ratio[0]).astype(np.int64), tall)
    w, h = np.clip(w, 1, wide), np.clip(h, 1, tall)
    return np.stack([(tall - h) // 2, (wide - w) // 2, h, w], axis=1)


def _check_range(name: str, pair: tuple[float, float]) -> None:
    if not (len(pair) == 2 and 0 < pair[0] <= pair[1]) or (name == "scale" and pair[1] > 1):
        raise UsageError(f"{name} as (low, high) with 0 < low <= high" + " <= 1" * (name == "scale"), got=f"{pair}")


def stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Converts a box of the image as displayed to pixels as stored (`height` x `width`).

    >>> stored_box((0, 0, 2, 3), 6, height=10, width=20)
    (7, 0, 3, 2)
    """
    y, x, h, w = box
    if orientation >= 5:
        y, x, h, w = x, y, w, h
    if orientation in (3, 4, 6, 7):
        y = height - y - h
    if orientation in (2, 3, 7, 8):
        x = width - x - w
    return y, x, h, w


def orient(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Rotates and flips stored pixels (H, W, C) as EXIF `orientation` requires.

    >>> orient(np.arange(6, dtype=np.uint8).reshape(2, 3, 1), 6)[..., 0].tolist()
    [[3, 0], [4, 1], [5, 2]]
    """
    if orientation == 1:
        return image
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    rows, columns = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(image[:: -1 if rows else 1, :: -1 if columns else 1])


def opencv() -> Any:
    """Imports OpenCV with its own thread pool off: Penstock's threads already use the cores, one image each."""
    cv2 = need("cv2", extra="image", purpose="to resize images")
    if cv2.getNumThreads() > 1:
        cv2.setNumThreads(0)
    return cv2
