"""Image operations on the host, in NumPy: batches (N, H, W, C), the rows that an operation leaves alone not touched.

Images are uint8, or floats in [0, 1]; the type comes back as it went in. uint8 becomes float32 at the first operation
that computes and is rounded once, at the end. Agrees with `image_torch` and `image_jax` within 1e-5 (floats) or one
grey level (uint8) for the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment import spec
from penstock.augment.field_numpy import normal
from penstock.augment.params import Drawn

Images = NDArray[Any]
Kernel = Callable[[Any, Images, Drawn], Images]

LUMA = (0.299, 0.587, 0.114)


def apply(ops: Sequence[spec.Op], images: Images, drawn: Sequence[Drawn]) -> Images:
    """All operations in turn on a batch, with the parameters drawn for it. The input is never written to."""
    dtype = images.dtype
    for op, one in zip(ops, drawn, strict=True):
        if not op.exact:
            images = as_float(images)
        images = _step(op, images, one)
    return np.ascontiguousarray(as_type(images, dtype))


def as_float(images: Images) -> Images:
    """float32, with integers scaled so that their largest value is 1."""
    if images.dtype.kind in "ui":
        return images.astype(np.float32) * np.float32(1 / np.iinfo(images.dtype).max)
    return images.astype(np.float32, copy=False)


def as_type(images: Images, dtype: np.dtype[Any]) -> Images:
    """Back to the type that `as_float` was given."""
    if images.dtype == dtype:
        return images
    if dtype.kind in "ui":
        top = np.iinfo(dtype).max
        return np.rint(np.clip(images, 0, 1) * np.float32(top)).astype(dtype)
    return images.astype(dtype)


def fill_value(fill: float, dtype: Any) -> Any:
    """`fill` in [0, 1] on the scale of a NumPy type."""
    return round(fill * np.iinfo(dtype).max) if np.dtype(dtype).kind in "ui" else fill


def _step(op: spec.Op, images: Images, one: Drawn) -> Images:
    kernel = KERNELS[type(op)]
    rows = np.flatnonzero(one["on"])
    if len(rows) == len(images) or op.mixes:
        return kernel(op, images, one)
    if not len(rows):
        return images
    out = images.copy()
    out[rows] = kernel(op, images[rows], {name: values[rows] for name, values in one.items()})
    return out


def _each(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, None, None, None]


def _clip(images: Images) -> Images:
    return np.clip(images, 0, 1, out=images)


def flip(op: spec.Flip, x: Images, _p: Drawn) -> Images:
    return x[:, :, ::-1] if op.axis == "horizontal" else x[:, ::-1]


def rot90(_op: spec.Rot90, x: Images, p: Drawn) -> Images:
    out = np.empty_like(x)
    for turns in range(4):
        rows = np.flatnonzero(p["k"] == turns)
        if len(rows):
            out[rows] = np.rot90(x[rows], turns, axes=(1, 2))
    return out


def crop(op: spec.Crop, x: Images, p: Drawn) -> Images:
    height, width = spec.sized(op)
    if op.padding:
        edge = (op.padding, op.padding)
        x = np.pad(x, ((0, 0), edge, edge, (0, 0)), constant_values=fill_value(op.fill, x.dtype))
    out = np.empty((len(x), height, width, x.shape[3]), x.dtype)
    for i, (y, left) in enumerate(zip((p["y"] + op.padding).tolist(), (p["x"] + op.padding).tolist(), strict=True)):
        out[i] = x[i, y : y + height, left : left + width]
    return out


def weights(length: int, size: int) -> NDArray[np.float32]:
    """Triangle filter (size, length) that resamples `length` pixels to `size`, widened when shrinking.

    >>> (weights(4, 2) * 7).round().tolist()
    [[3.0, 3.0, 1.0, 0.0], [0.0, 1.0, 3.0, 3.0]]
    """
    scale = np.float32(length) / np.float32(size)
    centre = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale
    distance = (np.arange(length, dtype=np.float32) + np.float32(0.5) - centre[:, None]) / max(scale, np.float32(1))
    filled = np.maximum(np.float32(0), 1 - np.abs(distance))
    made: NDArray[np.float32] = filled / filled.sum(1, keepdims=True)
    return made


def resized_crop(op: spec.RandomResizedCrop, x: Images, p: Drawn) -> Images:
    height, width = spec.sized(op)
    channels = x.shape[3]
    out = np.empty((len(x), height, width, channels), np.float32)
    for i, (y, left, h, w) in enumerate(zip(*(p[k].tolist() for k in "yxhw"), strict=True)):
        part = x[i, y : y + h, left : left + w].reshape(h, w * channels)
        tall = (weights(h, height) @ part).reshape(height, w, channels)
        np.matmul(weights(w, width), tall, out=out[i])
    return out


def brightness(_op: spec.Brightness, x: Images, p: Drawn) -> Images:
    return _clip(x * _each(p["factor"]))


def contrast(_op: spec.Contrast, x: Images, p: Drawn) -> Images:
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    return _clip(x + (_each(p["factor"]) - 1) * (x - mean))


def saturation(_op: spec.Saturation, x: Images, p: Drawn) -> Images:
    grey = (x @ np.array(LUMA, np.float32))[..., None]
    return _clip(x + (_each(p["factor"]) - 1) * (x - grey))


def hue(_op: spec.Hue, x: Images, p: Drawn) -> Images:
    """HSV hue moved by a share of the circle; lightness (the maximum) and chroma stay."""
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    top = x.max(-1)
    chroma = top - x.min(-1)
    safe = np.where(chroma > 0, chroma, np.float32(1))
    sixth = np.where(top == r, (g - b) / safe, np.where(top == g, (b - r) / safe + 2, (r - g) / safe + 4))
    sixth = sixth + 6 * p["factor"][:, None, None]
    k = (np.array([5, 3, 1], np.float32) + sixth[..., None]) % np.float32(6)
    share = np.clip(np.minimum(k, 4 - k), 0, 1)
    made = _clip(top[..., None] - chroma[..., None] * share)
    return np.where(_each(p["factor"]) == 0, x, made)


def noise(_op: spec.Noise, x: Images, p: Drawn) -> Images:
    field = normal(p["k0"], p["k1"], int(np.prod(x.shape[1:]))).reshape(x.shape)
    return _clip(x + _each(p["level"]) * field)


def taps(sigma: NDArray[np.float32], radius: int) -> NDArray[np.float32]:
    """Gaussian taps (rows, 2 * radius + 1) that sum to 1; a sigma of 0 is the single tap 1."""
    offset = np.arange(-radius, radius + 1, dtype=np.float32)
    wide = np.maximum(sigma, np.float32(1e-3))[:, None]
    made = np.exp(-0.5 * (offset / wide) ** 2, dtype=np.float32)
    scaled: NDArray[np.float32] = made / made.sum(1, keepdims=True)
    return scaled


def blur(op: spec.Blur, x: Images, p: Drawn) -> Images:
    radius = op.radius
    tap = taps(p["sigma"], radius)
    for axis in (1, 2):
        around = [(radius, radius) if a == axis else (0, 0) for a in range(4)]
        wide = np.pad(x, around, mode="edge")
        total = np.zeros_like(x)
        for i in range(2 * radius + 1):
            view = wide[:, i : i + x.shape[1]] if axis == 1 else wide[:, :, i : i + x.shape[2]]
            total += _each(tap[:, i]) * view
        x = total
    return x


def inside(p: Drawn, height: int, width: int) -> NDArray[np.bool_]:
    """Mask (rows, height, width, 1) of the boxes."""
    y, x = np.arange(height, dtype=np.int32), np.arange(width, dtype=np.int32)
    tall = (y >= p["y"][:, None]) & (y < (p["y"] + p["h"])[:, None])
    wide = (x >= p["x"][:, None]) & (x < (p["x"] + p["w"])[:, None])
    made: NDArray[np.bool_] = (tall[:, :, None] & wide[:, None, :])[..., None]
    return made


def erase(op: spec.Erase, x: Images, p: Drawn) -> Images:
    fill = np.asarray(fill_value(op.fill, x.dtype), x.dtype)
    return np.where(inside(p, x.shape[1], x.shape[2]), fill, x)


def mixup(_op: spec.Mixup, x: Images, p: Drawn) -> Images:
    lam = _each(p["lam"])
    return np.asarray(lam * x + (1 - lam) * x[p["partner"]])


def cutmix(_op: spec.Cutmix, x: Images, p: Drawn) -> Images:
    return np.where(inside(p, x.shape[1], x.shape[2]), x[p["partner"]], x)


def mix_labels(op: Any, labels: NDArray[Any], p: Drawn) -> dict[str, NDArray[Any]]:
    """The label columns after `Mixup` or `Cutmix`."""
    if labels.ndim == 1 and op.classes is not None:
        labels = np.eye(op.classes, dtype=np.float32)[labels]
    if labels.ndim == 1:
        return {op.labels: labels, f"{op.labels}_partner": labels[p["partner"]], "lam": p["lam"]}
    lam = p["lam"][:, None]
    return {op.labels: lam * labels + (1 - lam) * labels[p["partner"]]}


KERNELS: dict[type, Kernel] = {
    spec.Flip: flip, spec.Rot90: rot90, spec.Crop: crop, spec.RandomResizedCrop: resized_crop,
    spec.Resize: resized_crop, spec.Brightness: brightness, spec.Contrast: contrast, spec.Saturation: saturation,
    spec.Hue: hue, spec.Noise: noise, spec.Blur: blur, spec.Erase: erase, spec.Mixup: mixup, spec.Cutmix: cutmix,
}  # fmt: skip
