"""Normalised and channels-first images are right or refused; masks move with their images; `augment.jax` under jit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.augment import (
    Augment,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Cutmix,
    Erase,
    Flip,
    Hue,
    Mixup,
    Noise,
    RandomResizedCrop,
    Resize,
    Rot90,
    Saturation,
)
from penstock.augment.compose import carry_keys
from penstock.core.errors import UsageError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALUES = [Brightness(), Contrast(), Saturation(), Hue(), Noise(), Erase(p=1.0), Crop(12, padding=4)]
RANGELESS = [Flip(), Rot90(), RandomResizedCrop(12), Resize(12), Blur(), Crop(12), Mixup(), Cutmix()]
GEOMETRIC = [Flip(), Flip("vertical"), Rot90(), Crop(12, padding=3), RandomResizedCrop((24, 28)), Resize(27)]


def pictures(rows: int = 4, height: int = 16, width: int = 16) -> np.ndarray:
    return np.random.default_rng(0).random((rows, height, width, 3), np.float32)


def normalised(images: np.ndarray) -> np.ndarray:
    return ((images - np.array(MEAN)) / np.array(STD)).astype(np.float32)


def run(augment: Augment, batch: dict[str, Any], how: str = "numpy") -> dict[str, np.ndarray]:
    keys = augment.keys(np.arange(len(batch["image"])))
    return {name: np.asarray(column) for name, column in getattr(augment, how)(batch, keys).items()}


@pytest.mark.parametrize("how", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("op", VALUES, ids=lambda op: type(op).__name__)
def test_values_that_an_operation_does_not_know_are_refused(op: Any, how: str) -> None:
    for wrong in (
        normalised(pictures()),
        pictures() * 255,
        pictures() - 0.5,
        np.full((4, 16, 16, 3), np.nan, np.float32),
    ):
        with pytest.raises(UsageError, match="black and white") as caught:
            run(Augment(op), {"image": wrong}, how)
        assert "mean=" in str(caught.value)
    with pytest.raises(UsageError, match="int(64|32)"):
        run(Augment(op), {"image": (pictures() * 255).astype(np.int64)}, how)
    run(Augment(op), {"image": pictures()}, how)
    run(Augment(op), {"image": pictures() * 0 - 0.0}, how)


@pytest.mark.parametrize("op", RANGELESS, ids=lambda op: type(op).__name__)
def test_operations_that_neither_clip_nor_fill_take_any_values(op: Any) -> None:
    images, labels = normalised(pictures()), np.arange(4)
    made = run(Augment(op, seed=1), {"image": images, "labels": labels})["image"]
    plain = run(Augment(op, seed=1), {"image": pictures(), "labels": labels})["image"]
    assert np.abs(made - normalised(plain)).max() < 1e-4


@pytest.mark.parametrize("how", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("op", [*VALUES, *RANGELESS[:6]], ids=lambda op: type(op).__name__)
def test_declared_normalisation_gives_what_augmenting_before_it_gives(op: Any, how: str) -> None:
    made = run(Augment(op, seed=2, mean=MEAN, std=STD), {"image": normalised(pictures())}, how)["image"]
    want = normalised(run(Augment(op, seed=2), {"image": pictures()}, how)["image"])
    assert np.abs(made - want).max() < 1e-4
    with pytest.raises(UsageError, match="mean="):
        run(Augment(Brightness(), mean=MEAN, std=STD), {"image": pictures() * 255}, how)


def test_it_composes_with_the_options_of_decode_images(tmp_path: Any) -> None:
    import io

    from PIL import Image

    files = []
    for picture in pictures(6, 40, 50):
        file = io.BytesIO()
        Image.fromarray((picture * 255).astype(np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    rows = ps.from_arrays({"bytes": files})
    ops = (Flip(), Brightness(0.3), Erase())
    for layout in ("NHWC", "NCHW"):
        plain = rows.decode_images(24, layout=layout).map_batches(Augment(*ops, seed=1)).batch(6).to_numpy()
        made = rows.decode_images(24, layout=layout, mean=MEAN, std=STD)
        made = made.map_batches(Augment(*ops, seed=1, mean=MEAN, std=STD)).batch(6).to_numpy().batch_at(0)["image"]
        want = plain.batch_at(0)["image"]
        want = normalised(want) if layout == "NHWC" else normalised(want.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        assert np.abs(made - want).max() < 1e-4
        with pytest.raises(UsageError, match="black and white"):
            rows.decode_images(24, layout=layout, mean=MEAN, std=STD).map_batches(Augment(*ops)).peek(1)


@pytest.mark.parametrize("how", ["numpy", "torch", "jax"])
def test_the_axis_of_channels_is_known_from_the_shape_or_asked_for(how: str) -> None:
    images = (pictures() * 255).astype(np.uint8)
    augment = Augment(Flip(p=1.0), Rot90(), seed=3)
    want = run(augment, {"image": images}, how)["image"]
    made = run(augment, {"image": images.transpose(0, 3, 1, 2)}, how)["image"]
    assert np.array_equal(made.transpose(0, 2, 3, 1), want)
    for shape in ((3, 16, 3), (4, 4, 3), (1, 16, 1), (16, 16, 5), (7, 16, 16)):
        odd = np.zeros((2, *shape), np.uint8)
        with pytest.raises(UsageError, match="channels_first=False"):
            run(Augment(Flip()), {"image": odd}, how)
        assert run(Augment(Flip(), channels_first=False), {"image": odd}, how)["image"].shape == odd.shape


@pytest.mark.parametrize("how", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("op", GEOMETRIC, ids=lambda op: type(op).__name__)
def test_masks_move_with_their_images(op: Any, how: str) -> None:
    """The image is painted from the mask, so both must still agree where the image was not averaged."""
    mask = np.kron(np.random.default_rng(1).integers(0, 200, (5, 4, 4)), np.ones((8, 8), int)).astype(np.uint8)
    images = np.repeat(mask[..., None], 3, axis=-1)
    for shaped in (mask, mask[..., None], mask[:, None]):
        made = run(Augment(op, seed=4, masks="mask"), {"image": images, "mask": shaped}, how)
        moved = made["mask"].reshape(made["image"].shape[:3])
        assert made["mask"].dtype == np.uint8
        assert made["mask"].ndim == shaped.ndim
        assert set(np.unique(moved)) <= set(np.unique(mask)) | {0}
        agree = np.abs(moved.astype(int) - made["image"][..., 0]) <= 2
        assert agree.mean() > (0.999 if op.exact else 0.55)
        shifted = np.abs(np.roll(moved, 2, axis=2).astype(int) - made["image"][..., 0]) <= 2
        assert agree.mean() > shifted.mean() + 0.1


def test_masks_are_equal_in_all_frameworks_and_fill_is_theirs() -> None:
    mask = np.random.default_rng(2).integers(0, 20, (4, 16, 16)).astype(np.int32)
    batch = {"image": pictures(), "mask": mask}
    augment = Augment(*GEOMETRIC[:4], Brightness(), RandomResizedCrop(11), seed=5, masks=("mask",), mask_fill=255)
    made = [run(augment, batch, how) for how in ("numpy", "torch", "jax")]
    for other in made[1:]:
        assert np.array_equal(made[0]["mask"], other["mask"])
    filled = run(Augment(Crop(24, padding=8), masks="mask", mask_fill=255), batch)["mask"]
    assert (filled == 255).any()
    assert filled.dtype == np.int32


@pytest.mark.parametrize("name", ["mask", "segmentation", "boxes", "bboxes", "keypoints", "anything"])
def test_what_would_have_to_move_is_not_left_behind(name: str) -> None:
    points = name in ("boxes", "bboxes", "keypoints")
    column = np.zeros((4, 5, 4), np.float32) if points else np.zeros((4, 16, 16), np.int64)
    batch = {"image": pictures(), name: column}
    with pytest.raises(UsageError, match=f"column '{name}'"):
        run(Augment(Flip()), batch)
    assert np.array_equal(run(Augment(Brightness()), batch)[name], column)  # nothing moves
    assert np.array_equal(run(Augment(Flip(), ignore=name), batch)[name], column)
    if not points:
        assert run(Augment(Flip(), masks=name), batch)[name].shape == column.shape


def test_other_columns_may_stay() -> None:
    images = (pictures() * 255).astype(np.uint8)
    batch = {
        "image": images, "view": images.copy(), "label": np.arange(4), "mask": np.ones((4, 99), bool),
        "path": np.array(["a", "b", "c", "d"], object), "features": np.zeros((4, 80, 16), np.float32),
    }  # fmt: skip
    made = Augment(Flip(p=1.0), ignore="view")(batch, Augment().keys(range(4)))
    assert np.array_equal(made["view"], images)
    for wrong, text in (({"masks": "gone"}, "a column 'gone'"), ({"masks": "label"}, "size of their images")):
        with pytest.raises(UsageError, match=text):
            run(Augment(Flip(), **wrong), {"image": images, "label": np.arange(4)})
    with pytest.raises(UsageError, match="no mixing"):
        Augment(Mixup(), masks="mask")


def test_jit_of_augment_draws_what_numpy_draws() -> None:
    augment = Augment(
        Flip(), Crop(12, padding=2), Brightness(0.4), RandomResizedCrop(10), Noise(), seed=6, masks="mask"
    )
    batch = {"image": pictures(), "mask": np.random.default_rng(3).integers(0, 9, (4, 16, 16)).astype(np.uint8)}
    step = jax.jit(augment.jax)
    for epoch in range(3):
        keys = augment.keys(np.arange(4), epoch)
        want = augment.numpy(batch, keys)
        carried = carry_keys(batch, keys)
        made = step({name: jax.numpy.asarray(column) for name, column in carried.items()})
        assert np.abs(np.asarray(made["image"]) - want["image"]).max() < 1e-5
        assert np.array_equal(np.asarray(made["mask"]), want["mask"])
        words = jax.numpy.asarray(carried["augment_keys"])
        given = jax.jit(lambda batch, words: augment.jax(batch, keys=words))(batch, words)
        assert np.array_equal(np.asarray(given["image"]), np.asarray(made["image"]))
    assert step._cache_size() == 1
    spoiled = jax.jit(Augment(Brightness()).jax)(carry_keys({"image": normalised(pictures())}, keys))
    assert np.isnan(np.asarray(spoiled["image"])).all()


def test_the_fingerprint_of_earlier_definitions_stays() -> None:
    assert Augment(Flip(), seed=1).spec() == {
        "augment": 1, "seed": 1, "ops": [{"op": "Flip", "axis": "horizontal", "p": 0.5}], "columns": {},
        "channels_first": False,
    }  # fmt: skip
    assert Augment(Flip(), masks="m").spec() != Augment(Flip()).spec() != Augment(Flip(), std=0.5).spec()


def test_torch_tensors_in_training_loops() -> None:
    augment = Augment(Flip(), Brightness(), seed=1)
    batch = {"image": torch.from_numpy(pictures()), "mask": torch.zeros(4, 16, 16, dtype=torch.int64)}
    with pytest.raises(UsageError, match="column 'mask'"):
        augment.torch(batch, augment.keys(range(4)))
