"""`Augment` on columns and in pipelines: order independence, layouts, columns of different sizes, errors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.augment import (  # fmt: skip
    AudioNoise,
    Augment,
    Blur,
    Brightness,
    Crop,
    Cutmix,
    Flip,
    Gain,
    Mixup,
    Noise,
    RandomResizedCrop,
    Resize,
    Rot90,
    Shift,
    TokenMask,
    carry_keys,
)
from penstock.core.errors import UsageError

OPS = (Flip(), Rot90(), RandomResizedCrop(12), Brightness(0.3), Noise(0.1), Blur())


def test_rows_do_not_depend_on_order_or_batch_size(images: np.ndarray) -> None:
    augment = Augment(*OPS, seed=5)
    keys = augment.keys(np.arange(6))
    whole = augment({"image": images}, keys)["image"]
    order = np.array([4, 2, 0, 5, 1, 3])
    np.testing.assert_array_equal(augment({"image": images[order]}, keys[order])["image"], whole[order])
    parts = [augment({"image": images[i : i + 2]}, keys[i : i + 2])["image"] for i in (0, 2, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    jaxed = augment.jax({"image": images[order]}, keys[order])["image"]
    np.testing.assert_allclose(np.asarray(jaxed), whole[order], atol=1e-5)


def test_a_mixing_partner_is_the_same_record_in_any_order(images: np.ndarray) -> None:
    augment = Augment(Mixup(1.0), seed=5)
    keys, order = augment.keys(np.arange(6)), np.array([4, 2, 0, 5, 1, 3])
    batch = {"image": images, "labels": np.arange(6)}
    whole = augment(batch, keys)
    turned = augment({k: v[order] for k, v in batch.items()}, keys[order])
    for name in ("image", "labels_partner", "lam"):
        np.testing.assert_array_equal(turned[name], whole[name][order])


def pipeline(n: int = 24) -> Any:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (n, 16, 16, 3), np.uint8)
    return ps.from_arrays({"image": pictures, "labels": np.arange(n) % 3, "id": np.arange(n)})


def by_id(loader: Any) -> dict[int, bytes]:
    return {int(i): image.tobytes() for batch in loader for i, image in zip(batch["id"], batch["image"], strict=True)}


def test_in_a_pipeline_the_same_record_is_augmented_the_same_way() -> None:
    augment = Augment(*OPS, seed=5)
    base = by_id(pipeline().map_batches(augment).batch(8).to_numpy())
    assert len(base) == 24
    assert by_id(pipeline().map_batches(augment).batch(6).to_numpy()) == base
    assert by_id(pipeline().map_batches(augment).shuffle().batch(4).to_numpy()) == base
    for threads in (0, 1, 4):
        assert by_id(pipeline().map_batches(augment).batch(8).to_numpy(threads=threads)) == base
    other = by_id(pipeline().map_batches(Augment(*OPS, seed=6)).batch(8).to_numpy())
    assert sum(other[i] == base[i] for i in base) == 0


def test_worlds_resume_and_epochs() -> None:
    augmented = pipeline().shuffle(seed=3).map_batches(Augment(*OPS, seed=5)).batch(8)
    base = by_id(augmented.to_numpy())
    for world in (2, 4):
        parts = [by_id(augmented.shard(rank, world).to_numpy()) for rank in range(world)]
        assert {k: v for part in parts for k, v in part.items()} == base
    loader = augmented.to_numpy()
    first = iter(loader)
    head = by_id([next(first)])
    again = augmented.to_numpy()
    again.load_state_dict(loader.state_dict())
    tail = by_id(again)
    assert len(tail) == 16
    assert head | tail == base
    twice = by_id(again)
    assert len(twice) == 24
    assert sum(twice[i] == base[i] for i in base) == 0, "another epoch, another augmentation"


def test_whole_batches_can_be_mixed_in_a_pipeline() -> None:
    augment = Augment(Cutmix(classes=3), seed=1)
    batch = next(iter(pipeline().batch(8).map_batches(augment, whole=True).to_numpy()))
    assert batch["labels"].shape == (8, 3)
    np.testing.assert_allclose(batch["labels"].sum(1), 1, atol=1e-6)


def test_the_definition_is_part_of_the_fingerprint() -> None:
    def state(augment: Augment) -> Any:
        return pipeline().map_batches(augment).batch(8).to_numpy().state_dict()

    assert state(Augment(Flip())) == state(Augment(Flip()))
    assert state(Augment(Flip())) != state(Augment(Flip(p=0.4)))
    assert state(Augment(Flip())) != state(Augment(Flip(), seed=1))


def test_spec_is_json_and_survives_pickling() -> None:
    augment = Augment(*OPS, TokenMask(1, special=(3, 0)), seed=2, image="photo")
    again = pickle.loads(pickle.dumps(augment))
    assert json.loads(json.dumps(augment.spec())) == again.spec()
    assert again.spec()["columns"] == {"image": "photo"}
    assert again.spec()["ops"][-1]["special"] == [0, 3]


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_keys_travel_in_the_batch_to_the_device(target: str) -> None:
    """Augmenting on the device after the loader equals augmenting on the host with the very same keys."""
    augment = Augment(*OPS, seed=5)
    seen: list[np.ndarray] = []

    def note(columns: Any, keys: Any) -> Any:
        seen.append(keys.copy())
        return carry_keys(columns, keys)

    loader = pipeline(8).map_batches(note).batch(8)
    batch = next(iter(loader.to_torch() if target == "torch" else loader.to_jax()))
    made = getattr(augment, target)(batch)["image"]
    plain = next(iter(pipeline(8).batch(8).to_numpy()))
    host = augment(plain, np.concatenate(seen)[:8])["image"]
    assert np.abs(np.asarray(made).astype(int) - host).max() <= 1


def test_layouts(images: np.ndarray) -> None:
    keys = Augment().keys(np.arange(6))
    usual = Augment(*OPS)({"images": images}, keys)["images"]
    first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    turned = Augment(*OPS, channels_first=True)
    np.testing.assert_array_equal(turned({"images": first}, keys)["images"], usual.transpose(0, 3, 1, 2))
    assert turned.torch({"images": torch.from_numpy(first)}, keys)["images"].shape == (6, 3, 12, 12)
    assert turned.jax({"images": first}, keys)["images"].shape == (6, 3, 12, 12)
    grey = Augment(Crop(8), Noise())
    for made in (grey({"image": images[..., 0]}, keys), grey.torch({"image": images[..., 0]}, keys)):
        assert made["image"].shape == (6, 8, 8)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32, np.float64])
def test_dtype_and_shape_are_kept_and_the_input_is_not_written(images: np.ndarray, dtype: Any) -> None:
    ops = (Flip(), Rot90(), Brightness(0.3), Noise(0.1), Blur())
    before = (images * np.iinfo(dtype).max).astype(dtype) if np.dtype(dtype).kind == "u" else images.astype(dtype)
    kept = before.copy()
    before.flags.writeable = False
    augment = Augment(*ops)
    made = augment({"image": before, "other": np.arange(6)}, augment.keys(np.arange(6)))
    assert made["image"].dtype == dtype
    assert made["image"].shape == before.shape
    assert made["image"].flags.c_contiguous
    for op in ops:  # read-only, so a kernel that writes into what it was given raises
        Augment(op)({"image": before}, augment.keys(np.arange(6)))
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(made["other"], np.arange(6))


def test_images_of_different_sizes_one_by_one(images: np.ndarray) -> None:
    column = np.empty(3, object)
    column[:] = [images[0], images[1, :9], images[2, :, :11]]
    augment = Augment(RandomResizedCrop(8), Noise())
    keys = augment.keys(np.arange(3))
    made = augment({"image": column}, keys)["image"]
    assert made.shape == (3, 8, 8, 3)
    alone = augment({"image": images[1:2, :9]}, keys[1:2])["image"][0]
    np.testing.assert_array_equal(made[1], alone)
    with pytest.raises(UsageError, match="images of one size to mix"):
        Augment(Mixup())({"image": column, "labels": np.arange(3)}, keys)


def test_ragged_audio(waves: np.ndarray) -> None:
    ragged = ps.Ragged.of([waves[0], waves[1, :500], waves[2, :7]])
    augment = Augment(Gain(), Shift(), AudioNoise())
    keys = augment.keys(np.arange(3))
    made = augment({"audio": ragged}, keys)["audio"]
    assert made.lengths.tolist() == [2000, 500, 7]
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made[1], augment({"audio": waves[1:2, :500]}, keys[1:2])["audio"][0])
    with pytest.raises(UsageError, match="rows of one shape in column 'audio'"):
        augment.torch({"audio": ragged}, keys)


def test_images_audio_and_tokens_together(images: np.ndarray, waves: np.ndarray) -> None:
    batch = {"image": images[:4], "audio": waves, "text": np.full((4, 9), 7), "name": np.array(list("abcd"), object)}
    augment = Augment(Flip(p=1.0), Gain((0, 0)), TokenMask(1, special=(), rate=1.0))
    made = augment(batch, augment.keys(np.arange(4)))
    np.testing.assert_array_equal(made["image"], images[:4, :, ::-1])
    assert not made["audio"].any()
    assert (made["text"] == 1).all()
    assert made["name"].tolist() == list("abcd")


def test_mixing_twice_needs_one_hot_labels(images: np.ndarray) -> None:
    with pytest.raises(UsageError) as caught:
        Augment(Mixup(), Cutmix())
    assert caught.value.expected == "classes= in each of several mixing operations"
    augment = Augment(Mixup(classes=3), Cutmix(classes=3))
    made = augment({"image": images, "labels": np.arange(6) % 3}, augment.keys(np.arange(6)))
    np.testing.assert_allclose(made["labels"].sum(1), 1, atol=1e-6)


KEYS = Augment().keys(np.arange(6))
IMAGE_PLACE, ONE_KEY = "Augment, image operations", "one uint64 key for each of 6 rows"
ERRORS = [
    (lambda x: Augment(Flip), "augment operations", "Augment(...)"),
    (lambda x: Augment(Flip())({"x": x}, KEYS), "a column called one of image, images", IMAGE_PLACE),
    (lambda x: Augment(Flip(), image="a")({"x": x}, KEYS), "a column 'a'", IMAGE_PLACE),
    (lambda x: Augment(Flip())({"image": x}), ONE_KEY, "Augment"),
    (lambda x: Augment(Flip())({"image": x}, np.arange(6)), ONE_KEY, "Augment"),
    (lambda x: Augment(Flip())({"image": x}, KEYS[:5]), ONE_KEY, "Augment"),
    (lambda x: Augment(Mixup())({"image": x}, KEYS), "a column 'labels' to mix along", "augment operation Mixup"),
    (lambda x: Augment(Flip())({"image": x[:, 0, 0]}, KEYS), "images (N, H, W, C) or (N, H, W)", IMAGE_PLACE),
    (
        lambda x: Augment(Gain())({"audio": x[:, 0, 0, 0]}, KEYS),
        "audio (N, samples) or (N, bands, frames)",
        "Augment, audio operations",
    ),
]


@pytest.mark.parametrize(("call", "expected", "where"), ERRORS, ids=[e[1] for e in ERRORS])
def test_errors_have_four_parts(call: Any, expected: str, where: str, images: np.ndarray) -> None:
    with pytest.raises(UsageError) as caught:
        call(images)
    assert caught.value.expected == expected
    assert caught.value.where == where
    assert caught.value.got
    assert caught.value.fix


def test_no_framework_is_imported_on_the_host() -> None:
    code = (
        "import sys, numpy as np\n"
        "from penstock.augment import Augment, Flip, Noise, Resize\n"
        "a = Augment(Flip(), Noise(), Resize(4))\n"
        "a({'image': np.zeros((2, 8, 8, 3))}, a.keys([0, 1]))\n"
        "import penstock.facades.artifex.augment\n"
        "print([m for m in ('torch', 'jax', 'cv2', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_device_arrays_pass_through(images: np.ndarray) -> None:
    augment = Augment(Resize(8), Flip())
    keys = augment.keys(np.arange(6))
    host = augment({"image": images}, keys)["image"]
    given = {"image": jax.numpy.asarray(images), "other": jax.numpy.arange(6)}
    np.testing.assert_allclose(np.asarray(augment.jax(given, keys)["image"]), host, atol=1e-5)
    tensor = augment.torch({"image": torch.from_numpy(images)}, keys)["image"]
    np.testing.assert_allclose(tensor.numpy(), host, atol=1e-5)
