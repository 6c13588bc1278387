"""One number per operation, from before the frameworks shared one implementation: another release augments the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import augment as ops
from penstock.augment import Augment

IMAGE = (np.arange(3 * 12 * 12 * 3, dtype=np.float32).reshape(3, 12, 12, 3) * 0.37) % 1
AUDIO = np.sin(np.arange(3 * 4 * 300, dtype=np.float32)).reshape(3, 4, 300)
TOKENS = (np.arange(3 * 40, dtype=np.int32) * 7 % 90).reshape(3, 40)

GOLDEN: dict[str, float] = {
    "Flip(p=0.6)": 1.066740,
    "Rot90()": 3.254133,
    "Crop(9, padding=2, fill=0.5)": 0.953505,
    "RandomResizedCrop(7)": -1.098945,
    "Resize((5, 17))": 0.968448,
    "Brightness(0.3)": -1.608621,
    "Contrast(0.3)": -1.440383,
    "Saturation(0.6)": -1.536699,
    "Hue(0.3)": -2.821210,
    "Noise(0.1)": 0.636911,
    "Blur(p=1.0)": -2.059376,
    "Erase(p=1.0)": -1.103203,
    "Mixup(0.4)": -0.591427,
    "Cutmix()": -0.963372,
    "Rotate(30)": -3.333188,
    "Affine(20, (0.1, 0.2), (0.8, 1.2), 10)": -3.420725,
    "Shear(20)": -1.944077,
    "Translate(0.2, 0.3)": 3.055860,
    "Perspective(0.5, p=1.0)": -0.609684,
    "Grayscale(p=1.0)": -2.532679,
    "Invert(p=1.0)": 0.265381,
    "Posterize(3, p=1.0)": -1.536800,
    "Solarize(0.4, p=1.0)": -0.137357,
    "AutoContrast(p=1.0)": -1.427388,
    "Equalize(p=1.0)": -1.413524,
    "Sharpness(0.8)": -2.358943,
    "RandAugment(2, 15)": -1.721124,
    "TrivialAugment()": 1.002133,
    "AugMix()": -0.097683,
    "Gain()": 2.506440,
    "Shift(0.4)": -1.536468,
    "Shift(0.4, wrap=False)": -1.726033,
    "AudioNoise()": 2.172981,
    "TimeMask(0.3, count=2)": -5.916554,
    "FrequencyMask(0.5)": 2.820947,
    "Speed(0.2)": 0.268012,
    "SpecAugment(2, 2, 2, 40)": 1.899513,
    "MixNoise([[0.1, -0.2, 0.3], [0.2, 0.1]])": 5.114516,
    "RoomImpulse([[1.0, 0.5, 0.2]], p=1.0)": 3.576325,
    "Pitch(3, window=64)": -6.387364,
    "Letterbox((7, 20), fill=0.5)": 1.007492,
    "ShorterSide(9)": -1.080746,
    "FiveCrop(5)": -5.321877,
    "TokenMask(3, special=(0, 1))": -69.031849,
    "TokenReplace(90, special=(0, 1), rate=0.3)": -55.362709,
}


def number(text: str, framework: str) -> float:
    """A weighted sum of the result in which every value, and its place, counts."""
    op: Any = eval(text, vars(ops))  # the table's own text
    column = {"image": IMAGE, "audio": AUDIO, "tokens": TOKENS}[op.kind]
    if isinstance(op, ops.MixNoise | ops.RoomImpulse | ops.Pitch):
        column = AUDIO[:, 0]  # waveforms only
    name = {"image": "image", "audio": "audio", "tokens": "input_ids"}[op.kind]
    augment = Augment(op, seed=4)
    made = getattr(augment, framework)({name: column, "labels": np.arange(3)}, augment.keys([5, 6, 7]))[name]
    flat = np.asarray(made, np.float64).ravel()
    return float(flat @ np.cos(np.arange(len(flat)) * 0.61))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("text", GOLDEN)
def test_results_are_those_of_earlier_releases(text: str, framework: str) -> None:
    assert number(text, framework) == pytest.approx(GOLDEN[text], abs=5e-4)


def test_every_operation_is_in_the_table() -> None:
    made = {name for name, one in vars(ops).items() if isinstance(one, type) and issubclass(one, ops.Op)} - {"Op"}
    assert {text.partition("(")[0] for text in GOLDEN} == made
