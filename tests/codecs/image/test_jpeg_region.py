"""Regions of JPEGs: the same pixels and errors with a libturbojpeg as without, for good, odd and damaged files."""

from __future__ import annotations

import ctypes.util
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

import penstock as ps
from penstock.codecs.image import jpeg_region
from penstock.codecs.image.decode import decode
from penstock.codecs.image.jpeg import height_for, scale_for
from penstock.codecs.image.jpeg_header import read_header
from penstock.codecs.image.probe import probe
from penstock.codecs.image.turbojpeg import VARIABLE, TurboJpeg, load
from penstock.core.errors import RecordError
from tests.codecs.image import tiny_jpeg
from tests.codecs.image.conftest import make_photo
from tests.codecs.image.regions import OFF, installed, using

SAMPLINGS = ("444", "422", "420", "440", "411")


def jpeg(height: int, width: int, sampling: str = "420", seed: int = 0, *, progressive: bool = False) -> bytes:
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    return bytes(cv2.imencode(".jpg", make_photo(height, width, seed), options)[1])


def by_pillow(height: int, width: int, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(make_photo(height, width)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def outcome(data: bytes, **how: Any) -> str | bytes:
    try:
        pixels = decode(data, **how)
    except RecordError as error:
        return str(error)
    return repr(pixels.shape).encode() + pixels.tobytes()


def regions_in(data: bytes, box: Any, size: Any) -> bool:
    info = read_header(data, "")
    shrink = scale_for(box, size)
    full = (-(-height_for(info, box) // shrink), -(-info.width // shrink))
    return jpeg_region.region_for(data, info, box, shrink, full) is not None


def boxes(height: int, width: int, count: int, seed: int = 0) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        made.append((int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w))
    return made


def test_every_sampling_scale_mode_and_turn_has_the_same_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    cases: list[tuple[bytes, dict[str, Any]]] = []
    files = [jpeg(131, 203, sampling) for sampling in SAMPLINGS]
    files += [by_pillow(90, 75, "L"), by_pillow(131, 203, exif=exif), by_pillow(131, 203, restart_marker_rows=1)]
    files += [jpeg(131, 203, progressive=True), by_pillow(90, 75, "CMYK")]
    for number, data in enumerate(files):
        info = read_header(data, "")
        for crop in boxes(*info.oriented, 12, number):
            for size in (None, (9, 8), (40, 30)):
                cases += [(data, {"crop": crop, "size": size, "mode": mode}) for mode in ("RGB", "L", "RGBA")]
                cases += [(data, {"crop": crop, "size": size, "method": "pillow", "check": "whole"})]
    with using(OFF):
        without = [outcome(data, **how) for data, how in cases]
    with using(installed()) as which:
        assert "not used" not in which
        assert jpeg_region.chosen()[0] is not None
        assert [outcome(data, **how) for data, how in cases] == without
    assert sum(regions_in(data, how["crop"], how["size"]) for data, how in cases) > len(cases) / 3


def test_every_column_and_row_a_box_can_begin_at() -> None:
    library = TurboJpeg(installed())
    for sampling, block in zip(SAMPLINGS, (8, 16, 16, 8, 32), strict=True):
        data = jpeg(67, 107, sampling)
        for shrink in (1, 2, 4, 8):
            size = (-(-67 // shrink), -(-107 // shrink))
            full = simplejpeg.decode_jpeg(data, "RGB", min_height=size[0], min_width=size[1])
            for at in range(106):
                w = min(1 + at % 37, 107 - at)
                region = jpeg_region._region((at % 66, at, 1, w), shrink, size, block)
                y, x, height, width = region
                out = np.empty((height, width, 3), np.uint8)
                assert library.decode(data, (67, 107), shrink, region, out) == ""
                first, end = at // shrink, -(-(at + w) // shrink)
                assert np.array_equal(out[:, first - x : end - x], full[y:, first:end]), (sampling, shrink, at)


@cache
def sound(kind: int, seed: int) -> bytes:
    """A small JPEG of one of 10 kinds."""
    if kind < len(SAMPLINGS):
        return jpeg(97, 150, SAMPLINGS[kind], seed)
    match kind:
        case 5:
            return by_pillow(97, 150, restart_marker_rows=1)
        case 6:
            return by_pillow(97, 150, optimize=True, icc_profile=b"profile" * 50)
        case 7:
            return by_pillow(97, 150, "L")
        case 8:
            return jpeg(97, 150, seed=seed, progressive=True)
    planes = np.random.default_rng(seed).integers(90, 160, (3, 13, 19))
    return tiny_jpeg.encode(list(planes), [(2, 1), (1, 1), (1, 1)], 97, 150)


def mutated(seed: int) -> bytes:
    """A small JPEG with something wrong in it: changed bytes, lost or repeated parts, a cut, another header."""
    rng = np.random.default_rng(seed)
    data = bytearray(sound(seed % 10, seed // 10 % 5))
    scan = data.index(b"\xff\xda")
    for _ in range(int(rng.integers(1, 4))):
        low, high = (2, min(scan + 14, len(data))) if rng.random() < 0.4 else (scan, len(data))
        if high - low < 30:
            continue
        at = int(rng.integers(low, high - 20))
        match int(rng.integers(0, 8)):
            case 0 | 1 | 2:
                data[at] = int(rng.integers(0, 256))
            case 3:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 4:
                del data[at : at + int(rng.integers(1, 20))]
            case 5:
                data[at:at] = data[at : at + int(rng.integers(1, 20))]
            case 6:
                data[at:at] = bytes([0xFF, int(rng.integers(0xC0, 0x100))])
            case 7:
                del data[max(at, 20) :]
    return bytes(data)


def damaged_outcomes(seeds: range) -> list[str | bytes]:
    made = []
    for seed in seeds:
        data = mutated(seed)
        try:
            height, width = probe(data).oriented
        except RecordError:
            height, width = 97, 150
        crop = boxes(height, width, 1, seed)[0]
        for check in ("crop", "whole"):
            for strict in (True, False):
                size = ((8, 8), (30, 20), None)[seed % 3]
                made.append(outcome(data, crop=crop, size=size, strict=strict, check=check))
    return made


def compare_damaged(seeds: range) -> None:
    with using(OFF):
        without = damaged_outcomes(seeds)
    with using(installed()):
        found = damaged_outcomes(seeds)
    different = [seeds[number // 4] for number, (a, b) in enumerate(zip(without, found, strict=True)) if a != b]
    assert not different
    assert sum(isinstance(each, str) for each in without) > len(without) / 10  # errors, and
    assert sum(isinstance(each, bytes) for each in without) > len(without) / 10  # pixels


def test_damaged_files_have_the_same_pixels_or_errors() -> None:
    compare_damaged(range(150))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_damaged_files_have_the_same_pixels_or_errors(part: int) -> None:
    compare_damaged(range(1000 + 1000 * part, 2000 + 1000 * part))


def test_truncation_is_noticed_wherever_the_file_ends() -> None:
    data = jpeg(97, 150)
    cuts = [data[:at] for at in range(len(data) - 1, 600, -97)]
    box = (40, 100, 20, 20)
    with using(OFF):
        without = [outcome(cut, crop=box) for cut in cuts]
    with using(installed()):
        assert [outcome(cut, crop=box) for cut in cuts] == without
    assert sum("Premature end" in str(each) for each in without) > len(cuts) / 2


def test_tables_of_one_image_are_not_used_for_the_next() -> None:
    """Motion JPEG leaves out the usual Huffman tables; others must not come from the image before."""
    first, second = by_pillow(97, 150, optimize=True), jpeg(97, 150, seed=3)
    frame = second
    while (at := frame.find(b"\xff\xc4")) > 0:
        frame = frame[:at] + frame[at + 2 + int.from_bytes(frame[at + 2 : at + 4], "big") :]
    box = (0, 0, 40, 40)
    with using(OFF):
        alone = outcome(frame, crop=box)
        assert alone == outcome(second, crop=box)
    with using(installed()):
        for _ in range(3):
            assert isinstance(outcome(first, crop=box), bytes)
            assert outcome(frame, crop=box) == alone


def test_a_sampling_that_is_not_probed_is_decoded_as_before() -> None:
    planes = [np.arange(32, dtype=np.uint8).reshape(4, 8) * 7 for _ in range(3)]
    data = tiny_jpeg.encode(planes, [(2, 4), (1, 1), (1, 1)], 32, 64)
    assert not regions_in(data, (0, 40, 8, 8), None)
    with using(OFF):
        without = outcome(data, crop=(0, 40, 8, 8))
    with using(installed()):
        assert outcome(data, crop=(0, 40, 8, 8)) == without


def test_a_size_that_libturbojpeg_reads_otherwise_is_not_decoded() -> None:
    data = jpeg(97, 150)
    out = np.empty((97, 40, 3), np.uint8)
    assert TurboJpeg(installed()).decode(data, (97, 151), 1, (0, 0, 97, 40), out) is None
    with pytest.raises(AssertionError, match="expected a buffer for 97 x 41 pixels, got 11640 bytes"):
        TurboJpeg(installed()).decode(data, (97, 150), 1, (0, 0, 97, 41), out)


class Wrong(TurboJpeg):
    """Decodes one pixel otherwise."""

    def decode(self, data: Any, size: Any, shrink: int, region: Any, out: Any) -> str | None:
        said = super().decode(data, size, shrink, region, out)
        out[-1, -6] ^= 1
        return said


def test_a_library_with_another_pixel_is_noticed() -> None:
    path = installed()
    assert jpeg_region.difference(TurboJpeg(path)) == ""
    found = jpeg_region.difference(Wrong(path))
    assert found.startswith("other pixels than simplejpeg's in region (")


def test_what_cannot_be_used_is_said(tmp_path: Any) -> None:
    text = tmp_path / "libturbojpeg.so.0"
    text.write_text("no library")
    with using(str(text)) as which:
        assert which.startswith(f"{text} cannot be loaded: ")
    with using(str(tmp_path / "missing.so")) as which:
        assert which == f"{VARIABLE}: no file {tmp_path / 'missing.so'}"
    libc = ctypes.util.find_library("c")
    assert libc is not None
    with using(libc) as which:
        assert which == f"{libc} is older than libjpeg-turbo 3.0"
    with using(OFF) as which:
        assert which == f"switched off by {VARIABLE}=off"
        assert load()[0] is None


def test_a_library_in_the_working_directory_is_never_loaded(tmp_path: Any) -> None:
    for name in ("libturbojpeg.so.0", "libturbojpeg.0.dylib", "turbojpeg.dll"):
        (tmp_path / name).write_text("not a library: loading it would be an error that is named")
    code = "from penstock.codecs.image.turbojpeg import load; print(load()[1])"
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environ["PYTHONPATH"] = str(Path(ps.__file__).parents[1])
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert str(tmp_path) not in made.stdout
    assert "cannot be loaded" not in made.stdout


def test_batches_are_the_same_with_and_without_a_library(tmp_path: Any) -> None:
    for number in range(48):
        side = 100 + 13 * (number % 7)
        (tmp_path / f"{number:02}.jpg").write_bytes(jpeg(side, side + 70, SAMPLINGS[number % 5], number))
    images = ps.read_images(tmp_path, labels=None).shuffle(seed=3)

    def batches(threads: int) -> list[bytes]:
        random = images.decode_images(32, crop="random").batch(8).to_numpy(threads=threads)
        centre = images.decode_images(48, crop="center", share=0.6, dtype="uint8").batch(8).to_numpy(threads=threads)
        return [batch["image"].tobytes() for loader in (random, centre) for batch in loader]

    with using(OFF):
        without = batches(0)
    with using(installed()):
        assert batches(0) == without
        assert batches(3) == without


def test_threads_decode_regions_at_once() -> None:
    files = [jpeg(200, 300, SAMPLINGS[number % 5], number) for number in range(10)]
    crops = boxes(200, 300, 200)
    with using(OFF):
        without = [outcome(files[number % 10], crop=crop, size=(20, 20)) for number, crop in enumerate(crops)]
    with using(installed()), ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda n: outcome(files[n % 10], crop=crops[n], size=(20, 20)), range(len(crops)))
        assert list(made) == without
