"""A folder of hostile pictures and recordings: nothing crashes, every answer names its file, memory stays small."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from functools import lru_cache

import numpy as np
import pytest
import soundfile
from PIL import Image

from penstock.codecs.audio import wav
from penstock.codecs.audio.decode import decode as decode_audio
from penstock.codecs.image.decode import decode as decode_image
from penstock.core.errors import RecordError
from penstock.core.limits import Limits

LIMIT_MB = 256

CHILD = r"""
import json, resource, sys, warnings
warnings.simplefilter("error")
import numpy as np
from penstock.core.errors import PenstockError
from penstock.codecs.audio import decode as audio
from penstock.codecs.image import decode as image
from penstock.sources.folders import AudioFolder, ImageFolder

root = sys.argv[1]
answers = {}

def peak():  # of this program: ru_maxrss would carry over what the parent held before it started us
    try:
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

sources = [(ImageFolder(root, labels=None), lambda d, w: image.decode(d, size=(64, 64), where=w)),
           (AudioFolder(root, labels=None), lambda d, w: audio.decode(d, sample_rate=16000, where=w))]
for source, decode in sources:  # libraries loaded before memory is measured
    first = next(i for i, name in enumerate(source.names) if name.startswith("fine"))
    decode(source.read(np.array([first]))["bytes"][0], "fine")
before = peak()
for source, decode in sources:
    for index in range(len(source)):
        where = source.locate(index)["file"]
        try:
            made = decode(source.read(np.array([index]))["bytes"][0], where)
            answers[source.names[index]] = ["ok", list(made.shape), peak() - before]
        except PenstockError as error:
            answers[source.names[index]] = [type(error).__name__, str(error), peak() - before]
print(json.dumps({"answers": answers, "grew": peak() - before}))
"""


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width, height, pixels=b"", bits=8, colour=2, extra=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(pixels)) if pixels is not None else b""
    return b"\x89PNG\r\n\x1a\n" + head + extra + data + chunk(b"IEND", b"")


def saved(kind, size=(40, 30), mode="RGB", **options):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


def jpeg_sized(width, height, marker=0xC0):
    data = bytearray(saved("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 1] = marker
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def tiff(width, height, **tags):
    entries = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: 16} | {
        int(k[1:]): v for k, v in tags.items()
    }
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + body + bytes(4 + 64)


def sound(kind, subtype=None, seconds=0.2):
    file = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, int(16000 * seconds))
    soundfile.write(file, noise, 16000, format=kind, subtype=subtype)
    return file.getvalue()


def wav_with(**fields):
    data = bytearray(wav.encode(np.zeros(1000), 16000))
    places = {"riff": (4, "<I"), "channels": (22, "<H"), "rate": (24, "<I"), "align": (32, "<H"), "bits": (34, "<H"),
              "data": (40, "<I"), "fmt": (16, "<I")}  # fmt: skip
    for name, value in fields.items():
        at, code = places[name]
        struct.pack_into(code, data, at, value)
    return bytes(data)


def flac_claiming(samples):
    data = bytearray(sound("FLAC"))
    data[8 + 13] = (data[8 + 13] & 0xF0) | (samples >> 32)
    data[8 + 14 : 8 + 18] = struct.pack(">I", samples & 0xFFFFFFFF)
    return bytes(data)


@lru_cache
def hostile():
    jpeg, flac = saved("JPEG", (200, 200)), sound("FLAC")
    gif, zeros = saved("GIF"), zlib.compress(bytes(300_000_000), 1)
    loops = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 1) + struct.pack("<HHII", 256, 4, 1, 5)
    return {
        # bombs and lies about size
        "bomb_png.png": png(30_000, 30_000, bytes(100)),
        "bomb_png_max.png": png(2**31 - 1, 2**31 - 1, bytes(100)),
        "bomb_png_wide.png": png(2**31 - 1, 1, bytes(100)),
        "bomb_jpeg.jpg": jpeg_sized(65_535, 65_535),
        "bomb_progressive.jpg": jpeg_sized(65_500, 65_500, 0xC2),
        "bomb_gif.gif": gif[:6] + b"\xff\xff\xff\xff" + gif[10:],
        "bomb_bmp.bmp": b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, 50_000, 50_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "bomb_ppm.ppm": b"P6\n60000 60000\n255\n" + bytes(100),
        "bomb_tiff.tif": tiff(100_000, 100_000),
        "bomb_webp.webp": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff" + bytes(16),
        "lie_png_larger.png": png(3000, 3000, bytes(100)),
        "lie_png_zero.png": png(0, 10, b""),
        "lie_jpeg_taller.jpg": jpeg_sized(40, 3000),
        "lie_jpeg_no_height.jpg": jpeg_sized(40, 0),
        "text_bomb.png": png(8, 8, bytes(8 * 25), extra=chunk(b"zTXt", b"k\0\0" + zeros)),
        "icc_bomb.png": png(8, 8, bytes(8 * 25), extra=chunk(b"iCCP", b"k\0\0" + zeros)),
        "scans.jpg": jpeg_sized(2000, 2000, 0xC2) + b"\xff\xda\0\x08\1\1\0\0\x3f\0" * 5000,
        # truncated and damaged
        "empty.jpg": b"",
        "one_byte.png": b"\x89",
        "half.jpg": jpeg[: len(jpeg) // 2],
        "header_only.jpg": jpeg[:30],
        "half.png": saved("PNG", (200, 200))[:20_000],
        "half.gif": saved("GIF", (200, 200))[:9_000],
        "half.webp": saved("WEBP", (200, 200))[:3_000],
        "half.tif": saved("TIFF", (200, 200))[:50_000],
        "half.bmp": saved("BMP", (200, 200))[:50_000],
        "crc.png": saved("PNG").replace(b"IDAT", b"IDAX", 1),
        "no_tables.jpg": jpeg.replace(b"\xff\xdb", b"\xff\xee"),
        "segment_zero.jpg": b"\xff\xd8\xff\xe1\0\0" + bytes(100),
        "fill_forever.jpg": b"\xff\xd8" + b"\xff" * 1_000_000,
        "tiff_loop.tif": loops + struct.pack("<I", 8) + bytes(64),
        "tiff_float.tif": saved("TIFF", mode="F"),
        # other things under these names
        "text.jpg": b"just text, no picture at all",
        "html.png": b"<html><script>alert(1)</script></html>",
        "svg.png": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "pickle.jpg": b"\x80\x04\x95\x10\0\0\0cos\nsystem\n(S'id'\ntR.",
        "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\n",
        "program.bmp": b"\x7fELF" + bytes(200),
        "sound.png": wav.encode(np.zeros(100), 8000),
        # recordings
        "claims_4_gb.wav": wav_with(data=0xFFFFFFFE, riff=0xFFFFFFFF),
        "rate_zero.wav": wav_with(rate=0),
        "no_channels.wav": wav_with(channels=0),
        "many_channels.wav": wav_with(channels=65_535, align=65_534),
        "odd_align.wav": wav_with(align=3),
        "fmt_huge.wav": wav_with(fmt=0xFFFFFFF0),
        "slow_for_ever.wav": wav_with(rate=1, bits=8, align=1, channels=1)[:40]
        + struct.pack("<I", 40_000)
        + bytes(40_000),
        "empty.wav": b"",
        "riff_only.wav": b"RIFF\xff\xff\xff\xffWAVE",
        "chunks.wav": b"RIFF\0\0\0\0WAVE" + (b"junk" + bytes(4)) * 5000,
        "half.wav": wav.encode(np.zeros(10_000), 16000)[:9_000],
        "half.flac": flac[: len(flac) // 2],
        "claims_days.flac": flac_claiming((1 << 36) - 1),
        "damaged.flac": flac[:900] + bytes(900) + flac[1800:],
        "text.mp3": b"ID3 no, this is text" * 20,
        "picture.wav": jpeg,
        "nan.wav": b"",
        "garbage.ogg": b"OggS" + bytes(range(256)) * 20,
        "aiff_cut.aiff": sound("AIFF")[:2000],
    }


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    files = dict(hostile())
    nan = io.BytesIO()
    soundfile.write(nan, np.full(100, np.nan, np.float32), 16000, format="WAV", subtype="FLOAT")
    files["nan.wav"] = nan.getvalue()
    for name, data in files.items():
        (root / name).write_bytes(data)
    (root / "fine.jpg").write_bytes(saved("JPEG"))
    (root / "fine_but_with_a_tail.png").write_bytes(png(2, 2, bytes(5_000_000)))
    (root / "fine.wav").write_bytes(wav.encode(np.zeros(1000), 8000))
    (root / "fine_under_a_wrong_name.jpg").write_bytes(saved("PNG"))
    with open(root / "sparse.jpg", "wb") as file:
        file.truncate(10 << 30)
    os.mkfifo(root / "pipe.jpg")
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(root)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return root, set(files) | {"sparse.jpg"}, json.loads(run.stdout)


def test_the_folder_is_large_enough():
    assert len(hostile()) >= 40


def test_every_hostile_file_is_refused_with_its_name(outcome):
    root, bad, result = outcome
    answers = result["answers"]
    assert set(answers) == bad | {"fine.jpg", "fine.wav", "fine_but_with_a_tail.png", "fine_under_a_wrong_name.jpg"}
    for name in bad:
        kind, text, _ = answers[name]
        assert kind in ("RecordError", "BadRecords"), (name, kind, text)
        assert f"where: {root / name}" in text, (name, text)
        if name.startswith("bomb"):  # from the header, not because decoding failed
            assert "at most 89,478,485 pixels" in text, (name, text)


def test_good_files_among_them_are_read(outcome):
    answers = outcome[2]["answers"]
    assert answers["fine.jpg"][:2] == ["ok", [64, 64, 3]]
    assert answers["fine_under_a_wrong_name.jpg"][:2] == ["ok", [64, 64, 3]]
    assert answers["fine_but_with_a_tail.png"][:2] == ["ok", [64, 64, 3]]
    assert answers["fine.wav"][:2] == ["ok", [2000]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_random_damage_to_pictures_gives_pixels_or_a_record_error(kind):
    good = saved(kind, (60, 50))
    rng = np.random.default_rng(1)
    for _ in range(60):
        data = damaged(good, rng)
        try:
            made = decode_image(data, crop=None, size=(20, 20), where="x", limits=Limits(pixels=1_000_000))
        except RecordError:
            continue
        assert made.shape == (20, 20, 3)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64"])
def test_random_damage_to_sound_gives_samples_or_a_record_error(kind):
    good = sound(kind)
    rng = np.random.default_rng(2)
    for _ in range(60):
        data = damaged(good, rng)
        try:
            made = decode_audio(data, where="x", limits=Limits(audio_seconds=600))
        except RecordError:
            continue
        assert np.isfinite(made).all()


def damaged(good, rng):
    data = bytearray(good)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, min(len(data), 200) if rng.random() < 0.7 else len(data)))
        data[at] = int(rng.integers(0, 256))
    return bytes(data[: int(rng.integers(1, len(data)))] if rng.random() < 0.2 else data)


def test_memory_stays_small(outcome):
    result = outcome[2]
    assert result["grew"] < LIMIT_MB, sorted((v[2], k) for k, v in result["answers"].items())[-5:]
