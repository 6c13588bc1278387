"""Two random cuts of one record (image and mask, noisy and clean speech) agree, are declared apart, or refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.augment import Augment, Brightness, Flip, RandomResizedCrop, Views
from penstock.codecs.audio import wav
from penstock.core.errors import UsageError


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


RNG = np.random.default_rng(0)
PICTURES = [png(RNG.integers(0, 255, (40, 50, 3), dtype=np.uint8)) for _ in range(4)]
CLASSES = [png(RNG.integers(0, 5, (40, 50), dtype=np.uint8)) for _ in range(4)]
SOUNDS = [wav.encode(RNG.normal(size=1600).astype(np.float32) / 9, 8000) for _ in range(4)]
ROWS = ps.from_arrays({"img": PICTURES, "msk": CLASSES})
SPEECH = ps.from_arrays({"noisy": SOUNDS, "clean": SOUNDS})
RANDOM: dict[str, Any] = {"crop": "random"}
MASK: dict[str, Any] = {"column": "msk", "out": "target", "mode": "L", "dtype": "uint8", "method": "nearest"}
LEFT = ps.from_arrays({"img": PICTURES}).decode_images(16, column="img", **RANDOM)
RIGHT = ps.from_arrays({"msk": CLASSES}).decode_images(16, **MASK)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS.decode_images(16, column="img", **RANDOM).decode_images(16, **MASK, **RANDOM),
        lambda: ROWS.decode_images(16, column="img", **RANDOM).decode_images(16, **MASK, crop=None),
        lambda: ROWS.decode_images(16, **MASK).shuffle(seed=1).decode_images(16, column="img", flip=0.5),
        lambda: ps.zip([LEFT, RIGHT]),
        lambda: ps.zip([ps.concat([LEFT, LEFT]), ps.concat([RIGHT, RIGHT])]),
        lambda: ps.zip([RIGHT, LEFT.rename({"image": "photo"}).select(["photo"])]),
        lambda: SPEECH.decode_audio(8000, duration=0.1, column="noisy", out="noisy").decode_audio(
            8000, duration=0.1, column="clean", out="clean"
        ),
        lambda: SPEECH.decode_audio(8000, duration=0.1, column="noisy", out="noisy").decode_audio(8000, column="clean"),
        lambda: (
            ps.from_arrays({"video": SOUNDS, "audio": SOUNDS})
            .decode_video(2, 16, clip="random")
            .decode_audio(8000, duration=0.1)
        ),
    ],
)
def test_two_cuts_drawn_apart_are_refused_before_any_record_is_read(make: Callable[[], ps.Pipeline]) -> None:
    with pytest.raises(UsageError, match="one random cut for columns that belong together") as caught:
        make().batch(2).to_numpy()
    assert "ignore=" in str(caught.value)
    assert "masks=" in str(caught.value) or "duration=" in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.decode_images(16, column="img").decode_images(16, **MASK),
        ROWS.decode_images(16, column="img", masks="msk", **RANDOM),
        ROWS.decode_images(16, column="img", **RANDOM).decode_images(16, **MASK, **RANDOM, ignore="image"),
        ROWS.decode_images(16, column="img", **RANDOM, ignore=["msk"]).decode_images(16, **MASK),
        ROWS.decode_images(16, column="img", **RANDOM).drop("image").decode_images(16, **MASK, **RANDOM),
        ps.concat([LEFT, LEFT]),
        ps.zip([LEFT, ps.from_arrays({"msk": CLASSES}).decode_images(16, **MASK, ignore="image")]),
        ps.from_arrays({"img": PICTURES, "audio": SOUNDS})
        .decode_images(16, column="img", **RANDOM)
        .decode_audio(8000, duration=0.1),
        SPEECH.decode_audio(8000, duration=0.1, offset="start", column="noisy", out="noisy").decode_audio(
            8000, duration=0.1, offset="start", column="clean", out="clean"
        ),
    ],
)
def test_what_agrees_or_is_declared_apart_works(rows: ps.Pipeline) -> None:
    assert len(next(iter(rows.batch(2).to_numpy(threads=0).batch_at(0).values()))) == 2


def test_crops_of_a_copied_column_are_independent() -> None:
    two = ROWS.map(lambda row: {"a": row["img"], "b": row["img"]})
    views = two.decode_images(16, column="a", out="a", **RANDOM)
    batch = views.decode_images(8, column="b", out="b", **RANDOM, ignore="a").batch(4).to_numpy(threads=0).batch_at(0)
    assert batch["a"].shape == (4, 16, 16, 3)
    assert batch["b"].shape == (4, 8, 8, 3)


def test_saying_so_changes_no_row_and_no_checkpoint() -> None:
    plain = ROWS.decode_images(16, column="img", **RANDOM)
    said = ROWS.decode_images(16, column="img", **RANDOM, ignore="msk")
    assert plain.fingerprint() == said.fingerprint()
    with pytest.raises(UsageError, match="ignore="):
        ROWS.decode_images(16, column="img", ignore=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["boxes", "bbox", "keypoints"])
def test_coordinates_beside_a_decoded_picture_are_refused(name: str) -> None:
    rows = ps.from_arrays({"img": PICTURES, name: np.ones((4, 1, 4), np.float32)})
    with pytest.raises(UsageError, match=name) as caught:
        rows.decode_images(16, column="img").peek(1)
    assert f"ignore={name!r}" in str(caught.value)
    assert rows.decode_images(16, column="img", ignore=name).peek(1)[0][name].tolist() == [[1, 1, 1, 1]]


def test_an_encoded_mask_beside_a_random_crop_is_refused() -> None:
    rows = ps.from_arrays({"img": PICTURES, "mask": CLASSES})
    with pytest.raises(UsageError, match="masks='mask'"):
        rows.decode_images(16, column="img", **RANDOM).peek(1)
    rows.decode_images(16, column="img").peek(1)


IMAGES = RNG.random((4, 16, 16, 3), np.float32)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("depth", RNG.random((4, 16, 16), np.float32)),
        ("target", RNG.random((4, 16, 16, 1), np.float32)),
        ("normals", RNG.random((4, 16, 16, 3), np.float32)),
        ("photo", RNG.random((4, 3, 16, 16), np.float32)),
        ("mask", np.zeros((4, 8, 8), np.uint8)),
        ("classes", np.zeros((4, 16, 16), bool)),
    ],
)
@pytest.mark.parametrize("how", ["numpy", "torch", "jax", "views"])
def test_a_picture_beside_an_augmented_one_moves_or_is_refused(name: str, column: np.ndarray, how: str) -> None:
    augment = Augment(RandomResizedCrop(8), Flip())
    run = Views({"view": (2, augment)}) if how == "views" else getattr(augment, how)
    keys = augment.keys(np.arange(4))
    with pytest.raises(UsageError, match=f"{name!r}, which has to move"):
        run({"image": IMAGES, name: column}, keys)
    run = getattr(Augment(RandomResizedCrop(8), Flip(), ignore=name), "numpy" if how == "views" else how)
    assert np.array_equal(np.asarray(run({"image": IMAGES, name: column}, keys)[name]), column)
    assert Augment(Brightness())({"image": IMAGES, name: column}, keys)[name] is column
    if name in ("depth", "normals"):
        moved = Augment(Flip(p=1.0), masks=name)({"image": IMAGES, name: column}, keys)[name]
        assert np.array_equal(moved, column[:, :, ::-1])


def test_the_batches_of_the_guide_refuse_masks_that_would_not_move() -> None:
    import jax

    batch = {"images": IMAGES, "masks": np.zeros((4, 16, 16), np.uint8)}
    with pytest.raises(UsageError, match="'masks', which has to move"):
        ps.augment_image_batch(batch, jax.random.key(0))
    assert ps.augment_image_batch({"images": IMAGES, "labels": np.zeros(4)}, jax.random.key(0))["images"].shape[0] == 4


def test_a_random_video_crop_is_not_cached() -> None:
    rows = ps.from_arrays({"video": SOUNDS}).decode_video(2, 16, crop="random")
    with pytest.raises(UsageError, match="no random draws before .cache"):
        rows.cache(memory=1 << 20)
