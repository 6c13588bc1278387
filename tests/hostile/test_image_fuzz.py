"""Mutated images of every format: pixels or a `RecordError`, never another exception, never much memory."""

from __future__ import annotations

import io
import resource
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import penstock as ps
from penstock.codecs.image.decode import decode
from penstock.codecs.image.probe import probe
from penstock.core.errors import RecordError
from penstock.core.limits import Limits
from tests.hostile.fuzzing import mutants

LIMITS = Limits(pixels=1_000_000)


def picture(mode: str = "RGB", height: int = 37, width: int = 41) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif() -> Any:
    made = Image.Exif()
    made[0x0112] = 6
    return made


def text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", '<a tiff:Orientation="6"/>', zip=True)
    return info


SEEDS = {
    "JPEG": lambda: saved(picture(), "JPEG", exif=exif()),
    "progressive JPEG": lambda: saved(picture(), "JPEG", progressive=True),
    "CMYK JPEG": lambda: saved(picture("CMYK"), "JPEG"),
    "GIF": lambda: saved(picture("P"), "GIF", save_all=True, append_images=[picture("P").rotate(90)], loop=0),
    "BMP": lambda: saved(picture(), "BMP"),
    "palette BMP": lambda: saved(picture("P"), "BMP"),
    "TIFF": lambda: saved(picture(), "TIFF"),
    "TIFF lzw": lambda: saved(picture(), "TIFF", compression="tiff_lzw"),
    "TIFF deflate": lambda: saved(picture("LA"), "TIFF", compression="tiff_adobe_deflate"),
    "TIFF jpeg": lambda: saved(picture(), "TIFF", compression="jpeg"),
    "TIFF 16": lambda: saved(Image.fromarray(np.arange(900, dtype=np.uint16).reshape(30, 30)), "TIFF"),
    "PPM": lambda: saved(picture(), "PPM"),
    "PGM 16": lambda: b"P5\n30 30\n65535\n" + np.arange(900, dtype=">u2").tobytes(),
    "PBM text": lambda: b"P1\n# note\n4 2\n1 0 1 0\n0 1 0 1\n",
    "WebP": lambda: saved(picture(), "WEBP", exif=exif()),
    "lossless WebP": lambda: saved(picture("RGBA"), "WEBP", lossless=True),
    "AVIF": lambda: saved(picture(), "AVIF"),
    "JPEG 2000": lambda: saved(picture(), "JPEG2000"),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_mutants_give_pixels_or_a_record_error(kind: str) -> None:
    data = SEEDS[kind]()
    read, refused = 0, set()
    for number, mutant in enumerate(mutants(data, 250, seed=3)):
        size = (8, 9) if number % 2 else None
        try:
            info = probe(mutant, where="a.img", limits=LIMITS)
            made = decode(mutant, size=size, where="a.img", limits=LIMITS, info=info)
        except RecordError as error:
            refused.add(error.where)
            continue
        read += 1
        assert made.shape == (*(size or info.oriented), 3)
    assert refused == {"a.img"}  # some of the damage is noticed in every format


@pytest.mark.parametrize("mode", ["RGB", "P", "LA", "I;16"])
def test_no_mutant_of_a_png_gives_other_pixels(mode: str) -> None:
    image = picture(mode) if mode != "I;16" else Image.fromarray(np.arange(900, dtype=np.uint16).reshape(30, 30))
    data = saved(image, "PNG", exif=exif(), pnginfo=text())
    want = decode(data)
    for mutant in mutants(data, 500, seed=4):
        try:
            made = decode(mutant, where="a.png", limits=LIMITS)
        except RecordError:
            continue
        assert np.array_equal(made, want), mutant


def test_a_folder_of_damaged_gifs_is_read_to_its_end(tmp_path: Any) -> None:
    good = SEEDS["GIF"]()
    (tmp_path / "a.gif").write_bytes(good)
    for number, mutant in enumerate(mutants(good, 120, seed=5)):
        (tmp_path / f"m{number:03d}.gif").write_bytes(mutant)
    images = ps.read_images(tmp_path, labels=None, on_error="skip", budget=200).decode_images(8)
    loader = images.batch(11).to_numpy(threads=0)
    rows = sum(len(batch["image"]) for batch in loader)
    assert rows == 121
    skipped = {entry.file for entry in loader.ledger.entries}
    assert 10 < len(skipped) < 121
    assert all(str(tmp_path) in str(file) for file in skipped)


def test_a_folder_of_damaged_tiffs_keeps_no_pixels(tmp_path: Any) -> None:
    """Each of these is allocated (80 MB) before its damage shows; their errors must not hold on to the pixels."""
    import struct

    side = 4500
    tags = {256: side, 257: side, 258: 8, 259: 5, 262: 1, 273: 200, 277: 1, 278: side, 279: 50}
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    data = (b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + bytes(4)).ljust(200, b"\0") + b"\x80" + b"\xff" * 60
    for number in range(10):
        (tmp_path / f"{number:02d}.tif").write_bytes(data)
    for number in range(40):
        (tmp_path / f"fine{number}.tif").write_bytes(saved(picture(), "TIFF"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    images = ps.read_images(tmp_path, labels=None, on_error="skip", budget=100).decode_images(8)
    loader = images.batch(50).to_numpy(threads=0)
    assert len(next(iter(loader))["image"]) == 50
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"{grown >> 10} MB"
