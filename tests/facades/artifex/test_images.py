"""Synthetic images, digits, the configuration and `ImageModality.process`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from penstock import UsageError
from penstock.codecs.image.filter_resize import resize_images
from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset, create_image_dataset
from penstock.facades.artifex.image.modality import ImageModality, ImageModalityConfig, ImageRepresentation
from penstock.facades.artifex.image.synthetic import PATTERNS, SyntheticImageDataset

RGB = ImageModalityConfig(height=32, width=32)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ImageRepresentation)
@pytest.mark.parametrize("size", [(32, 32), (5, 40), (1, 1)])
def test_shape_range_and_dtype(pattern, kind, size):
    config = ImageModalityConfig(representation=kind, height=size[0], width=size[1])
    images = SyntheticImageDataset(config, 20, pattern, rngs=3).get_batch(7)["images"]
    assert isinstance(images, jnp.ndarray)
    assert images.shape == (7, *size, {"rgb": 3, "grayscale": 1, "rgba": 4}[kind.value])
    assert images.dtype == jnp.float32
    assert float(images.min()) >= 0.0
    assert float(images.max()) <= 1.0
    if kind is ImageRepresentation.RGBA and pattern != "random":
        assert bool((images[..., 3] == 1).all())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_images_of_a_pattern_differ_and_do_not_depend_on_the_batch(pattern):
    dataset = SyntheticImageDataset(RGB, 50, pattern, rngs=0)
    images = dataset.read(np.arange(50))["images"]
    assert len({image.tobytes() for image in images}) > 45  # two boards may coincide
    alone = np.concatenate([dataset.read(np.array([i]))["images"] for i in (49, 3)])
    np.testing.assert_array_equal(alone, images[[49, 3]])
    np.testing.assert_array_equal(np.asarray(dataset[3]["images"]), images[3])


def test_seed_and_split_change_the_data_and_size_does_not():
    first = SyntheticImageDataset(RGB, 10, rngs=0).read(np.arange(10))["images"]
    assert not np.array_equal(SyntheticImageDataset(RGB, 10, rngs=1).read(np.arange(10))["images"], first)
    assert not np.array_equal(SyntheticImageDataset(RGB, 10, split="test", rngs=0).read(np.arange(10))["images"], first)
    np.testing.assert_array_equal(SyntheticImageDataset(RGB, 99, rngs=0).read(np.arange(10))["images"], first)


def test_gradient_spans_the_range_in_many_directions():
    ramp = SyntheticImageDataset(RGB, 200, "gradient").read(np.arange(200))["images"][..., 0]
    np.testing.assert_allclose(ramp.min(axis=(1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(ramp.max(axis=(1, 2)), 1, atol=1e-6)
    corners = {int(one.reshape(-1).argmax()) for one in ramp}
    assert corners >= {0, 31, 31 * 32, 31 * 32 + 31}


def test_checkerboard_has_two_values_and_equal_squares():
    boards = SyntheticImageDataset(RGB, 100, "checkerboard").read(np.arange(100))["images"][..., 0]
    assert set(np.unique(boards)) == {0.0, 1.0}
    for board in boards:
        cuts = np.flatnonzero(np.diff(board[0]))
        assert len(set(np.diff(cuts))) <= 1
        assert (board == board[0]).all(axis=1).any()
        assert (board[0] != board).all(axis=1).any()


def test_circles_vary_independently():
    discs = SyntheticImageDataset(RGB, 300, "circles").read(np.arange(300))["images"].mean(axis=-1) > 0.5
    area = discs.sum(axis=(1, 2))
    y = (discs * np.arange(32)[:, None]).sum(axis=(1, 2)) / area
    x = (discs * np.arange(32)).sum(axis=(1, 2)) / area
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.2
    assert abs(np.corrcoef(x, area)[0, 1]) < 0.2
    assert np.ptp(area) > 100


def test_not_normalised_images_are_pixels_up_to_255():
    config = ImageModalityConfig(height=16, normalize=False)
    images = SyntheticImageDataset(config, 10, "random").read(np.arange(10))["images"]
    assert 250 < images.max() <= 255


def test_unknown_names_are_refused_while_building():
    with pytest.raises(UsageError, match=r"pattern_type one of 'random', 'gradient', 'checkerboard', 'circles'"):
        SyntheticImageDataset(RGB, 10, "stripes")
    with pytest.raises(UsageError, match=r"dataset_type one of 'synthetic', 'mnist_like'"):
        create_image_dataset("cifar")
    with pytest.raises(UsageError, match="representation one of"):
        ImageModalityConfig(representation="cmyk")
    with pytest.raises(UsageError, match="height of at least 1"):
        ImageModalityConfig(height=0)
    with pytest.raises(UsageError, match="resize_method one of"):
        ImageModalityConfig(resize_method="magic")
    with pytest.raises(UsageError, match="at least 0"):
        SyntheticImageDataset(RGB, -1)


def test_every_two_digit_classes_can_be_told_apart():
    dataset = MNISTLikeDataset(dataset_size=60000, rngs=0)
    train, test = dataset.read(np.arange(1000)), dataset.read(np.arange(1000, 2000))
    flat = {name: part["images"].reshape(1000, -1) for name, part in (("train", train), ("test", test))}
    centres = np.stack([flat["train"][train["labels"] == k].mean(axis=0) for k in range(10)])
    guess = ((flat["test"][:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    assert (guess == test["labels"]).mean() > 0.95
    for k in range(10):
        mine = test["labels"] == k
        assert (guess[mine] == k).mean() > 0.9, k
    assert np.bincount(test["labels"], minlength=10).min() > 60


def test_digits_shapes_and_classes():
    config = ImageModalityConfig(representation=ImageRepresentation.GRAYSCALE, height=28, width=28)
    batch = MNISTLikeDataset(config, 100, num_classes=3, rngs=1).get_batch(64)
    assert batch["images"].shape == (64, 28, 28, 1)
    assert batch["labels"].dtype == jnp.int32
    assert set(np.unique(batch["labels"])) == {0, 1, 2}
    with pytest.raises(UsageError, match="num_classes from 1 to 10"):
        MNISTLikeDataset(config, num_classes=11)
    assert MNISTLikeDataset(ImageModalityConfig(height=32), 5).get_batch(2)["images"].shape == (2, 32, 32, 3)


@pytest.mark.parametrize(("method", "pillow"), [("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)])
@pytest.mark.parametrize("size", [(16, 20), (37, 50), (90, 101)])
def test_resizing_equals_pillow(method, pillow, size):
    image = np.random.default_rng(0).random((53, 47), np.float32)
    ours = resize_images(image[None, ..., None], *size, method)[0, ..., 0]
    theirs = np.asarray(Image.fromarray(image).resize(size[::-1], pillow))
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_nearest_takes_pixels_as_they_are():
    image = np.arange(16).reshape(1, 4, 4, 1)
    assert resize_images(image, 2, 2, "nearest")[0, ..., 0].tolist() == [[5, 7], [13, 15]]


@pytest.mark.parametrize(
    ("raw", "white"),
    [
        (np.full((2, 50, 40, 3), 255, np.uint8), 1.0),
        (np.full((2, 50, 40, 3), 51, np.uint8), 0.2),
        (np.full((2, 50, 40, 3), 65535, np.uint16), 1.0),
        (np.full((2, 50, 40, 3), 0.25, np.float32), 0.25),
        (np.full((2, 50, 40, 3), 127.5, np.float64), 0.5),
        (np.full((2, 50, 40, 3), 255, np.int64), 1.0),
    ],
)
def test_process_resizes_and_normalises(raw, white):
    made = ImageModality(config=RGB, rngs=0).process(raw)
    assert made.shape == (2, 32, 32, 3)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(made), white, rtol=1e-5)


def test_process_one_image_other_channels_and_other_ranges():
    grey = ImageModality(ImageModalityConfig(representation="grayscale", height=8))
    assert grey.process(np.zeros((10, 10, 4), np.uint8)).shape == (8, 8, 1)
    green = np.zeros((1, 8, 8, 3), np.uint8)
    green[..., 1] = 255
    np.testing.assert_allclose(np.asarray(grey.process(green)), 0.587, rtol=1e-5)
    rgba = ImageModality(ImageModalityConfig(representation="rgba", height=8)).process(np.zeros((2, 9, 9, 1)))
    assert rgba.shape == (2, 8, 8, 4)
    assert float(rgba[..., 3].min()) == 1.0
    signed = ImageModality(RGB).process(np.full((1, 4, 4, 3), -1.0), value_range=(-1, 1))
    assert float(signed.max()) == 0.0
    loud = ImageModality(ImageModalityConfig(height=4, normalize=False)).process(np.full((1, 4, 4, 3), 200, np.uint8))
    np.testing.assert_allclose(np.asarray(loud), 200, rtol=1e-5)


def test_process_refuses_what_it_cannot_know():
    modality = ImageModality(RGB)
    with pytest.raises(UsageError, match="from 0 to 1 or from 0 to 255"):
        modality.process(np.full((1, 4, 4, 3), -0.5))
    with pytest.raises(UsageError, match="from 0 to 1 or from 0 to 255"):
        modality.process(np.full((1, 4, 4, 3), np.nan))
    with pytest.raises(UsageError, match=r"\(N, H, W, C\)"):
        modality.process(np.zeros((4, 4)))
    with pytest.raises(UsageError, match="with 3 channels"):
        modality.process(np.zeros((1, 4, 4, 2)))
