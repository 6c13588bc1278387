"""Geometric operations, levels and policies, against Pillow's definitions; equal in NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from penstock.augment import (
    Affine,
    Augment,
    AugMix,
    AutoContrast,
    Boxes,
    Equalize,
    Flip,
    Grayscale,
    Invert,
    Perspective,
    Posterize,
    RandAugment,
    Rotate,
    Sharpness,
    Shear,
    Solarize,
    Translate,
    TrivialAugment,
)  # fmt: skip
from penstock.augment.compose import carry_keys
from penstock.augment.operations.policy import NAMES
from penstock.core.errors import UsageError

WARPS = [
    Rotate(40), Rotate(180, interpolation="nearest"), Translate(0.3, 0.2), Shear(20, 10), Perspective(0.6, p=1.0),
    Affine(30, (0.2, 0.1), (0.6, 1.5), 10, 5, fill=0.5), Perspective(0.5, interpolation="nearest", p=1.0),
]  # fmt: skip
TONES = [
    Grayscale(p=1.0), Invert(p=1.0), Posterize((2, 6), p=1.0), Solarize((0.2, 0.9), p=1.0), AutoContrast(p=1.0),
    Equalize(p=1.0), Sharpness((0.0, 2.0)),
]  # fmt: skip
POLICIES = [RandAugment(3, 20), TrivialAugment(), AugMix(severity=8)]


def photos(rows: int = 6, height: int = 40, width: int = 56) -> np.ndarray:
    """Smooth pictures with some noise, a flat one and one with two levels."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:height, 0:width]
    made = np.stack([
        [120 + 90 * np.sin((x * (i + 1) + 2 * y * c) / 15) + rng.normal(0, 6, x.shape) for c in (1, 2, 3)]
        for i in range(rows)
    ])  # fmt: skip
    out = np.ascontiguousarray(made.transpose(0, 2, 3, 1).clip(20, 230).astype(np.uint8))
    out[1] = 77
    out[2, :20] = 30
    out[2, 20:] = 200
    return out


def run(augment: Augment, batch: dict[str, Any], how: str = "numpy") -> dict[str, np.ndarray]:
    keys = augment.keys(np.arange(50, 50 + len(batch["image"])))
    return {name: np.asarray(column) for name, column in getattr(augment, how)(batch, keys).items()}


def drawn(op: Any, images: np.ndarray) -> dict[str, np.ndarray]:
    augment = Augment(op, seed=2)
    return augment.params({"image": images}, augment.keys(np.arange(50, 50 + len(images))))["image"][0]


@pytest.mark.parametrize("op", WARPS, ids=lambda op: f"{type(op).__name__} {op.interpolation}")
def test_warps_are_those_of_pillow(op: Any) -> None:
    images = photos()
    made, p = run(Augment(op, seed=2), {"image": images})["image"], drawn(op, images)
    nearest = op.interpolation == "nearest"
    for row, image in enumerate(images):
        f = np.append(p["f"][row].astype(np.float64), [0, 0, 1] if p["f"].shape[1] == 6 else [1]).reshape(3, 3)
        back = np.linalg.inv(f)
        back /= back[2, 2]
        perspective = p["f"].shape[1] == 8
        how = Image.Transform.PERSPECTIVE if perspective else Image.Transform.AFFINE
        filter_ = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
        fill = (round(op.fill * 255),) * 3
        data = back.ravel()[: 8 if perspective else 6].tolist()
        want = np.asarray(Image.fromarray(image).transform((56, 40), how, data, filter_, fillcolor=fill))
        apart = np.abs(want.astype(int) - made[row])
        assert (apart > (0 if nearest else 1)).any(-1).mean() < 0.01  # positions that round the other way


def test_rotation_is_pillows_and_counter_clockwise() -> None:
    image = photos()[:1, :, :40]
    made = run(Augment(Rotate((30, 30)), seed=1), {"image": image})["image"][0]
    want = np.asarray(Image.fromarray(image[0]).rotate(30, Image.Resampling.BILINEAR))
    assert (np.abs(made.astype(int) - want).max(-1) > 2).mean() < 0.01
    quarter = run(Augment(Rotate((90, 90), interpolation="nearest")), {"image": image})["image"][0]
    assert np.array_equal(quarter, np.rot90(image[0]))


@pytest.mark.parametrize("op", [*WARPS, *TONES, *POLICIES], ids=repr)
def test_frameworks_agree(op: Any) -> None:
    """uint8 exactly where an operation only moves or looks up values, floats within rounding."""
    images = photos()
    for batch in ({"image": images if op.exact else images.astype(np.float32) / np.float32(255)},):
        made = run(Augment(op, seed=2), batch)["image"]
        assert made.dtype == batch["image"].dtype
        for how in ("torch", "jax"):
            other = run(Augment(op, seed=2), batch, how)["image"]
            assert other.dtype == made.dtype
            apart = np.abs(other.astype(np.float64) - made)
            if op in POLICIES:  # a level that rounds the other way is posterised to another one
                assert (apart > 2e-5).mean() < 0.002
            else:
                assert apart.max() <= (0 if op.exact else 2e-5)
    assert not np.array_equal(made, batch["image"])


def pillow(op: Any, image: np.ndarray, p: dict[str, Any]) -> np.ndarray:
    picture = Image.fromarray(image)
    made = {
        "Grayscale": lambda: picture.convert("L").convert("RGB"),
        "Invert": lambda: ImageOps.invert(picture),
        "Posterize": lambda: ImageOps.posterize(picture, int(p["bits"])),
        "Solarize": lambda: ImageOps.solarize(picture, float(p["threshold"]) * 255),  # type: ignore[arg-type]
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
        "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(float(p["factor"])),
    }[type(op).__name__]()
    return np.asarray(made)


@pytest.mark.parametrize("op", TONES, ids=lambda op: type(op).__name__)
def test_levels_are_those_of_pillow(op: Any) -> None:
    images = photos()
    made, p = run(Augment(op, seed=2), {"image": images})["image"], drawn(op, images)
    floats = run(Augment(op, seed=2), {"image": images.astype(np.float32) / np.float32(255)})["image"]
    for row, image in enumerate(images):
        want = pillow(op, image, {name: values[row] for name, values in p.items()}).astype(int)
        most = {"Sharpness": 2, "AutoContrast": 1}.get(type(op).__name__, 0)
        assert np.abs(want - made[row]).max() <= most
        assert (want != made[row]).mean() < (0.7 if most else 1e-9)
        assert np.abs(floats[row] * 255 - made[row]).max() <= 1.0


def reference(name: str, value: float, image: np.ndarray) -> np.ndarray:
    """One step of a policy as torchvision runs it on Pillow images."""
    picture = Image.fromarray(image)
    size, nearest = picture.size, Image.Resampling.NEAREST

    def moved(*data: float) -> Image.Image:
        return picture.transform(size, Image.Transform.AFFINE, data, nearest)

    made = {
        "Identity": lambda: picture,
        "ShearX": lambda: moved(1, value, 0, 0, 1, 0),
        "ShearY": lambda: moved(1, 0, 0, value, 1, 0),
        "TranslateX": lambda: moved(1, 0, -int(value), 0, 1, 0),
        "TranslateY": lambda: moved(1, 0, 0, 0, 1, -int(value)),
        "Rotate": lambda: picture.rotate(value, nearest),
        "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(1 + value),
        "Color": lambda: ImageEnhance.Color(picture).enhance(1 + value),
        "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(1 + value),
        "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(1 + value),
        "Posterize": lambda: ImageOps.posterize(picture, int(value)),
        "Solarize": lambda: ImageOps.solarize(picture, value),  # type: ignore[arg-type]
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
    }[name]()
    return np.asarray(made)


def test_every_step_of_a_policy_is_that_of_pillow() -> None:
    images = np.concatenate([photos(6)[3:]] * 40)
    op = TrivialAugment()
    made, p = run(Augment(op, seed=2), {"image": images})["image"], drawn(op, images)
    seen = set()
    for row, image in enumerate(images):
        name, value = NAMES[p["name"][row, 0]], float(p["value"][row, 0])
        want = reference(name, value, image).astype(int)
        assert (np.abs(want - made[row]).max(-1) > 2).mean() < 0.02, (name, value)
        seen.add((name, value > 0))
    assert {name for name, _ in seen} == set(NAMES)
    assert {("Rotate", True), ("Rotate", False), ("Brightness", True), ("Brightness", False)} <= seen


def test_levels_and_strengths_are_torchvisions() -> None:
    table = RandAugment(magnitude=9).table((224, 200, 3))
    assert [round(float(values[9]), 3) for values in table.values()] == [
        0.0, 0.09, 0.09, 27.19, 30.453, 9.0, 0.27, 0.27, 0.27, 0.27, 7.0, 178.5, 0.0, 0.0,
    ]  # fmt: skip
    wide = TrivialAugment().table((224, 200, 3))
    assert [float(wide[name][-1]) for name in ("ShearX", "TranslateX", "Rotate", "Color", "Posterize", "Solarize")] == [
        0.99, 32.0, 135.0, 0.99, 2.0, 0.0,
    ]  # fmt: skip
    assert len(AugMix().table((9, 9, 3))) == 13
    assert len(AugMix(all_ops=False).table((9, 9, 3))) == 9


@pytest.mark.parametrize("how", ["numpy", "torch"])
@pytest.mark.parametrize("op", [*WARPS[:6], RandAugment(2, 25), TrivialAugment()], ids=lambda op: type(op).__name__)
def test_masks_and_boxes_follow(op: Any, how: str) -> None:
    """A white rectangle on black stays where mask and box say."""
    images = np.zeros((12, 60, 60, 3), np.uint8)
    images[:, 25:37, 22:40] = 255
    boxes = np.tile(np.array([22, 25, 40, 37], np.float32), (12, 1, 1))
    batch = {"image": images, "mask": images[..., 0], "boxes": boxes, "boxes_count": np.ones(12, np.int32)}
    made = run(Augment(op, seed=7, masks="mask", boxes=Boxes(min_visible=0.01)), batch, how)
    for i in range(12):
        ys, xs = np.nonzero(made["mask"][i])
        if not len(xs) or not made["boxes_count"][i]:
            continue
        found = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        assert np.abs(made["boxes"][i, 0] - found).max() <= 2.0
    assert set(np.unique(made["mask"])) == {0, 255}


def test_rows_are_independent_of_their_batch_and_why_names_the_steps() -> None:
    images = photos()
    for op in (*WARPS, *TONES, *POLICIES):
        augment = Augment(op, seed=3)
        keys = augment.keys(np.arange(6))
        made = augment({"image": images}, keys)["image"]
        back = augment({"image": images[::-1]}, keys[::-1])["image"][::-1]
        assert np.array_equal(made, back), op
        described = augment.drawn({"image": images}, keys)["image"]
        assert not described or described[0]["op"] == type(op).__name__
        assert "m" not in described[0]
    steps = Augment(RandAugment()).drawn({"image": images}, keys)["image"][0]["steps"]
    assert len(steps) == 2
    assert steps[0]["op"] in NAMES


def test_under_jit() -> None:
    augment = Augment(Flip(), RandAugment(), Perspective(p=1.0), seed=4, masks="mask", boxes="boxes")
    boxes = np.tile(np.array([22, 15, 40, 37], np.float32), (6, 1, 1))
    batch = {"image": photos(), "mask": photos()[..., 0] // 50, "boxes": boxes}
    batch["boxes_count"] = np.ones(6, np.int32)
    keys = augment.keys(np.arange(6))
    want, made = augment(batch, keys), jax.jit(augment.jax)(carry_keys(batch, keys))
    assert (np.abs(np.asarray(made["image"]).astype(int) - want["image"]) > 1).mean() < 0.01
    assert np.array_equal(np.asarray(made["mask"]), want["mask"])
    assert np.abs(np.asarray(made["boxes"]) - want["boxes"]).max() < 1e-3


def test_what_is_refused() -> None:
    images = photos()
    for make, text in (
        (lambda: Rotate(400), "within -360"),
        (lambda: Rotate(10, interpolation="cubic"), "interpolation"),
        (lambda: Rotate(10, fill=2), "fill"),
        (lambda: Affine(10, translate=(2, 0)), "translate"),
        (lambda: Affine(10, scale=2), "scale"),  # type: ignore[arg-type]
        (lambda: Perspective(2), "distortion"),
        (lambda: Posterize(9), "bits"),
        (lambda: RandAugment(magnitude=31), "magnitude"),
        (lambda: RandAugment(num_ops=0), "num_ops"),
        (lambda: AugMix(severity=11), "severity"),
        (lambda: run(Augment(AugMix(), masks="m"), {"image": images, "m": images[..., 0]}), "no masks with AugMix"),
        (lambda: run(Augment(Equalize()), {"image": images.astype(np.uint16)}), "uint8 or floats"),
        (lambda: run(Augment(RandAugment()), {"image": images[..., :1]}), "three channels"),
        (lambda: run(Augment(Solarize()), {"image": images / 3.0}), "black and white"),
    ):
        with pytest.raises(UsageError, match=text):
            make()
