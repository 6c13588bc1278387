"""`pair()`: media and captions by key, over folders, tar shards and columns."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock import BadRecords, UsageError
from penstock.read import pair, read_images
from penstock.testing import assert_exact_resume


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(6):
        file = io.BytesIO()
        Image.new("RGB", (20, 20), (i * 40, 0, 0)).save(file, "PNG")
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{i}.png").write_bytes(file.getvalue())
    return tmp_path


def captions(folder: Path, numbers: list[int]) -> ps.Pipeline:
    lines = [json.dumps({"key": str(i), "text": f"picture {i}"}) for i in numbers]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return ps.read_jsonl(folder / "captions.jsonl", fields=["key", "text"])


def test_pictures_meet_their_captions_in_any_order(folder: Path) -> None:
    pairs = pair(read_images(folder / "photos", None), captions(folder, [5, 3, 0, 1, 2, 4]))

    def make() -> ps.Pipeline:
        return pairs.shuffle(seed=3).decode_images(8, crop="random", dtype="uint8").batch(3)

    for batch in make().to_numpy(threads=0):
        for text, image, path in zip(batch["text"], batch["image"], batch["path"], strict=True):
            assert text == f"picture {path[0]}"
            assert abs(int(image[0, 0, 0]) - 40 * int(path[0])) < 3
    assert_exact_resume(make)
    assert "captions.jsonl" in str(make().to_numpy().why(0)["from"]["caption"])


def test_missing_captions_are_an_error_or_dropped(folder: Path) -> None:
    images = read_images(folder / "photos", None)
    with pytest.raises(UsageError, match=r"none for '1.png'"):
        pair(images, {"0": "zero", "2": "two"})
    some = pair(images, {"0": "zero", "2": "two", "99": "nobody"}, missing="drop")
    assert some.rows().read(np.arange(2))["text"].tolist() == ["zero", "two"]
    assert some.fingerprint() != pair(images, {"0": "zero", "2": "other"}, missing="drop").fingerprint()
    named = pair(images, {f"n{i}": str(i) for i in range(6)}, key=lambda path: "n" + path[0])
    assert named.peek(2)[1]["text"] == "1"


def test_what_is_refused(folder: Path) -> None:
    images = read_images(folder / "photos", None)
    with pytest.raises(UsageError, match="keys in common"):
        pair(images, {"x": "y"}, missing="drop")
    with pytest.raises(UsageError, match="two for '1': records 0 and 1"):
        pair(images, captions(folder, [1, 1]))
    with pytest.raises(UsageError, match="a column 'id' of keys"):
        pair(images, captions(folder, [1]), on="id")
    with pytest.raises(UsageError, match="pair first, then decode"):
        pair(images.decode_images(8, crop="random"), {"0": ""})


def test_bad_rows_of_either_side_are_named(folder: Path) -> None:
    pairs = pair(read_images(folder / "photos", None), captions(folder, list(range(6))))
    (folder / "photos" / "2.png").write_bytes(b"")
    with pytest.raises(BadRecords, match=r"2\.png"):
        pairs.rows().read(np.arange(6))
    (folder / "photos" / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.png"):  # the folder changed: no record's fault
        pairs.rows().read(np.arange(6))
