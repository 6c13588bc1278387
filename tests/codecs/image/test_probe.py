"""Headers: what they say, and what is refused from them alone."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from penstock.codecs.image.probe import probe
from penstock.core.errors import FileMissing, RecordError
from penstock.core.limits import Limits


def png_header(width: int, height: int, bits: int = 8, colour: int = 2) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


def jpeg_header(width: int, height: int, *, marker: int = 0xC0, bits: int = 8, channels: int = 3) -> bytes:
    frame = struct.pack(">BHHB", bits, height, width, channels) + b"\x01\x22\x00" * channels
    return b"\xff\xd8\xff" + bytes([marker]) + struct.pack(">H", 2 + len(frame)) + frame + b"\xff\xda"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format_says_its_size(kind, photo, encode):
    info = probe(encode(photo(30, 50), kind))
    assert (info.format, info.height, info.width) == (kind, 30, 50)
    assert not info.animated
    assert info.orientation == 1


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_read(turn, kind, photo, encode):
    exif = Image.Exif()
    exif[0x0112] = turn
    info = probe(encode(photo(30, 50), kind, exif=exif))
    assert info.orientation == turn
    assert info.oriented == ((50, 30) if turn >= 5 else (30, 50))


def test_nonsense_exif_does_not_lose_the_picture(photo, encode):
    data = encode(photo(30, 50))
    for tiff in (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff" + b"\1" * 40, b"XXXX" * 9):
        segment = b"Exif\0\0" + tiff
        marked = data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment + data[2:]
        assert probe(marked).orientation == 1


def test_animation_and_depth_are_told(photo, encode):
    frames = [Image.fromarray(photo(20, 20, seed)) for seed in range(3)]
    assert probe(encode(frames[0], "GIF", save_all=True, append_images=frames[1:])).animated
    assert probe(encode(frames[0], "PNG", save_all=True, append_images=frames[1:])).animated
    grey16 = Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20))
    assert probe(encode(grey16, "PNG")).bits == 16
    assert probe(encode(Image.fromarray(photo(20, 20)).convert("CMYK"))).channels == 4
    assert probe(encode(photo(20, 20), progressive=True)).progressive


@pytest.mark.parametrize("data", [png_header(30_000, 30_000), jpeg_header(65_535, 65_535), b"GIF89a" + b"\xff" * 20])
def test_bombs_are_refused_from_the_header(data):
    with pytest.raises(RecordError, match="at most 89,478,485 pixels") as error:
        probe(data, where="shelf/bomb.img")
    assert "where: shelf/bomb.img" in str(error.value)
    assert "limits=Limits(pixels=...)" in str(error.value)


def test_the_limit_is_the_callers(photo, encode):
    data = encode(photo(30, 50), "PNG")
    with pytest.raises(RecordError, match="at most 1,499 pixels"):
        probe(data, limits=Limits(pixels=1499))
    assert probe(data, limits=Limits(pixels=1500)).width == 50


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"hello, this is text and no picture", "beginning b'hello, this '"),
        (b"\xff\xd8\xff\xe0", "before its frame header"),
        (jpeg_header(8, 8, bits=12), "12 bits"),
        (jpeg_header(8, 8, marker=0xC3), "a lossless one"),
        (jpeg_header(8, 0), "height 0"),
        (jpeg_header(8, 8, channels=2), "1, 3 or 4 channels"),
        (png_header(0, 5), "5 x 0"),
        (jpeg_header(8, 8, marker=0xC2) + b"\xff\xda\x00" * 600, "at most 500 scans"),
    ],
)
def test_refusals_say_what_came_and_where(data, text):
    with pytest.raises(RecordError) as error:
        probe(data, where="a/b.jpg")
    assert text in str(error.value)
    assert "where: a/b.jpg" in str(error.value)


def test_a_path_is_read_and_named(tmp_path, photo, encode):
    path = tmp_path / "x.png"
    path.write_bytes(encode(photo(10, 20), "PNG"))
    assert probe(path).width == 20
    with pytest.raises(FileMissing, match=r"gone\.png"):
        probe(tmp_path / "gone.png")
    with pytest.raises(RecordError, match="at most 10 bytes"):
        probe(path, limits=Limits(record_bytes=10))
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(RecordError, match="regular file"):
        probe(tmp_path / "pipe.png")
