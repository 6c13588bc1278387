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
    "Gain()": 2.506440,
    "Shift(0.4)": -1.536468,
    "Shift(0.4, wrap=False)": -1.726033,
    "AudioNoise()": 2.172981,
    "TimeMask(0.3, count=2)": -5.916554,
    "FrequencyMask(0.5)": 2.820947,
    "Speed(0.2)": 0.268012,
    "TokenMask(3, special=(0, 1))": -69.031849,
    "TokenReplace(90, special=(0, 1), rate=0.3)": -55.362709,
}


def number(text: str, framework: str) -> float:
    """A weighted sum of the result in which every value, and its place, counts."""
    op: Any = eval(text, vars(ops))  # the table's own text
    column = {"image": IMAGE, "audio": AUDIO, "tokens": TOKENS}[op.kind]
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
