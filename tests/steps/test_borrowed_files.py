"""Files of a folder are read into memory that serves again: nobody may notice."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import BadRecords
from penstock.codecs.image.decode import ImageOptions, decode, decode_onto
from penstock.codecs.image.probe import probe
from penstock.core.errors import FileMissing, RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.read import read_images
from penstock.storage import small_files
from penstock.storage.small_files import Arena, read_whole


def picture(seed: int, height: int = 96, width: int = 130, quality: int = 90) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(file, "JPEG", quality=quality)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(40):
        (tmp_path / f"{i:02d}.jpg").write_bytes(picture(i, quality=60 + i))
    return tmp_path


def pictures(pipeline: Any, threads: int, rows: int = 7) -> dict[str, bytes]:
    made = (
        pipeline.decode_images(24, crop="random", dtype="uint8")
        .batch(rows, remainder="short")
        .to_numpy(threads=threads)
    )
    return {p: image.tobytes() for batch in made for p, image in zip(batch["path"], batch["image"], strict=True)}


@pytest.mark.parametrize("room", [small_files.ARENA_BYTES, 1 << 20])
def test_pictures_are_the_same_with_borrowed_bytes(
    folder: Path, room: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(small_files, "ARENA_BYTES", room)  # with little room some files lie elsewhere
    (tmp_path / "90.jpg").write_bytes(picture(90, 1600, 1600, 99))
    (tmp_path / "91.jpg").write_bytes(picture(91, 1600, 1600, 99))
    files = read_images(folder, labels=None)
    copied = pictures(files.map(lambda record: record).shuffle(seed=1), 0)  # a function in between sees plain bytes
    assert len(copied) == 42
    for threads in (0, 2):
        assert pictures(files.shuffle(seed=1), threads) == copied
        assert pictures(files.shuffle(seed=1), threads, rows=42) == copied


def test_without_decoding_a_record_is_plain_bytes(folder: Path) -> None:
    (data,) = read_images(folder, labels=None).rows().read(np.array([3]))["bytes"]
    assert isinstance(data, bytes) and data == (folder / "03.jpg").read_bytes()


def test_a_bad_file_is_named_and_the_others_are_right(folder: Path) -> None:
    want = pictures(read_images(folder, labels=None), 0)
    (folder / "05.jpg").write_bytes((folder / "05.jpg").read_bytes()[:-400])
    (folder / "06.jpg").write_bytes(b"")
    with pytest.raises(BadRecords, match="06.jpg"):
        pictures(read_images(folder, labels=None), 0)
    (folder / "06.jpg").write_bytes(b"no picture")
    with pytest.raises(BadRecords, match="06.jpg"):
        pictures(read_images(folder, labels=None), 0)
    skipping = read_images(folder, labels=None, on_error="skip", budget=4)  # a policy for reading and decoding
    got = pictures(skipping, 0)
    assert got == pictures(skipping, 2) and "05.jpg" not in got and "06.jpg" not in got and len(got) == 38
    same = [name for name in got if got[name] == want[name]]
    assert len(same) >= 36  # a replacement is drawn with its place's key, so two may be cropped otherwise


def test_an_arena_serves_again_and_knows_its_bounds(folder: Path) -> None:
    arena = Arena()
    first = read_whole(folder / "01.jpg", LIMITS, arena=arena)
    second = read_whole(folder / "02.jpg", LIMITS, arena=arena)
    assert isinstance(first, memoryview) and bytes(first) == (folder / "01.jpg").read_bytes()
    assert bytes(second) == (folder / "02.jpg").read_bytes()
    arena.clear()
    third = read_whole(folder / "03.jpg", LIMITS, arena=arena)
    assert isinstance(third, memoryview) and third.obj is first.obj and bytes(first[:9]) == bytes(third[:9])
    big = arena.take(3 << 20)
    assert big is not None and bytes(third) == (folder / "03.jpg").read_bytes()  # growing leaves what was given alone
    assert arena.take(small_files.ARENA_BYTES) is None
    with pytest.raises(RecordError, match="at most 100 bytes"):
        read_whole(folder / "01.jpg", Limits(record_bytes=100), arena=arena)
    with pytest.raises(RecordError, match="a regular file"):
        read_whole(folder, LIMITS)
    with pytest.raises(FileMissing, match="it does not exist"):
        read_whole(folder / "none.jpg", LIMITS)


@pytest.mark.parametrize("cut", [0, 500])
def test_a_header_changed_for_a_call_is_put_back(cut: int) -> None:
    data = picture(1)
    data = data[: len(data) - cut]
    mine, info = memoryview(bytearray(data)), probe(data)
    out = np.empty((24, 24, 3), np.uint8)
    if cut:
        with pytest.raises(RecordError):
            decode_onto(out, mine, ImageOptions(own=True), (0, 0, 60, 60), "", info)
    else:
        decode_onto(out, mine, ImageOptions(own=True), (0, 0, 40, 40), "", info)
        assert np.array_equal(out, decode(data, crop=(0, 0, 40, 40), size=(24, 24)))
    assert bytes(mine) == data
