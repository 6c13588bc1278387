"""Damage with right checksums and lengths: what is read is what the reference reads, or the file is refused."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageOps

from penstock.codecs.audio.decode import decode as decode_audio
from penstock.codecs.image.decode import decode
from penstock.core.errors import PenstockError
from penstock.core.limits import Limits
from penstock.sources.tar import TarShards
from penstock.sources.text import TextFiles
from tests.hostile import structured
from tests.hostile.test_image_fuzz import exif, picture, saved, text
from tests.hostile.test_tar import archive, header, padded, pax
from tests.hostile.test_tar_files import with_global

LIMITS = Limits(pixels=1_000_000)


def members(path: Path) -> list[tuple[str, str, bytes]]:
    """Key, part and content of each file, as Python's tarfile reads them."""
    found = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            folder, _, base = member.name.removeprefix("./").rpartition("/")
            key, dot, part = base.partition(".")
            if content is not None and key and dot:
                found.append((f"{folder}/{key}".lstrip("/"), part.lower(), content.read()))
    return found


def test_tar_headers_with_valid_checksums(tmp_path: Path) -> None:
    path, counts = tmp_path / "a.tar", Counter[str]()
    for seed in range(600):
        path.write_bytes(structured.tar(random.Random(seed)))
        try:
            source = TarShards(path, index=None)
            columns = source.read(np.arange(len(source)))
        except PenstockError:
            counts["refused"] += 1
            continue
        ours = {(k, p, columns[p][i]) for i, k in enumerate(columns["key"]) for p in source.parts}
        assert ours <= set(members(path)), seed
        counts["read"] += 1
    assert counts["read"] > 100 < counts["refused"]


def test_of_two_extended_headers_that_disagree_neither_is_taken(tmp_path: Path) -> None:
    """Python's tarfile takes the first, others the last."""
    long = header("L", 6, b"L") + padded(b"b.txt\0")
    for number, heads in enumerate(
        (pax(path="a.txt") + pax(path="b.txt"), pax(path="a.txt") + long, long + pax(path="a.txt"))
    ):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(archive(heads, header("c.txt", 4) + padded(b"text")))
        with pytest.raises(PenstockError, match="one path of a member"):
            TarShards(path, index=None)
    path.write_bytes(archive(long + pax(path="b.txt", comment="x"), header("c.txt", 4) + padded(b"text")))
    assert list(TarShards(path, index=None).read(np.arange(1))["key"]) == ["b"]


@pytest.mark.parametrize("between", [b"", with_global("comment")])
def test_an_extended_header_without_a_member_is_an_archive_cut_short(tmp_path: Path, between: bytes) -> None:
    first = header("a.txt", 4) + padded(b"text")
    for head in (pax(path="b.txt"), pax(comment="x"), header("L", 6, b"L") + padded(b"b.txt\0")):
        (tmp_path / "a.tar").write_bytes(archive(first, head + between))
        with pytest.raises(PenstockError, match="the member of an extended header"):
            TarShards(tmp_path / "a.tar", index=None)
    (tmp_path / "a.tar").write_bytes(archive(first, between))
    assert list(TarShards(tmp_path / "a.tar", index=None).read(np.arange(1))["key"]) == ["a"]


def pixels(image: Any) -> Any:
    """Pixels as Pillow decodes them, and which of them are opaque."""
    image.load()
    try:
        image = ImageOps.exif_transpose(image)
    except Exception:  # damaged orientation, which penstock ignores as viewers do
        return None, None
    shown = np.asarray(image.convert("RGBA"))
    return shown[..., :3], shown[..., 3] == 255


PICTURES = {
    "png": [saved(picture(mode), "PNG", exif=exif(), pnginfo=text()) for mode in ("RGB", "P", "LA", "L", "1", "RGBA")],
    "gif": [
        saved(picture("P"), "GIF", save_all=True, append_images=[picture("P").rotate(90)], loop=0),
        saved(picture("L"), "GIF"),
        saved(picture("P"), "GIF", transparency=3, interlace=1),
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PICTURES)
def test_images_with_moved_and_changed_blocks(kind: str) -> None:
    counts = Counter[str]()
    for seed in range(600):
        draw = random.Random(seed)
        data = getattr(structured, kind)(draw, draw.choice(PICTURES[kind]))
        try:
            ours = decode(data, where="a", limits=LIMITS)
        except PenstockError:
            counts["refused"] += 1
            continue
        theirs, opaque = pixels(Image.open(io.BytesIO(data)))
        if theirs is not None:
            assert theirs.shape == ours.shape, seed
            assert np.array_equal(theirs[opaque], ours[opaque]), seed
        counts["read"] += 1
    assert counts["read"] > 100 < counts["refused"]


def test_gzip_members_with_odd_fields(tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 70)}" for number in range(300)]
    data = "".join(line + "\n" for line in lines).encode()
    path, read = tmp_path / "a.txt.gz", 0
    for seed in range(200):
        draw = random.Random(seed)
        cuts = sorted(draw.randrange(len(data)) for _ in range(draw.randrange(4)))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        packed = b"".join(structured.gzip_member(draw, part) for part in parts)
        if draw.random() < 0.3:
            place = draw.randrange(len(packed))
            packed = packed[:place] + draw.randbytes(1) + packed[place + 1 :]
        path.write_bytes(packed)
        try:
            chunks = list(TextFiles(path, mode="line").iterate())
        except PenstockError:
            continue
        if any(chunk.errors for chunk in chunks):
            continue
        assert [t for chunk in chunks for t in chunk.texts] == gzip.decompress(packed).decode().split("\n")[:-1], seed
        read += 1
    assert read > 130


def test_wav_chunks() -> None:
    samples = np.random.default_rng(0).bytes(4800)
    counts = Counter[str]()
    for seed in range(400):
        data = structured.wav(random.Random(seed), samples)
        try:
            theirs = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0]
        except soundfile.LibsndfileError:
            theirs = None
        try:
            ours = decode_audio(data, mono=False, where="a")
        except PenstockError:
            counts["refused"] += 1
            continue
        assert theirs is not None, seed
        assert ours.shape == theirs.shape, seed
        assert np.array_equal(ours, theirs), seed
        counts["read"] += 1
    assert counts["read"] > 100
