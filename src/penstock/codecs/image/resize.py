"""Antialiased resizing with OpenCV, close to Pillow's bilinear filter in a third of the time.

Pillow widens its triangle filter with the shrink factor s. A short separable blur with the extra variance of the wide
triangle, (s*s - 1) / 6, followed by plain bilinear sampling, is almost the same filter. At integer factors the two
agree except for rounding; between them they differ by about one grey level on average
(`tests/codecs/image/test_resize.py` states the bounds). Enlarging is plain bilinear, within 1 of Pillow.
`method="pillow"` calls Pillow itself where equality matters more than time; `decode` then also decodes JPEG at its full
scale, so that the result is exactly Pillow's.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import opencv
from penstock.core.errors import UsageError
from penstock.core.optional import need

METHODS = ("antialias", "pillow", "linear", "nearest")
BLUR_FROM = 1.125
"""Below this shrink factor aliasing is too weak to be worth the cost of a blur."""

SCRATCH_BYTES = 32 << 20

_local = threading.local()


def resize(
    image: NDArray[np.uint8],
    size: tuple[int, ...],
    *,
    method: str = "antialias",
    out: NDArray[np.uint8] | None = None,
    box: tuple[float, float, float, float] | None = None,
) -> NDArray[np.uint8]:
    """Resizes uint8 (H, W, C) to `size` (height, width), into `out` if given (C-contiguous).

    `box` is a (y, x, height, width) of fractional pixels to resize instead of the full image; the rest is not read.

    >>> resize(np.full((4, 6, 3), 9, np.uint8), (2, 3)).tolist() == np.full((2, 3, 3), 9).tolist()
    True
    """
    if method not in METHODS:
        raise UsageError(f"method one of {', '.join(METHODS)}", got=repr(method))
    height, width = size
    if height < 1 or width < 1:
        raise UsageError("a size of at least 1 x 1", got=f"{height} x {width}")
    if out is None:
        out = np.empty((height, width, image.shape[2]), np.uint8)
    if method == "pillow":
        y, x, h, w = box or (0, 0, *image.shape[:2])
        _pillow(image, out, (x, y, x + w, y + h))
        return out
    cv2 = opencv()
    y = x = 0.0
    h, w = image.shape[:2]
    full = box is None
    if box is not None:
        _, _, h, w = box
        image, y, x = _trim(image, *box)
        full = (y, x, h, w) == (0, 0, *image.shape[:2])
    if full and h == height and w == width:
        out[:] = image
        return out
    if method == "antialias":
        image = _soften(cv2, image, h / height, w / width, (height, width) if full else None)
    how = cv2.INTER_NEAREST if method == "nearest" else cv2.INTER_LINEAR
    if image.shape[2] == 1:  # OpenCV drops a channel axis of 1, so it is removed on both sides
        image, target = image[..., 0], out[..., 0]
    else:
        target = out
    if full:
        made = cv2.resize(image, (width, height), dst=target, interpolation=how)
    else:
        sy, sx = h / height, w / width
        affine = np.array([[sx, 0, x + 0.5 * sx - 0.5], [0, sy, y + 0.5 * sy - 0.5]])
        flags = how | cv2.WARP_INVERSE_MAP
        made = cv2.warpAffine(image, affine, (width, height), dst=target, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    if made is not target and not np.shares_memory(made, target):
        target[...] = made
    return out


def _trim(image: NDArray[np.uint8], y: float, x: float, h: float, w: float) -> tuple[NDArray[np.uint8], float, float]:
    """Returns the pixels that a fractional box covers at least partly, and the box's corner in them."""
    top, left = int(y), int(x)
    bottom, right = min(image.shape[0], int(np.ceil(y + h))), min(image.shape[1], int(np.ceil(x + w)))
    return image[top:bottom, left:right], y - top, x - left


def _soften(
    cv2: Any, image: NDArray[np.uint8], down: float, across: float, size: tuple[int, int] | None
) -> NDArray[np.uint8]:
    """Blurs before bilinear sampling by the shrink factors `down` and `across`.

    A full image, whose target `size` is passed, is first shrunk by an integer factor if the shrink is 4 or more.
    """
    if size is not None and (down >= 4 or across >= 4):
        steps = [max(1, int(shrink / 2)) for shrink in (down, across)]
        shape = [max(1, side // step) for side, step in zip(image.shape[:2], steps, strict=True)]
        small = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_AREA)
        image = small if small.ndim == 3 else small[..., None]
        down, across = shape[0] / size[0], shape[1] / size[1]
    if down < BLUR_FROM and across < BLUR_FROM:
        return image
    plane = image[..., 0] if image.shape[2] == 1 else image
    soft = _scratch(plane.shape)
    cv2.sepFilter2D(plane, -1, kernel(across), kernel(down), dst=soft, borderType=cv2.BORDER_REPLICATE)
    return soft if soft.ndim == 3 else soft[..., None]


def _scratch(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns this thread's buffer for a blurred image: allocating one per image costs more than the blur."""
    needed = math.prod(shape)
    if needed > SCRATCH_BYTES:
        return np.empty(shape, np.uint8)
    held: NDArray[np.uint8] | None = getattr(_local, "soft", None)
    if held is None or len(held) < needed:
        held = _local.soft = np.empty(min(SCRATCH_BYTES, max(2 * needed, 1 << 20)), np.uint8)
    return held[:needed].reshape(shape)


def kernel(shrink: float) -> NDArray[np.float32]:
    """Returns blur taps of variance (shrink**2 - 1) / 6: a mix of sampled triangles of the two nearest integer widths.

    >>> kernel(2.0).tolist(), kernel(0.5).tolist()
    ([0.25, 0.5, 0.25], [1.0])
    """
    return _kernel(round(shrink * 256) / 256 if shrink >= BLUR_FROM else 1.0)


@lru_cache(maxsize=1024)
def _kernel(shrink: float) -> NDArray[np.float32]:
    if shrink <= 1.0:
        return np.ones(1, np.float32)
    low = int(shrink)
    share = (shrink**2 - low**2) / ((low + 1) ** 2 - low**2)
    wide = _triangle(low + 1) * share
    wide[1:-1] += _triangle(low) * (1 - share)
    return (wide if share else wide[1:-1]).astype(np.float32)


def _triangle(half: int) -> NDArray[np.float64]:
    taps = half - np.abs(np.arange(-(half - 1), half, dtype=np.float64))
    return np.asarray(taps / taps.sum())


def _pillow(image: NDArray[np.uint8], out: NDArray[np.uint8], box: tuple[float, float, float, float]) -> None:
    images = need("PIL.Image", extra="image", purpose="to resize images exactly as Pillow does")
    picture = images.fromarray(image if image.shape[2] > 1 else image[..., 0])
    small = picture.resize((out.shape[1], out.shape[0]), images.Resampling.BILINEAR, box=box)
    out[...] = np.asarray(small).reshape(out.shape)
