"""A VLM caption pipeline: images in tar shards, captions with placeholders, exact runs of image tokens."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume

SIDE, IMAGE_ID, LENGTH = 28, 256, 96
MAKE = ps.Interleave("bytes", {"image": IMAGE_ID}, image=ps.ImageTokens(patch=14, size=(SIDE, SIDE)), length=LENGTH)


def add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WebDataset shards: a JPEG of one colour, its caption around a placeholder."""
    root = tmp_path_factory.mktemp("shards")
    for number in range(2):
        with tarfile.open(root / f"{number:03}.tar", "w") as shard:
            for i in range(20):
                key, level = f"{number}{i:03}", 10 * i + 20
                file = io.BytesIO()
                Image.new("RGB", (40 + 2 * i, 50), (level, level, level)).save(file, "JPEG")
                add(shard, f"{key}.jpg", file.getvalue())
                text = f"Look: <image> a grey of {level}" + " and more" * (i % 3)
                add(shard, f"{key}.json", json.dumps({"caption": text, "level": level}).encode())
    return root


def interleave(record: dict[str, Any]) -> dict[str, Any]:
    """Ids with a run of placeholders, and labels that leave them out."""
    made = MAKE(record["json"]["caption"], images=[(SIDE, SIDE)])
    return {
        "image": record["image"], "level": record["json"]["level"], "input_ids": made.ids, "labels": made.labels(),
    }  # fmt: skip


def image_mask(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "image_mask": columns["input_ids"] == IMAGE_ID}


def train(shards: Path, batch: int = 4) -> Any:
    return (
        ps.read_tar(str(shards / "*.tar"))
        .shuffle(seed=4)
        .decode_images(SIDE, crop="random", flip=0.0, column="jpg", dtype="uint8")
        .map(interleave)
        .batch(batch)
        .pad(to=LENGTH, pad_id=0)
        .map_batches(image_mask)
    )


def test_every_picture_has_exactly_its_tokens(shards: Path) -> None:
    cells = (SIDE // 14) ** 2
    for batch in train(shards).to_numpy(threads=0):
        assert batch["input_ids"].shape == batch["labels"].shape == batch["image_mask"].shape == (4, LENGTH)
        assert ((batch["input_ids"] == IMAGE_ID).sum(1) == cells).all()
        assert not (batch["labels"] == IMAGE_ID).any()
        assert ((batch["labels"] != -100).sum(1) > 10).all()
        for ids, mask, image, level in zip(
            batch["input_ids"], batch["attention_mask"], batch["image"], batch["level"], strict=True
        ):
            text = bytes(ids[(mask == 1) & (ids != IMAGE_ID)].astype(np.uint8).tolist()).decode()
            assert text.startswith(f"Look:  a grey of {level}")  # the caption of this picture
            assert abs(float(image.mean()) - level) < 4


def test_patches_go_where_the_placeholders_are(shards: Path) -> None:
    """What a model does with it: patch embeddings are written over the placeholders' embeddings."""
    batch = train(shards).to_torch(threads=0).batch_at(0)
    patches = batch["image"].float().reshape(4, 2, 14, 2, 14, 3).permute(0, 1, 3, 2, 4, 5).reshape(4, 4, -1).mean(-1)
    embeddings = np.zeros((4, LENGTH))
    embeddings[batch["image_mask"].numpy().astype(bool)] = patches.numpy().ravel()
    assert np.allclose(embeddings.sum(1) / 4, batch["level"].numpy(), atol=4)


def test_the_law(shards: Path) -> None:
    assert_exact_resume(lambda: train(shards))
    assert_elastic(lambda batch: train(shards, batch), batch=4, worlds=(1, 2), threads=(0, 2))
