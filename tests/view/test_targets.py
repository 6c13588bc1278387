"""Targets of other places and kinds: one file of media, a store in S3, a TFDS folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.cli.main import main
from penstock.codecs.audio import wav


def test_one_image_or_recording_opens(viewer, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, side in (("one.jpg", 30), ("two.PNG", 20)):
        Image.new("RGB", (side, 10), (200, 30, 30)).save(photos / name)
    (tmp_path / "clip.wav").write_bytes(wav.encode(0.5 * np.sin(np.arange(4000) / 5), 8000))
    for path, what in (
        (photos / "one.jpg", "30 × 10"),
        (photos / "two.PNG", "20 × 10"),
        (tmp_path / "clip.wav", "0.5 seconds"),
    ):
        client = viewer(path)
        page = client.get("/data")
        assert page.status == 200 and what in page.text and path.name in page.text
        assert "Values of class" not in page.text and page.text.count("alt=") == (2 if what.endswith("seconds") else 1)
        assert client.get("/batch").status == 200
    picture = viewer(photos / "two.PNG").get("/data/image?n=0")
    assert Image.open(io.BytesIO(picture.body)).size == (20, 10)
    assert viewer(str(photos / "*.jpg")).get("/data").text.count("<figure") == 1  # a pattern


def test_a_store_in_s3(viewer, s3, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"document {i} in S3"}) + "\n" for i in range(20)))
    url = s3.url("viewed")
    options = [part for name, value in s3.options.items() for part in ("--storage-option", f"{name}={value}")]
    assert main(["prepare", str(texts), "-t", "bytes", "-o", url, "-q", *options]) == 0
    client = viewer(url, storage_options=s3.options)
    assert "document 7" in client.get("/data?at=7").text and "20" in client.get("/plan").text
    assert "document 19 in S3" in client.get("/data?q=document+19").text.replace("</mark>", "").replace("<mark>", "")
    assert client.get("/batch?step=0").status == 200


def test_a_tfds_folder(viewer, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_datasets")
    from tests.sources.test_tfds import COUNTS, PenstockToy

    PenstockToy(config="en", data_dir=tmp_path, file_format="array_record").download_and_prepare()
    top = tmp_path / "penstock_toy" / "en"
    for path, split in ((top / "1.0.0", "train"), (top, "test")):
        client = viewer(path, split=split)
        page = client.get("/data").text
        assert "a TFDS dataset" in page and "ünï" in page
        assert f"<b>{COUNTS[split]}</b><span>records</span>" in page
        assert "ünï" in client.get("/batch?step=0").text
