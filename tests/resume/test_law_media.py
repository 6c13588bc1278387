"""The law for pictures and sound: order, crops, slices and augmentation depend on nothing but the plan."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import Pipeline
from penstock.augment import Augment, Brightness, Gain, Noise
from penstock.codecs.audio import wav
from penstock.read import read_audio, read_images
from penstock.testing import assert_elastic, assert_exact_resume

N = 40


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for i in range(N):
        file = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8))
        small.resize((40 + i, 64 - i), Image.Resampling.BICUBIC).save(file, "JPEG")
        (root / f"{i % 3}_{i:02d}.jpg").write_bytes(file.getvalue() if i % 9 != 4 else b"broken")
    return root


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sounds")
    for i in range(N):
        samples = 0.5 * np.sin(np.arange(300 + 37 * i) * (0.05 + 0.01 * i))
        (root / f"{i % 10}_{i:02d}.wav").write_bytes(wav.encode(samples, 8000) if i % 9 != 4 else b"broken")
    return root


LIGHT = Augment(Brightness(), Noise(), seed=2)
LOUD = Augment(Gain(), seed=2)

IMAGES: dict[str, Callable[[Path, int], Pipeline]] = {
    "random crops": lambda root, b: (
        read_images(root, "name").shuffle(seed=4).decode_images(16, crop="random", dtype="uint8").skip_errors().batch(b)
    ),
    "lanes": lambda root, b: (
        read_images(root, "name")
        .shuffle(seed=4, lanes=4, block=5, window=2)
        .decode_images(16, crop="random", dtype="uint8")
        .skip_errors()
        .batch(b)
    ),
    "augmented": lambda root, b: (
        read_images(root, "name")
        .shuffle(seed=4)
        .decode_images(16, crop="random")
        .skip_errors()
        .map_batches(LIGHT)
        .batch(b)
    ),
}
SOUNDS: dict[str, Callable[[Path, int], Pipeline]] = {
    "random slices": lambda root, b: (
        read_audio(root, "name").shuffle(seed=4).decode_audio(16000, duration=0.05).skip_errors().batch(b)
    ),
    "whole and padded": lambda root, b: (
        read_audio(root, "name").shuffle(seed=4).decode_audio(8000).skip_errors().batch(b).pad(2000)
    ),
    "slices, augmented": lambda root, b: (
        read_audio(root, "name").decode_audio(8000, duration=0.1).skip_errors().map_batches(LOUD).shuffle(4).batch(b)
    ),
}
ALL = [("images", name) for name in IMAGES] + [("sounds", name) for name in SOUNDS]


def maker(kind: str, name: str, request: pytest.FixtureRequest) -> Callable[[int], Pipeline]:
    root = request.getfixturevalue(kind)
    make = (IMAGES if kind == "images" else SOUNDS)[name]
    return lambda rows: make(root, rows)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_saved_state_gives_the_whole_remainder(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    make = maker(kind, name, request)
    assert_exact_resume(lambda: make(8), most=8)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_batches_do_not_depend_on_threads_or_world(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    assert_elastic(
        maker(kind, name, request), batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2, 4), other_batch=4, most=5
    )


def test_a_pipeline_of_media_survives_a_child_process(images: Path) -> None:
    make = IMAGES["random crops"]
    here = next(iter(make(images, 8).to_numpy(threads=0)))
    loader = make(images, 8).to_numpy(isolate=True)
    there = next(iter(loader))
    assert np.array_equal(here["image"], there["image"])
    assert here["path"].tolist() == there["path"].tolist()
