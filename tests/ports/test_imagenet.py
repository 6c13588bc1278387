"""An ImageNet-style classifier: folders of JPEGs, random resized crop, RandAugment, mixup; centre crops to evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock as ps
from penstock.augment import Augment, Erase, Mixup, RandAugment
from penstock.testing import assert_elastic

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that differ in hue; sizes differ."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (root / f"class{label}").mkdir()
        for i in range(16):
            height, width = (int(v) for v in rng.integers(50, 90, 2))
            pixels = rng.integers(0, 60, (height, width, 3))
            pixels[..., label % 3] += 120
            pixels[..., 2] += 60 * (label == 3)
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"class{label}" / f"{i}.jpg")
    return root


def train(folder: Path, batch: int = 8) -> Any:
    recipe = Augment(RandAugment(num_ops=2, magnitude=9), seed=1)
    erase = Augment(Erase(p=0.25), seed=2, mean=MEAN, std=STD)
    mix = Augment(Mixup(0.2, labels="label", classes=CLASSES), seed=3, mean=MEAN, std=STD)
    return (
        ps.read_images(folder)
        .shuffle(seed=7)
        .decode_images(32, crop="random", dtype="uint8")
        .map_batches(recipe)
        .map_batches(normalise)
        .map_batches(erase)
        .batch(batch)
        .map_batches(mix, whole=True)
    )


def normalise(columns: dict[str, Any]) -> dict[str, Any]:
    pixels = columns["image"].astype(np.float32) / np.float32(255)
    return {**columns, "image": ((pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32))}


def validation(folder: Path) -> Any:
    files = ps.read_images(folder)
    return files.decode_images(32, share=0.875, mean=MEAN, std=STD, layout="NCHW").batch(16, remainder="short")


def test_the_input_of_a_classifier(folder: Path) -> None:
    loader = train(folder).to_torch()
    batch = next(iter(loader))
    assert batch["image"].shape == (8, 32, 32, 3)
    assert batch["label"].shape == (8, CLASSES)
    assert torch.allclose(batch["label"].sum(1), torch.ones(8))
    steps = loader.why(0, 0)["from"]["drawn"]["image"]
    assert steps[0]["op"] == "RandAugment"
    assert len(steps[0]["steps"]) == 2
    seen = sum(len(b["label"]) for b in validation(folder).to_torch())
    assert seen == CLASSES * 16


def test_two_runs_and_two_worlds_train_on_the_same_pixels(folder: Path) -> None:
    one, other = (list(train(folder).to_numpy(threads=threads)) for threads in (0, 2))
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(one, other, strict=True))
    epochs = train(folder).to_numpy(threads=0)
    first, second = [batch["image"] for batch in epochs], [batch["image"] for batch in epochs]
    assert not np.array_equal(first[0], second[0])
    whole = ps.read_images(folder).shuffle(seed=7).decode_images(32, crop="random").map_batches(Augment(RandAugment()))
    assert_elastic(whole.batch, batch=8, worlds=(1, 2), threads=(0, 2))


def test_it_trains(folder: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plain = ps.read_images(folder).shuffle(seed=7).decode_images(32, crop="random", mean=MEAN, std=STD).batch(8)
    loader = plain.to_torch()
    for batch in (batch for _ in range(4) for batch in loader):
        loss = torch.nn.functional.cross_entropy(model(batch["image"].mean((1, 2))), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = [(model(b["image"].mean((2, 3))).argmax(1) == b["label"]) for b in validation(folder).to_torch()]
    assert torch.cat(right).float().mean() > 0.9
