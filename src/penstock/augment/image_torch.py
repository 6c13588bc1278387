"""`image_numpy` in torch, batched (N, H, W, C), on whatever device the images are. Parameters come from the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.augment import spec
from penstock.augment.field_torch import normal
from penstock.augment.image_numpy import LUMA
from penstock.augment.params import Drawn
from penstock.core.optional import need

Kernel = Callable[[Any, Any, dict[str, Any]], Any]


def apply(ops: Sequence[spec.Op], images: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch tensor."""
    dtype = images.dtype
    for op, one in zip(ops, drawn, strict=True):
        if not op.exact:
            images = as_float(images)
        if not op.mixes and not one["on"].any():
            continue
        p = tensors(one, images.device)
        made = KERNELS[type(op)](op, images, p)
        images = made if op.mixes or one["on"].all() else _torch().where(_each(p["on"]), made, images)
    return as_type(images, dtype)


def _torch() -> Any:
    return need("torch", extra="torch", purpose="for Augment.torch()")


def tensors(one: Drawn, device: Any) -> dict[str, Any]:
    """Parameters on the device; whole numbers as int64, which torch computes and indexes with."""
    torch = _torch()
    wide = {name: v.astype(np.int64) if v.dtype.kind in "ui" else v for name, v in one.items()}
    return {name: torch.from_numpy(np.ascontiguousarray(v)).to(device) for name, v in wide.items()}


def as_float(images: Any) -> Any:
    torch = _torch()
    if images.dtype.is_floating_point:
        return images.to(torch.float32)
    return images.to(torch.float32) * float(np.float32(1 / torch.iinfo(images.dtype).max))


def as_type(images: Any, dtype: Any) -> Any:
    torch = _torch()
    if images.dtype == dtype or dtype.is_floating_point:
        return images.to(dtype)
    return torch.round(images.clamp(0, 1) * torch.iinfo(dtype).max).to(dtype)


def fill_value(fill: float, dtype: Any) -> Any:
    return fill if dtype.is_floating_point else round(fill * _torch().iinfo(dtype).max)


def _each(values: Any) -> Any:
    return values[:, None, None, None]


def flip(op: spec.Flip, x: Any, _p: dict[str, Any]) -> Any:
    return x.flip(2 if op.axis == "horizontal" else 1)


def rot90(_op: spec.Rot90, x: Any, p: dict[str, Any]) -> Any:
    torch, k = _torch(), p["k"]
    if x.shape[1] == x.shape[2]:
        x = torch.where(_each(k % 2 == 1), x.transpose(1, 2), x)
    x = torch.where(_each((k == 1) | (k == 2)), x.flip(1), x)
    return torch.where(_each(k >= 2), x.flip(2), x)


def crop(op: spec.Crop, x: Any, p: dict[str, Any]) -> Any:
    torch = _torch()
    height, width = spec.sized(op)
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    y = (p["y"][:, None] + torch.arange(height, device=x.device))[:, :, None]
    left = (p["x"][:, None] + torch.arange(width, device=x.device))[:, None, :]
    made = x[rows, y.clamp(0, x.shape[1] - 1), left.clamp(0, x.shape[2] - 1)]
    real = (y >= 0) & (y < x.shape[1]) & (left >= 0) & (left < x.shape[2])
    return torch.where(
        real[..., None], made, torch.as_tensor(fill_value(op.fill, x.dtype), dtype=x.dtype, device=x.device)
    )


def weights(start: Any, length: Any, whole: int, size: int) -> Any:
    """Triangle filters (rows, size, whole) that resample the pixels [start, start + length) to `size`."""
    torch = _torch()
    start, length = start[:, None, None].to(torch.float32), length[:, None, None].to(torch.float32)
    scale = length / size
    centre = (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(whole, device=start.device) - start
    filled = (1 - ((pixel + 0.5 - centre) / scale.clamp(min=1)).abs()).clamp(min=0)
    filled = filled * ((pixel >= 0) & (pixel < length))
    return filled / filled.sum(2, keepdim=True)


def resized_crop(op: spec.RandomResizedCrop, x: Any, p: dict[str, Any]) -> Any:
    height, width = spec.sized(op)
    tall = weights(p["y"], p["h"], x.shape[1], height)
    wide = weights(p["x"], p["w"], x.shape[2], width)
    torch = _torch()
    return torch.einsum("npw,nowc->nopc", wide, torch.einsum("noh,nhwc->nowc", tall, x))


def brightness(_op: spec.Brightness, x: Any, p: dict[str, Any]) -> Any:
    return (x * _each(p["factor"])).clamp(0, 1)


def contrast(_op: spec.Contrast, x: Any, p: dict[str, Any]) -> Any:
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x + (_each(p["factor"]) - 1) * (x - mean)).clamp(0, 1)


def saturation(_op: spec.Saturation, x: Any, p: dict[str, Any]) -> Any:
    grey = (x * _torch().tensor(LUMA, device=x.device)).sum(-1, keepdim=True)
    return (x + (_each(p["factor"]) - 1) * (x - grey)).clamp(0, 1)


def hue(_op: spec.Hue, x: Any, p: dict[str, Any]) -> Any:
    torch = _torch()
    r, g, b = x.unbind(-1)
    top = x.amax(-1)
    chroma = top - x.amin(-1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixth = torch.where(top == r, (g - b) / safe, torch.where(top == g, (b - r) / safe + 2, (r - g) / safe + 4))
    sixth = sixth + 6 * p["factor"][:, None, None]
    k = torch.remainder(torch.tensor([5.0, 3.0, 1.0], device=x.device) + sixth[..., None], 6)
    share = torch.minimum(k, 4 - k).clamp(0, 1)
    made = (top[..., None] - chroma[..., None] * share).clamp(0, 1)
    return torch.where(_each(p["factor"]) == 0, x, made)


def noise(_op: spec.Noise, x: Any, p: dict[str, Any]) -> Any:
    field = normal(p["k0"], p["k1"], x[0].numel()).reshape(x.shape)
    return (x + _each(p["level"]) * field).clamp(0, 1)


def blur(op: spec.Blur, x: Any, p: dict[str, Any]) -> Any:
    torch, radius = _torch(), op.radius
    offset = torch.arange(-radius, radius + 1, device=x.device)
    tap = torch.exp(-0.5 * (offset / p["sigma"].clamp(min=1e-3)[:, None]) ** 2)
    tap = tap / tap.sum(1, keepdim=True)
    for axis in (1, 2):
        place = torch.arange(x.shape[axis], device=x.device)
        shifted = (x.index_select(axis, (place + d).clamp(0, x.shape[axis] - 1)) for d in range(-radius, radius + 1))
        x = sum(_each(tap[:, i]) * view for i, view in enumerate(shifted))
    return x


def inside(p: dict[str, Any], height: int, width: int) -> Any:
    torch = _torch()
    y, x = torch.arange(height, device=p["y"].device), torch.arange(width, device=p["y"].device)
    tall = (y >= p["y"][:, None]) & (y < (p["y"] + p["h"])[:, None])
    wide = (x >= p["x"][:, None]) & (x < (p["x"] + p["w"])[:, None])
    return (tall[:, :, None] & wide[:, None, :])[..., None]


def erase(op: spec.Erase, x: Any, p: dict[str, Any]) -> Any:
    return x.masked_fill(inside(p, x.shape[1], x.shape[2]), fill_value(op.fill, x.dtype))


def mixup(_op: spec.Mixup, x: Any, p: dict[str, Any]) -> Any:
    lam = _each(p["lam"])
    return lam * x + (1 - lam) * x[p["partner"]]


def cutmix(_op: spec.Cutmix, x: Any, p: dict[str, Any]) -> Any:
    return _torch().where(inside(p, x.shape[1], x.shape[2]), x[p["partner"]], x)


def mix_labels(op: Any, labels: Any, one: Drawn) -> dict[str, Any]:
    """The label columns after `Mixup` or `Cutmix`."""
    torch = _torch()
    labels = torch.as_tensor(labels)
    p = tensors(one, labels.device)
    if labels.ndim == 1 and op.classes is not None:
        labels = torch.nn.functional.one_hot(labels.to(torch.int64), op.classes).to(torch.float32)
    if labels.ndim == 1:
        return {op.labels: labels, f"{op.labels}_partner": labels[p["partner"]], "lam": p["lam"]}
    lam = p["lam"][:, None]
    return {op.labels: lam * labels + (1 - lam) * labels[p["partner"]]}


KERNELS: dict[type, Kernel] = {
    spec.Flip: flip, spec.Rot90: rot90, spec.Crop: crop, spec.RandomResizedCrop: resized_crop,
    spec.Resize: resized_crop, spec.Brightness: brightness, spec.Contrast: contrast, spec.Saturation: saturation,
    spec.Hue: hue, spec.Noise: noise, spec.Blur: blur, spec.Erase: erase, spec.Mixup: mixup, spec.Cutmix: cutmix,
}  # fmt: skip
