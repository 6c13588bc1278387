"""What each operation does, against plain definitions and other libraries."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.augment import (  # fmt: skip
    AudioNoise,
    Augment,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Cutmix,
    Erase,
    Flip,
    FrequencyMask,
    Gain,
    Hue,
    Mixup,
    Noise,
    RandomResizedCrop,
    Resize,
    Rot90,
    Saturation,
    Shift,
    Speed,
    TimeMask,
)
from penstock.core.errors import UsageError


def run(op: Any, column: np.ndarray, name: str = "image", **more: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    augment = Augment(op, seed=8)
    batch = {name: column, **more}
    keys = augment.keys(np.arange(len(column)))
    return augment(batch, keys)[name], augment.params(batch, keys)[name][0]


def test_flip_and_rot90(images: np.ndarray) -> None:
    made, drawn = run(Flip(), images)
    assert 0 < drawn["on"].sum() < len(images)
    for row, on, before in zip(made, drawn["on"], images, strict=True):
        np.testing.assert_array_equal(row, np.fliplr(before) if on else before)
    np.testing.assert_array_equal(run(Flip("vertical", p=1.0), images)[0], images[:, ::-1])
    many = np.repeat(images, 4, axis=0)
    made, drawn = run(Rot90(), many)
    assert set(drawn["k"].tolist()) == {0, 1, 2, 3}
    for row, k, before in zip(made, drawn["k"], many, strict=True):
        np.testing.assert_array_equal(row, np.rot90(before, k))


def test_crop_takes_the_window_it_drew(images: np.ndarray) -> None:
    made, drawn = run(Crop((12, 10), padding=3, fill=1.0), images)
    padded = np.pad(images, ((0, 0), (3, 3), (3, 3), (0, 0)), constant_values=1.0)
    for i, (y, x) in enumerate(zip(drawn["y"] + 3, drawn["x"] + 3, strict=True)):
        np.testing.assert_array_equal(made[i], padded[i, y : y + 12, x : x + 10])
    assert len(set(drawn["y"].tolist())) > 1


@pytest.mark.parametrize("size", [(8, 8), (7, 21), (40, 33), (16, 16)])
def test_resize_is_pillows_bilinear(images: np.ndarray, size: tuple[int, int]) -> None:
    pixels = (images * 255).astype(np.uint8)
    made, _ = run(Resize(size), pixels)
    for row, before in zip(made, pixels, strict=True):
        theirs = np.asarray(Image.fromarray(before).resize(size[::-1], Image.Resampling.BILINEAR))
        assert np.abs(row.astype(int) - theirs).max() <= 1


def test_resized_crop_is_pillows_resize_of_the_box(images: np.ndarray) -> None:
    pixels = (images * 255).astype(np.uint8)
    made, box = run(RandomResizedCrop((9, 11)), pixels)
    for i, (y, x, h, w) in enumerate(zip(*(box[k].tolist() for k in "yxhw"), strict=True)):
        part = Image.fromarray(pixels[i, y : y + h, x : x + w])
        theirs = np.asarray(part.resize((11, 9), Image.Resampling.BILINEAR))
        assert np.abs(made[i].astype(int) - theirs).max() <= 1


def test_brightness_contrast_saturation(images: np.ndarray) -> None:
    made, p = run(Brightness(0.3), images)
    f = p["factor"][:, None, None, None]
    np.testing.assert_allclose(made, np.clip(images * f, 0, 1), atol=1e-6)
    made, p = run(Contrast(0.3), images)
    f, mean = p["factor"][:, None, None, None], images.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(made, np.clip((images - mean) * f + mean, 0, 1), atol=1e-6)
    made, p = run(Saturation((0, 0)), images)
    grey = images @ np.array([0.299, 0.587, 0.114], np.float32)
    np.testing.assert_allclose(made, np.repeat(grey[..., None], 3, -1), atol=1e-6)


def test_hue_is_hsv_rotation(images: np.ndarray) -> None:
    made, p = run(Hue(0.5), images)
    for i in range(len(images)):
        for y, x in ((0, 0), (3, 9), (15, 15), (8, 2)):
            h, s, v = colorsys.rgb_to_hsv(*images[i, y, x].tolist())
            expected = colorsys.hsv_to_rgb((h + float(p["factor"][i])) % 1.0, s, v)
            np.testing.assert_allclose(made[i, y, x], expected, atol=2e-5)


def test_noise_has_the_level_it_drew() -> None:
    grey = np.full((8, 64, 64, 3), 0.5, np.float32)
    made, p = run(Noise((0.01, 0.1)), grey)
    np.testing.assert_allclose((made - 0.5).std((1, 2, 3)), p["level"], rtol=0.03)
    assert abs(np.corrcoef(made[0].ravel(), made[1].ravel())[0, 1]) < 0.04


def test_blur_is_a_gaussian_and_keeps_the_sum() -> None:
    dot = np.zeros((1, 31, 31, 1), np.float32)
    dot[0, 15, 15] = 1
    made, p = run(Blur((1.0, 2.0), p=1.0), dot)
    place = np.arange(31) - 15.0
    line = np.exp(-0.5 * (place / p["sigma"][0]) ** 2) * (np.abs(place) <= 6)
    line /= line.sum()
    np.testing.assert_allclose(made[0, :, :, 0], np.outer(line, line), atol=1e-6)
    flat, _ = run(Blur(p=1.0), np.full((3, 9, 9, 1), 0.25, np.float32))
    np.testing.assert_allclose(flat, 0.25, atol=1e-6)


def test_erase_fills_its_box_only(images: np.ndarray) -> None:
    made, box = run(Erase(p=1.0, fill=0.5), (images * 255).astype(np.uint8))
    for i, (y, x, h, w) in enumerate(zip(*(box[k].tolist() for k in "yxhw"), strict=True)):
        expected = (images[i] * 255).astype(np.uint8)
        expected[y : y + h, x : x + w] = 128
        np.testing.assert_array_equal(made[i], expected)
        assert 0 < h * w < 0.5 * 16 * 16


def test_mixup_mixes_images_and_one_hot_labels(images: np.ndarray) -> None:
    labels = np.arange(6) % 4
    batch = {"image": images, "labels": labels}
    augment = Augment(Mixup(0.4, classes=4), seed=8)
    keys = augment.keys(np.arange(6))
    made, p = augment(batch, keys), augment.params(batch, keys)["image"][0]
    lam, other = p["lam"], p["partner"]
    assert sorted(other.tolist()) == list(range(6))
    assert (other != np.arange(6)).all()
    for i in range(6):
        np.testing.assert_allclose(made["image"][i], lam[i] * images[i] + (1 - lam[i]) * images[other[i]], atol=1e-6)
        one_hot = np.eye(4)
        np.testing.assert_allclose(
            made["labels"][i], lam[i] * one_hot[labels[i]] + (1 - lam[i]) * one_hot[labels[other[i]]], atol=1e-6
        )


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_outside_of_the_classes_are_refused(images: np.ndarray, label: int) -> None:
    """-1 used to become the last class."""
    augment = Augment(Mixup(classes=4))
    batch = {"image": images, "labels": np.array([0, 1, 2, 3, 0, label])}
    with pytest.raises(UsageError, match="labels from 0 to 3"):
        augment(batch, augment.keys(np.arange(6)))


def test_cutmix_pastes_and_counts_what_stays(images: np.ndarray) -> None:
    batch = {"image": images, "y": np.arange(6)}
    augment = Augment(Cutmix(labels="y"), seed=8)
    keys = augment.keys(np.arange(6))
    made, p = augment(batch, keys), augment.params(batch, keys)["image"][0]
    np.testing.assert_array_equal(made["y"], np.arange(6))
    np.testing.assert_array_equal(made["y_partner"], p["partner"])
    for i, (y, x, h, w) in enumerate(zip(*(p[k].tolist() for k in "yxhw"), strict=True)):
        expected = images[i].copy()
        expected[y : y + h, x : x + w] = images[p["partner"][i], y : y + h, x : x + w]
        np.testing.assert_array_equal(made["image"][i], expected)
        assert made["lam"][i] == pytest.approx(1 - h * w / 256)
    assert p["h"].max() > 0


def test_gain_shift_and_masks(waves: np.ndarray) -> None:
    made, p = run(Gain(), waves, "audio")
    np.testing.assert_allclose(made, waves * p["factor"][:, None], atol=1e-7)
    made, p = run(Shift(0.2), waves, "audio")
    for row, by, before in zip(made, p["shift"], waves, strict=True):
        np.testing.assert_array_equal(row, np.roll(before, by))
    assert np.abs(p["shift"]).max() <= 400
    assert len(set(p["shift"].tolist())) > 1
    made, p = run(Shift((-0.3, -0.2), wrap=False), waves, "audio")
    for row, by, before in zip(made, p["shift"], waves, strict=True):
        np.testing.assert_array_equal(row, np.concatenate([before[-by:], np.zeros(-by, np.float32)]))
    ones = np.ones((4, 10, 50), np.float32)
    made, p = run(TimeMask((0.2, 0.2)), ones, "audio")
    assert ((made == 0).all(1).sum(1) == 10).all()
    assert (made.sum((1, 2)) == 400).all()
    made, p = run(FrequencyMask((0.3, 0.3)), ones, "audio")
    assert ((made == 0).all(2).sum(1) == 3).all()
    assert (made.sum((1, 2)) == 350).all()


def test_audio_noise_level(waves: np.ndarray) -> None:
    made, p = run(AudioNoise((0.1, 0.2)), np.repeat(waves, 5, axis=1), "audio")
    np.testing.assert_allclose((made - np.repeat(waves, 5, axis=1)).std(1), p["level"], rtol=0.05)


def test_speed_moves_the_pitch(waves: np.ndarray) -> None:
    """A sine of f Hz played at `rate` is a sine of f * rate Hz, within the filter's ripple; past the end is silence."""
    made, p = run(Speed((0.8, 1.25)), waves, "audio")
    t = np.arange(2000) / 8000
    for row, rate, f in zip(made, p["rate"] / 65536, (200, 440, 700, 1000), strict=True):
        inside = int(min(2000, 2000 / rate)) - 40
        expected = 0.5 * np.sin(2 * np.pi * f * rate * t)
        np.testing.assert_allclose(row[40:inside], expected[40:inside], atol=5e-3)
        assert (row[int(2000 / rate) + 1 :] == 0).all()
