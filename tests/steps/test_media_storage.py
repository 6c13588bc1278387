"""Storage that fails is never taken for bad files: `on_error="skip"` raises for it, in images and in audio."""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.codecs.audio import wav


@pytest.fixture(params=["images", "audio", "recordings"])
def rows(request: Any, tmp_path: Path) -> tuple[Path, Any]:
    """A folder of 30 files, two of them damaged, and its pipeline."""
    for number in range(30):
        file = io.BytesIO()
        if request.param == "images":
            Image.new("RGB", (40, 30), (number, 0, 0)).save(file, "PNG")
        else:
            file.write(wav.encode(np.full(400, number / 100), 8000))
        name = f"{number:02d}.png" if request.param == "images" else f"{number:02d}.wav"
        data = file.getvalue()
        (tmp_path / name).write_bytes(data if number not in (3, 20) or request.param == "recordings" else data[:50])
    if request.param == "images":
        return tmp_path, ps.read_images(tmp_path, None, on_error="skip", budget=20).decode_images(8)
    if request.param == "audio":
        return tmp_path, ps.read_audio(tmp_path, None, on_error="skip", budget=20).decode_audio(8000, duration=0.05)
    return tmp_path, ps.read_audio(tmp_path, None, sample_rate=8000, on_error="skip", budget=20)


@contextmanager
def few_descriptors() -> Iterator[None]:
    """As in a process that has used up its descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files_is_not_a_bad_file(rows: tuple[Path, Any]) -> None:
    loader = rows[1].batch(5).to_numpy(threads=0)
    first = loader.batch_at(0)
    with few_descriptors(), pytest.raises(ps.StorageError, match="open files") as caught:
        loader.batch_at(0)
    assert not isinstance(caught.value, ps.DataError)
    again = loader.batch_at(0)
    assert first["path"].tolist() == again["path"].tolist()


def test_a_folder_that_is_away_for_a_while_changes_no_batch(rows: tuple[Path, Any]) -> None:
    root, pipeline = rows
    loader = pipeline.batch(5).to_numpy(threads=0)
    want = [loader.batch_at(step)["path"].tolist() for step in range(6)]
    os.rename(root, f"{root}.away")
    try:
        for step in range(6):
            with pytest.raises(FileNotFoundError, match="does not exist") as caught:
                loader.batch_at(step)
            assert isinstance(caught.value, ps.PenstockError)
    finally:
        os.rename(f"{root}.away", root)
    assert [loader.batch_at(step)["path"].tolist() for step in range(6)] == want


def test_a_file_deleted_after_the_listing_raises(rows: tuple[Path, Any]) -> None:
    root, pipeline = rows
    loader = pipeline.batch(5).to_numpy(threads=0)
    loader.batch_at(0)
    gone = sorted(root.iterdir())[7]
    gone.unlink()
    with pytest.raises(ps.FileMissing, match=gone.name):
        loader.batch_at(1)
