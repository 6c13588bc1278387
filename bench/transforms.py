"""Joint transforms and augmentations on the host: images a second of processor time, one thread, 224 x 224 uint8.

`Augment` beside the same operations in torchvision's style on Pillow images, and beside Albumentations (OpenCV) if it
is installed; it is measured, never used. Contenders alternate in one run.

    python -m bench transforms
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from bench.common import medians, rounds, save, table
from penstock import augment as augments

ROWS, SIDE = 16, 224


def pictures() -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (ROWS, 14, 14, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((SIDE, SIDE))) for one in coarse])


def pillow_ways(rng: np.random.Generator) -> dict[str, Callable[[Image.Image], Image.Image]]:
    linear, nearest = Image.Resampling.BILINEAR, Image.Resampling.NEAREST

    def policy(image: Image.Image) -> Image.Image:
        for _ in range(2):
            ways = (
                lambda one: one.rotate(9, nearest), ImageOps.equalize, lambda one: ImageOps.posterize(one, 7),
                lambda one: ImageOps.solarize(one, 178), ImageOps.autocontrast,
                lambda one: ImageEnhance.Contrast(one).enhance(1.27),
                lambda one: ImageEnhance.Sharpness(one).enhance(1.27),
                lambda one: one.transform(one.size, Image.Transform.AFFINE, (1, 0.09, 0, 0, 1, 0), nearest),
            )  # fmt: skip
            image = ways[int(rng.integers(len(ways)))](image)
        return image

    return {
        "Rotate": lambda image: image.rotate(float(rng.uniform(-30, 30)), linear),
        "Perspective": lambda image: image.transform(
            image.size, Image.Transform.PERSPECTIVE, (1.1, 0.1, -9, 0.05, 1.1, -7, 3e-4, 2e-4), linear
        ),
        "Equalize": ImageOps.equalize,
        "Posterize": lambda image: ImageOps.posterize(image, 4),
        "Sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(float(rng.uniform(0.5, 1.5))),
        "RandAugment": policy,
    }


def ours() -> dict[str, Any]:
    return {
        "Rotate": augments.Rotate(30), "Perspective": augments.Perspective(p=1.0), "Equalize": augments.Equalize(p=1.0),
        "Posterize": augments.Posterize(4, p=1.0), "Sharpness": augments.Sharpness(0.5),
        "RandAugment": augments.RandAugment(),
        "Flip + Crop with mask and boxes": None,
    }  # fmt: skip


def albumentations_ways() -> dict[str, Any]:
    try:
        peer = importlib.import_module("albumentations")
    except ImportError:
        return {}
    return {
        "Rotate": peer.Rotate((-30, 30), p=1.0), "Perspective": peer.Perspective(p=1.0),
        "Equalize": peer.Equalize(p=1.0), "Posterize": peer.Posterize(p=1.0), "Sharpness": peer.Sharpen(p=1.0),
        "Flip + Crop with mask and boxes": peer.Compose(
            [peer.HorizontalFlip(), peer.RandomResizedCrop((SIDE, SIDE))],
            bbox_params=peer.BboxParams("pascal_voc", label_fields=["labels"]),
        ),
    }  # fmt: skip


def timed(call: Callable[[], Any], seconds: float) -> Callable[[], float]:
    def one() -> float:
        call()
        count, began, until = 0, time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            call()
            count += 1
        return ROWS * count / max(time.process_time() - began, 1e-9)

    return one


def contenders(seconds: float) -> dict[str, Callable[[], float]]:
    images, rng = pictures(), np.random.default_rng(1)
    masks, labels = (images[..., 0] // 64).copy(), np.tile(np.arange(8), (ROWS, 1))
    boxes = np.tile(np.array([[20, 30, 90, 140]], np.float32), (ROWS, 8, 1))
    found: dict[str, Callable[[], float]] = {}
    peers, shown = albumentations_ways(), pillow_ways(rng)
    for name, op in ours().items():
        if op is None:
            joint = augments.Augment(
                augments.Flip(), augments.RandomResizedCrop(SIDE), masks="mask", boxes=augments.Boxes(labels="labels")
            )
            batch = {"image": images, "mask": masks, "boxes": boxes, "labels": labels}
            keys = joint.keys(range(ROWS))
            found[f"{name} | penstock"] = timed(lambda joint=joint, batch=batch, keys=keys: joint(batch, keys), seconds)
        else:
            augment = augments.Augment(op)
            keys = augment.keys(range(ROWS))
            found[f"{name} | penstock"] = timed(
                lambda augment=augment, keys=keys: augment({"image": images}, keys), seconds
            )
        if name in shown:
            way = shown[name]
            found[f"{name} | Pillow"] = timed(
                lambda way=way: np.stack([np.asarray(way(Image.fromarray(one))) for one in images]), seconds
            )
        if name in peers:
            more = {"mask": masks[0], "bboxes": boxes[0], "labels": labels[0]} if op is None else {}
            found[f"{name} | Albumentations"] = timed(
                lambda peer=peers[name], more=more: [peer(image=one, **more) for one in images], seconds
            )
    return found


def run(seconds: float = 0.3, count: int = 3) -> dict[str, Any]:
    found = medians(rounds(contenders(seconds), count))
    rows = []
    for name in ours():
        own = found[f"{name} | penstock"]
        others = [found.get(f"{name} | {peer}") for peer in ("Pillow", "Albumentations")]
        rows.append((name, f"{own:.0f}", *("-" if one is None else f"{one:.0f} ({own / one:.2f})" for one in others)))
    heads = ("operation", "Augment", "Pillow (ours / theirs)", "Albumentations (ours / theirs)")
    table(f"images of {SIDE} x {SIDE} a second of processor time", rows, heads)
    facts = {"images_per_second": found}
    save("transforms", facts)
    return facts
