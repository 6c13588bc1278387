"""Noise, rooms, pitch and SpecAugment; letterbox, shorter side, five crops and views. Equal in NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.signal import fftconvolve

import penstock as ps
from penstock.augment import (
    Augment,
    Boxes,
    FiveCrop,
    Flip,
    Letterbox,
    MixNoise,
    Pitch,
    RandomResizedCrop,
    Resize,
    RoomImpulse,
    ShorterSide,
    SpecAugment,
    Views,
)
from penstock.codecs.audio import wav
from penstock.core.errors import UsageError
from penstock.testing import assert_elastic

RNG = np.random.default_rng(8)
RATE = 8000
NOISES = [RNG.normal(0, 0.3, n).astype(np.float32) for n in (500, 4000, 9000)]
ROOMS = [
    (np.exp(-np.arange(n) / 200) * RNG.normal(0, 1, n) * (np.arange(n) > 20)).astype(np.float32) for n in (900, 300)
]
WAVES = np.stack([0.4 * np.sin(2 * np.pi * f * np.arange(4000) / RATE) for f in (200, 440, 700, 950)]).astype(
    np.float32
)


def run(augment: Augment, batch: dict[str, Any], how: str = "numpy") -> dict[str, np.ndarray]:
    keys = augment.keys(np.arange(len(next(iter(batch.values())))))
    return {name: np.asarray(column) for name, column in getattr(augment, how)(batch, keys).items()}


@pytest.mark.parametrize(
    "op", [MixNoise(NOISES), RoomImpulse(ROOMS, p=1.0), Pitch(5), MixNoise(NOISES, 0.0, p=0.5)], ids=repr
)
def test_waves_are_equal_in_all_frameworks(op: Any) -> None:
    made = run(Augment(op, seed=1), {"audio": WAVES})["audio"]
    assert not np.array_equal(made, WAVES)
    for how in ("torch", "jax"):
        assert np.abs(run(Augment(op, seed=1), {"audio": WAVES}, how)["audio"] - made).max() < 2e-5


def test_noise_is_at_the_ratio_that_why_says_and_rooms_are_convolutions() -> None:
    augment = Augment(MixNoise(NOISES, (3.0, 15.0)), seed=2)
    made, p = (
        run(augment, {"audio": WAVES})["audio"],
        augment.params({"audio": WAVES}, augment.keys(range(4)))["audio"][0],
    )
    for row in range(4):
        noise = made[row] - WAVES[row]
        snr = 10 * np.log10((WAVES[row] ** 2).mean() / (noise**2).mean())
        assert abs(snr - p["snr"][row]) < 0.01
        source = np.roll(NOISES[p["noise"][row]], -int(p["start"][row]))
        want = np.resize(source, 4000)
        assert np.corrcoef(noise, want)[0, 1] > 0.999
    silent = run(augment, {"audio": np.zeros_like(WAVES)})["audio"]
    assert not silent.any()
    rooms = Augment(RoomImpulse(ROOMS, p=1.0), seed=2)
    made, p = run(rooms, {"audio": WAVES})["audio"], rooms.params({"audio": WAVES}, rooms.keys(range(4)))["audio"][0]
    for row in range(4):
        room = ROOMS[p["response"][row]]
        want = fftconvolve(WAVES[row], room)[np.abs(room).argmax() :][:4000]
        want *= np.sqrt((WAVES[row] ** 2).mean() / (want**2).mean())
        assert np.abs(made[row] - want).max() < 1e-4


def test_pitch_moves_the_tone_and_keeps_the_duration() -> None:
    for semitones in (12.0, -12.0, 7.0):
        made = run(Augment(Pitch((semitones, semitones))), {"audio": WAVES})["audio"]
        assert made.shape == WAVES.shape
        for row, hertz in zip(made, (200, 440, 700, 950), strict=True):
            peak = np.abs(np.fft.rfft(row)).argmax() * RATE / 4000
            assert abs(peak / hertz - 2 ** (semitones / 12)) < 0.05
    assert np.array_equal(run(Augment(Pitch((0.0, 0.0))), {"audio": WAVES})["audio"], WAVES)


def test_specaugment_masks_as_published() -> None:
    mel = RNG.random((6, 40, 90)).astype(np.float32) + 1
    augment = Augment(SpecAugment(2, 10, 2, 30, time_share=0.2), seed=3, audio="mel")
    made = run(augment, {"mel": mel})["mel"]
    for row in range(6):
        masked = made[row] == 0
        bands, frames = masked.all(axis=1), masked.all(axis=0)
        assert np.array_equal(masked, bands[:, None] | frames[None, :])
        assert bands.sum() <= 20
        assert frames.sum() <= 2 * 18
    mean = run(Augment(SpecAugment(fill="mean"), seed=3, audio="mel"), {"mel": mel})["mel"]
    assert np.allclose(mean[0][made[0] == 0].mean(), mel[0].mean(), atol=0.3)
    for how in ("torch", "jax"):
        assert np.abs(run(augment, {"mel": mel}, how)["mel"] - made).max() < 1e-6


def test_masks_of_features_do_not_depend_on_the_batch() -> None:
    clips = [wav.encode(0.3 * np.sin(np.arange(2000 + 150 * i) / 9), RATE) for i in range(40)]
    audio = ps.from_arrays({"audio": clips}).shuffle(seed=1).decode_audio(RATE, features="log_mel", n_mels=32)
    augment = Augment(SpecAugment(1, 8, 2, 5), seed=1)
    rows = audio.map_batches(augment)
    assert_elastic(lambda batch: rows.batch(batch).pad(to=64), batch=4, worlds=(1, 2), threads=(0, 2))
    noisy = ps.from_arrays({"audio": clips}).decode_audio(RATE).map_batches(Augment(MixNoise(NOISES), seed=1))
    assert_elastic(lambda batch: noisy.batch(batch).pad(to=8000), batch=4, worlds=(1, 2), threads=(0, 2))
    drawn = rows.batch(4).to_numpy(threads=0).why(0, 1)["from"]["drawn"]["audio"][0]
    assert drawn["op"] == "SpecAugment"
    assert len(drawn["time_start"]) == 2


def test_letterbox_and_shorter_side_keep_the_ratio() -> None:
    image = np.zeros((2, 30, 60, 3), np.uint8)
    image[:, 5:15, 20:40] = 255
    batch = {"image": image, "boxes": np.tile(np.array([20, 5, 40, 15], np.float32), (2, 1, 1)), "mask": image[..., 0]}
    batch["boxes_count"] = np.ones(2, np.int32)
    for op, size, box in (
        (Letterbox(40, fill=0.5), (40, 40), [40 / 3, 10 + 10 / 3, 80 / 3, 20]),
        (ShorterSide(15), (15, 30), [10, 2.5, 20, 7.5]),
        (ShorterSide(60, longest=90), (45, 90), [30, 7.5, 60, 22.5]),
    ):
        augment = Augment(op, boxes=Boxes(), masks="mask", mask_fill=9)
        made = run(augment, batch)
        assert made["image"].shape == (2, *size, 3)
        assert made["mask"].shape == (2, *size)
        assert np.abs(made["boxes"][0, 0] - box).max() < 0.51
        ys, xs = np.nonzero(made["mask"][0] == 255)
        assert np.abs(made["boxes"][0, 0] - [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).max() <= 1.0
        for how in ("torch", "jax"):
            other = run(augment, batch, how)
            assert np.abs(other["image"].astype(int) - made["image"]).max() <= 1
            assert np.array_equal(other["mask"], made["mask"])
            np.testing.assert_allclose(other["boxes"], made["boxes"], atol=1e-4)
    boxed = run(Augment(Letterbox(40, fill=0.5)), {"image": image})["image"][0]
    assert (boxed[:10] == 128).all()
    assert (boxed[30:] == 128).all()
    want = np.asarray(Image.fromarray(image[0]).resize((40, 20), Image.Resampling.BILINEAR))
    assert np.abs(boxed[10:30].astype(int) - want).max() <= 1
    uneven = np.empty(2, object)
    uneven[:] = [image[0], image[0, :, :30]]
    sizes = [row.shape for row in Augment(ShorterSide(10))({"image": uneven}, Augment().keys(range(2)))["image"]]
    assert sizes == [(10, 20, 3), (10, 10, 3)]


@pytest.mark.parametrize("how", ["numpy", "torch", "jax"])
def test_five_crops(how: str) -> None:
    image = RNG.integers(0, 255, (2, 20, 24, 3), dtype=np.uint8)
    made = run(Augment(Flip(p=1.0), FiveCrop(8, flips=True), masks="m"), {"image": image, "m": image[..., 0]}, how)
    assert made["image"].shape == (2, 10, 8, 8, 3)
    turned = image[:, :, ::-1]
    assert np.array_equal(made["image"][:, 3], turned[:, 12:, 16:])
    assert np.array_equal(made["image"][:, 4], turned[:, 6:14, 8:16])
    assert np.array_equal(made["image"][:, 9], turned[:, 6:14, 8:16][:, :, ::-1])
    assert np.array_equal(made["m"], made["image"][..., 0])
    planes = run(Augment(FiveCrop(8)), {"image": image.transpose(0, 3, 1, 2)}, how)["image"]
    assert planes.shape == (2, 5, 3, 8, 8)


def test_views_of_each_image_are_drawn_apart() -> None:
    images = RNG.integers(0, 255, (40, 24, 24, 3), dtype=np.uint8)
    crops = {"large": (2, Augment(RandomResizedCrop(16), Flip())), "small": (3, Augment(RandomResizedCrop(8)))}
    rows = ps.from_arrays({"image": images, "label": np.arange(40)}).shuffle(seed=1).map_batches(Views(crops))
    batch = rows.batch(4).to_numpy(threads=0).batch_at(0)
    assert batch["large"].shape == (4, 2, 16, 16, 3)
    assert batch["small"].shape == (4, 3, 8, 8, 3)
    assert "image" not in batch
    assert not np.array_equal(batch["large"][:, 0], batch["large"][:, 1])
    assert_elastic(rows.batch, batch=4, worlds=(1, 2), threads=(0, 2))
    drawn = rows.batch(4).to_numpy(threads=0).why(0, 0)["from"]["drawn"]
    assert [len(drawn[name]) for name in ("large", "small")] == [2, 3]


def test_what_is_refused() -> None:
    mel, image = np.ones((2, 8, 9), np.float32), np.zeros((2, 8, 9, 3), np.uint8)
    for make, text in (
        (lambda: MixNoise([]), "recordings"),
        (lambda: MixNoise([np.zeros((2, 2))]), "one-dimensional"),
        (lambda: MixNoise([np.array([np.nan])]), "NaN"),
        (lambda: MixNoise(NOISES, snr=(5, 200)), "snr"),
        (lambda: run(Augment(MixNoise(NOISES)), {"audio": mel}), "waveforms"),
        (lambda: run(Augment(SpecAugment()), {"audio": WAVES}), "spectrogram"),
        (lambda: SpecAugment(fill="noise"), "fill"),
        (lambda: Pitch(30), "semitones"),
        (lambda: ShorterSide(0), "size"),
        (lambda: Augment(FiveCrop(4), Resize(3)), "last operation"),
        (lambda: run(Augment(FiveCrop(20)), {"image": image}), "at least 20 x 20"),
        (lambda: Views({"a": 3}), "count, Augment"),  # type: ignore[dict-item]
    ):
        with pytest.raises(UsageError, match=text):
            make()
    assert Augment(MixNoise(NOISES)).spec() != Augment(MixNoise(NOISES[:2])).spec()
