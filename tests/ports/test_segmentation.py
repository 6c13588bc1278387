"""A segmentation input pipeline: image and mask with one crop, flip, rotation; colours change in the image alone."""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np
from PIL import Image

import penstock as ps
from penstock.augment import Affine, Augment, Brightness, Flip, Grayscale, Rotate
from penstock.testing import assert_elastic, assert_exact_resume

COLORS = np.array([[20, 20, 20], [220, 40, 40], [40, 200, 60]], np.uint8)
VOID = 255


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def record(number: int) -> dict[str, Any]:
    """A scene of two blobs on a ground, and its classes."""
    rng = np.random.default_rng(number)
    height, width = (int(v) for v in rng.integers(60, 100, 2))
    y, x = np.mgrid[0:height, 0:width]
    classes = np.zeros((height, width), np.uint8)
    for label in (1, 2):
        cy, cx, r = rng.uniform(15, height - 15), rng.uniform(15, width - 15), rng.uniform(10, 20)
        classes[(y - cy) ** 2 + (x - cx) ** 2 < r * r] = label
    return {"picture": png(COLORS[classes]), "mask": png(classes), "id": number}


SCENES = [record(i) for i in range(40)]
DATA = ps.from_arrays({name: [scene[name] for scene in SCENES] for name in SCENES[0]})


def train(batch: int = 8) -> Any:
    moves = Augment(
        Flip(), Rotate(20, interpolation="nearest"), Affine(0, scale=(0.8, 1.2), interpolation="nearest", p=0.5),
        Brightness(0.1), seed=5, masks="mask", mask_fill=VOID,
    )  # fmt: skip
    crop = {"crop": "random", "scale": (0.4, 1.0), "dtype": "uint8", "method": "nearest"}
    return (
        DATA.shuffle(seed=3).decode_images(48, column="picture", masks="mask", **crop).map_batches(moves).batch(batch)
    )


def test_classes_stay_under_their_pixels() -> None:
    agree = []
    for batch in train().to_numpy(threads=0):
        assert batch["image"].shape == (8, 48, 48, 3)
        assert batch["mask"].shape == (8, 48, 48)
        known = batch["mask"] != VOID
        distance = np.abs(batch["image"][:, :, :, None, :].astype(int) - COLORS).sum(-1)
        agree.append((distance.argmin(-1) == batch["mask"])[known].mean())
        assert not batch["image"][~known].any()
    assert min(agree) > 0.97
    assert set(np.unique(batch["mask"])) <= {0, 1, 2, VOID}


def test_the_law() -> None:
    assert_exact_resume(train)
    assert_elastic(train, batch=8, worlds=(1, 2), threads=(0, 2))


def test_on_the_device_inside_of_the_train_step() -> None:
    """The same augmentation in JAX: keys travel with the batch, the step is compiled once."""
    augment = Augment(Flip(), Rotate(20), Grayscale(), seed=5, masks="mask", mask_fill=VOID)
    rows = DATA.shuffle(seed=3).select("picture", "mask").decode_images(48, column="picture", masks="mask")
    loader = rows.map_batches(ps.carry_keys).batch(8).to_jax(threads=0)

    @jax.jit
    def step(batch: dict[str, Any]) -> Any:
        made = augment.jax(batch)
        known = made["mask"] != VOID
        return (made["image"] * known[..., None]).sum() / known.sum(), made["mask"]

    for number in range(3):
        _, mask = step(dict(loader.batch_at(number)))
        want = rows.map_batches(augment_host(augment)).batch(8).to_numpy(threads=0).batch_at(number)["mask"]
        assert np.array_equal(np.asarray(mask), want)
    assert step._cache_size() == 1


def augment_host(augment: Augment) -> Any:
    def on_host(columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        return augment(columns, keys)

    return on_host
