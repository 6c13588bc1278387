"""Images resampled through an affine map or a homography, with the same pixels in NumPy, torch and JAX.

The map goes from numbers of pixels of the result to numbers of pixels of the input. Positions are fixed-point numbers,
sums of products that are rounded one by one, so every framework reads exactly the same pixels. A position outside of
the image (further than half a pixel from its outermost pixel centres) is `fill`; inside, pixels beyond the edge repeat
it, as in Pillow's `Image.transform`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays

BITS = 12
ONE = 1 << BITS
"""Unit of a position: 1/4096 of a pixel."""
FAR = float(1 << 17)
"""Positions beyond are cut: three of them still fit 32 bits."""
UNIT = 1 << 20
"""Unit of the denominator of a homography."""

F64 = NDArray[np.float64]


def warp(xp: Arrays, x: Any, m: Any, fill: Any, nearest: bool) -> Any:
    """(N, H, W, C) through the maps `m`: (N, 6) affine or (N, 8) homographies, rows of coefficients."""
    rows, height, width, channels = x.shape
    across, down = xp.floats(0, width, m), xp.floats(0, height, m)
    u, v = (_position(xp, m[:, i : i + 3], across, down) for i in (0, 3))
    if m.shape[1] == 8:
        below = _fixed(xp, m[:, 6:7] * across, UNIT)[:, None, :] + _fixed(xp, m[:, 7:8] * down, UNIT)[:, :, None] + UNIT
        front = below > 0
        divisor = xp.astype(xp.where(front, below, UNIT), xp.float32)
        u, v = (xp.astype(xp.round(_bounded(xp, xp.astype(w, xp.float32) / divisor)), u.dtype) for w in (u, v))
        v = xp.where(front, v, -ONE * 2)
    half = ONE // 2
    inside = (u >= -half) & (u < width * ONE - half) & (v >= -half) & (v < height * ONE - half)
    flat = x.reshape(rows, height * width, channels)

    def pixels(column: Any, row: Any) -> Any:
        index = xp.clip(row, 0, height - 1) * width + xp.clip(column, 0, width - 1)
        return xp.gather(flat, 1, index.reshape(rows, -1)).reshape(x.shape)

    if nearest:
        made = pixels((u + half) >> BITS, (v + half) >> BITS)
    else:
        column, row = u >> BITS, v >> BITS
        share_x = (xp.astype(u & (ONE - 1), xp.float32) * (1 / ONE))[..., None]
        share_y = (xp.astype(v & (ONE - 1), xp.float32) * (1 / ONE))[..., None]
        top, bottom = pixels(column, row), pixels(column, row + 1)
        top = top + (pixels(column + 1, row) - top) * share_x
        bottom = bottom + (pixels(column + 1, row + 1) - bottom) * share_x
        made = top + (bottom - top) * share_y
    return xp.where(inside[..., None], made, xp.constant(fill, x))


def _position(xp: Arrays, m: Any, across: Any, down: Any) -> Any:
    """(N, H, W) positions `m[0] * column + m[1] * row + m[2]`."""
    along, below, start = (_fixed(xp, part, ONE) for part in (m[:, :1] * across, m[:, 1:2] * down, m[:, 2:3]))
    return along[:, None, :] + below[:, :, None] + start[:, :, None]


def _fixed(xp: Arrays, values: Any, unit: int) -> Any:
    limit = FAR * ONE / unit
    return xp.astype(xp.round(xp.clip(values, -limit, limit) * float(unit)), xp.int32)


def _bounded(xp: Arrays, ratio: Any) -> Any:
    return xp.clip(ratio * float(UNIT), -FAR * ONE, FAR * ONE)


def move_points(xp: Arrays, at: Any, f: Any) -> Any:
    """Points (N, n, 2) through maps of coordinates: (N, 6) affine or (N, 8) homographies."""
    x, y = at[..., 0], at[..., 1]
    one = [f[:, i : i + 1] for i in range(f.shape[1])]
    made = xp.stack([one[0] * x + one[1] * y + one[2], one[3] * x + one[4] * y + one[5]], -1)
    if f.shape[1] == 6:
        return made
    below = one[6] * x + one[7] * y + 1
    return made / xp.where(below > 1e-6, below, 1e-6)[..., None]


def affine(
    height: int, width: int, clockwise: Any, shift_x: Any, shift_y: Any, scale: Any, shear_x: Any, shear_y: Any
) -> F64:
    """Maps of coordinates (n, 3, 3): scaled, sheared and turned about the centre, then shifted. Angles in degrees.

    The formula of torchvision: translation * centre * rotation * shear * scale * centre**-1, y downwards.

    >>> (affine(10, 20, 0.0, [3.0], 0.0, 1.0, 0.0, 0.0)[0] + 0.0).tolist()
    [[1.0, 0.0, 3.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    parts = [np.asarray(v, np.float64) for v in (clockwise, shift_x, shift_y, scale, shear_x, shear_y)]
    angle, dx, dy, size, sx, sy = np.broadcast_arrays(*parts)
    turn, sx, sy = np.radians(angle), np.radians(sx), np.radians(sy)
    out = np.zeros((len(angle), 3, 3))
    out[:, 2, 2] = 1
    out[:, 0, 0] = size * np.cos(turn - sy) / np.cos(sy)
    out[:, 0, 1] = size * (-np.cos(turn - sy) * np.tan(sx) / np.cos(sy) - np.sin(turn))
    out[:, 1, 0] = size * np.sin(turn - sy) / np.cos(sy)
    out[:, 1, 1] = size * (-np.sin(turn - sy) * np.tan(sx) / np.cos(sy) + np.cos(turn))
    centre = np.array([width / 2, height / 2])
    out[:, :2, 2] = np.stack([dx, dy], 1) + centre - out[:, :2, :2] @ centre
    return out


def homography(before: F64, after: F64) -> F64:
    """Maps of coordinates (n, 3, 3) that move four points (n, 4, 2) to four others."""
    x, y, u, v = before[..., 0], before[..., 1], after[..., 0], after[..., 1]
    zero, one = np.zeros_like(x), np.ones_like(x)
    system = np.concatenate(
        [
            np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], -1),
            np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], -1),
        ],
        1,
    )
    found = np.linalg.solve(system, np.concatenate([u, v], 1)[..., None])[..., 0]
    return np.concatenate([found, np.ones((len(found), 1))], 1).reshape(-1, 3, 3)


def coefficients(maps: F64) -> dict[str, NDArray[np.float32]]:
    """Maps of coordinates as parameters: `f` for points, and `m`, their inverse in numbers of pixels, for `warp`."""
    flat = bool((maps[:, 2, :2] == 0).all())
    move = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    back = np.linalg.inv(move) @ np.linalg.inv(maps) @ move
    count = 6 if flat else 8
    made = {"m": back / back[:, 2:, 2:], "f": maps / maps[:, 2:, 2:]}
    return {name: value.reshape(-1, 9)[:, :count].astype(np.float32) for name, value in made.items()}
