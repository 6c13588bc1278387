"""`image_numpy` in JAX: kernels for one image (H, W, C), `vmap`ped over the batch and compiled as one program.

Every kernel is parametric: it selects and weighs by its parameters and never branches on them, so shapes are static
and one compilation serves every key. A new batch shape, dtype or list of operations compiles again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from penstock.augment import spec
from penstock.augment.field_jax import normal
from penstock.augment.image_numpy import LUMA, fill_value
from penstock.augment.params import Drawn
from penstock.core.optional import need

Kernel = Callable[[Any, Any, dict[str, Any]], Any]


def apply(ops: Sequence[spec.Op], images: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch, as one compiled program."""
    return program(tuple(ops))(images, tuple(drawn))


@lru_cache(maxsize=128)
def program(ops: tuple[spec.Op, ...]) -> Any:
    """The compiled `(images, parameters) -> images` of a list of operations."""
    jax = need("jax", extra="jax", purpose="for Augment.jax()")

    def whole(images: Any, drawn: tuple[dict[str, Any], ...]) -> Any:
        dtype = images.dtype
        for op, one in zip(ops, drawn, strict=True):
            if not op.exact:
                images = as_float(images)
            if op.mixes:
                others = {name: values for name, values in one.items() if name != "partner"}
                images = jax.vmap(partial(_MIXES[type(op)], op))(images, images[one["partner"]], others)
            else:
                images = jax.vmap(partial(touch, op))(images, one)
        return as_type(images, dtype)

    return jax.jit(whole)


def touch(op: spec.Op, x: Any, p: dict[str, Any]) -> Any:
    """One operation on one image, or the image as it was where the operation is off."""
    made = KERNELS[type(op)](op, x, p)
    return made if getattr(op, "p", 1.0) == 1 else _jnp().where(p["on"], made, x)


def _jnp() -> Any:
    return need("jax.numpy", extra="jax")


def as_float(x: Any) -> Any:
    jnp = _jnp()
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(jnp.float32) * np.float32(1 / jnp.iinfo(x.dtype).max)
    return x.astype(jnp.float32)


def as_type(x: Any, dtype: Any) -> Any:
    jnp = _jnp()
    if x.dtype == dtype or not jnp.issubdtype(dtype, jnp.integer):
        return x.astype(dtype)
    return jnp.round(jnp.clip(x, 0, 1) * np.float32(jnp.iinfo(dtype).max)).astype(dtype)


def flip(op: Any, x: Any, _p: dict[str, Any]) -> Any:
    return x[:, ::-1] if op.axis == "horizontal" else x[::-1]


def rot90(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    """One gather by a table of turned places: selecting among transposed copies makes XLA choose a layout in which
    all later operations are ten times slower on a CPU."""
    height, width = x.shape[:2]
    places = np.arange(height * width, dtype=np.int32).reshape(height, width)
    square = height == width
    table = np.stack([np.rot90(places, k).ravel() for k in ((0, 1, 2, 3) if square else (0, 2))])
    turned = _jnp().asarray(table)[p["k"] if square else p["k"] // 2]
    return x.reshape(height * width, -1)[turned].reshape(x.shape)


def crop(op: spec.Crop, x: Any, p: dict[str, Any]) -> Any:
    jax, edge = need("jax", extra="jax"), op.padding
    if edge:
        around = ((edge, edge), (edge, edge), (0, 0))
        x = _jnp().pad(x, around, constant_values=fill_value(op.fill, x.dtype))
    return jax.lax.dynamic_slice(x, (p["y"] + edge, p["x"] + edge, 0), (*spec.sized(op), x.shape[2]))


def weights(start: Any, length: Any, whole: int, size: int) -> Any:
    """Triangle filter (size, whole) that resamples the pixels [start, start + length) to `size`."""
    jnp = _jnp()
    length = length.astype(jnp.float32)
    scale = length / size
    centre = (jnp.arange(size, dtype=jnp.float32)[:, None] + 0.5) * scale
    pixel = jnp.arange(whole, dtype=jnp.float32) - start.astype(jnp.float32)
    filled = jnp.maximum(1 - jnp.abs((pixel + 0.5 - centre) / jnp.maximum(scale, 1)), 0)
    filled = filled * ((pixel >= 0) & (pixel < length))
    return filled / filled.sum(1, keepdims=True)


def resized_crop(op: Any, x: Any, p: dict[str, Any]) -> Any:
    height, width = spec.sized(op)
    tall = weights(p["y"], p["h"], x.shape[0], height)
    wide = weights(p["x"], p["w"], x.shape[1], width)
    einsum = partial(_jnp().einsum, precision="highest")  # accelerators would otherwise multiply in bfloat16
    return einsum("pw,owc->opc", wide, einsum("oh,hwc->owc", tall, x))


def _clip(x: Any) -> Any:
    return _jnp().clip(x, 0, 1)


def brightness(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    return _clip(x * p["factor"])


def contrast(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    return _clip(x + (p["factor"] - 1) * (x - x.mean()))


def saturation(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    grey = (x * np.array(LUMA, np.float32)).sum(-1, keepdims=True)
    return _clip(x + (p["factor"] - 1) * (x - grey))


def hue(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    jnp = _jnp()
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    top = x.max(-1)
    chroma = top - x.min(-1)
    safe = jnp.where(chroma > 0, chroma, 1)
    sixth = jnp.where(top == r, (g - b) / safe, jnp.where(top == g, (b - r) / safe + 2, (r - g) / safe + 4))
    k = jnp.mod(np.array([5, 3, 1], np.float32) + (sixth + 6 * p["factor"])[..., None], 6)
    share = jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
    return jnp.where(p["factor"] == 0, x, _clip(top[..., None] - chroma[..., None] * share))


def noise(_op: Any, x: Any, p: dict[str, Any]) -> Any:
    return _clip(x + p["level"] * normal(p["k0"], p["k1"], x.size).reshape(x.shape))


def blur(op: spec.Blur, x: Any, p: dict[str, Any]) -> Any:
    jnp, radius = _jnp(), op.radius
    offset = np.arange(-radius, radius + 1, dtype=np.float32)
    tap = jnp.exp(-0.5 * (offset / jnp.maximum(p["sigma"], 1e-3)) ** 2)
    tap = tap / tap.sum()
    height, width = x.shape[:2]
    wide = jnp.pad(x, ((radius, radius), (0, 0), (0, 0)), mode="edge")
    x = sum(tap[i] * wide[i : i + height] for i in range(2 * radius + 1))
    wide = jnp.pad(x, ((0, 0), (radius, radius), (0, 0)), mode="edge")
    return sum(tap[i] * wide[:, i : i + width] for i in range(2 * radius + 1))


def inside(p: dict[str, Any], height: int, width: int) -> Any:
    y, x = np.arange(height, dtype=np.int32), np.arange(width, dtype=np.int32)
    tall = (y >= p["y"]) & (y < p["y"] + p["h"])
    wide = (x >= p["x"]) & (x < p["x"] + p["w"])
    return (tall[:, None] & wide)[..., None]


def erase(op: Any, x: Any, p: dict[str, Any]) -> Any:
    fill = np.asarray(fill_value(op.fill, x.dtype), x.dtype)
    return _jnp().where(inside(p, x.shape[0], x.shape[1]), fill, x)


def mixup(_op: Any, x: Any, other: Any, p: dict[str, Any]) -> Any:
    return p["lam"] * x + (1 - p["lam"]) * other


def cutmix(_op: Any, x: Any, other: Any, p: dict[str, Any]) -> Any:
    return _jnp().where(inside(p, x.shape[0], x.shape[1]), other, x)


def mix_labels(op: Any, labels: Any, p: Drawn) -> dict[str, Any]:
    """The label columns after `Mixup` or `Cutmix`."""
    jnp = _jnp()
    labels, lam = jnp.asarray(labels), jnp.asarray(p["lam"])
    if labels.ndim == 1 and op.classes is not None:
        labels = need("jax", extra="jax").nn.one_hot(labels, op.classes)
    if labels.ndim == 1:
        return {op.labels: labels, f"{op.labels}_partner": labels[p["partner"]], "lam": lam}
    return {op.labels: lam[:, None] * labels + (1 - lam[:, None]) * labels[p["partner"]]}


KERNELS: dict[type, Kernel] = {
    spec.Flip: flip, spec.Rot90: rot90, spec.Crop: crop, spec.RandomResizedCrop: resized_crop,
    spec.Resize: resized_crop, spec.Brightness: brightness, spec.Contrast: contrast, spec.Saturation: saturation,
    spec.Hue: hue, spec.Noise: noise, spec.Blur: blur, spec.Erase: erase,
}  # fmt: skip
_MIXES: dict[type, Any] = {spec.Mixup: mixup, spec.Cutmix: cutmix}
