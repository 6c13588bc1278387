"""MP3 lengths and slices come from frames: nothing is lost, nothing complete is refused, tags are not sound."""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from penstock.codecs.audio import mpeg
from penstock.codecs.audio import probe as probing
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import probe
from penstock.core.errors import RecordError

TINY = 5e-7


@lru_cache
def encoded(rate: int = 44100, mode: str = "VARIABLE", channels: int = 1, seconds: float = 4.0) -> bytes:
    t = np.arange(int(rate * seconds)) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t) * (np.sin(2 * t) > -0.5)
    noise = np.random.default_rng(0).normal(0, 0.05, len(t)) * (np.cos(3 * t) > 0)
    file = io.BytesIO()
    options: dict[str, Any] = {"bitrate_mode": mode, "compression_level": 0.5}
    with soundfile.SoundFile(file, "w", rate, channels, format="MP3", subtype="MPEG_LAYER_III", **options) as sound:
        sound.write(np.stack([tone + noise, tone - noise][:channels], 1))
    return file.getvalue()


def frame_sizes(data: bytes) -> list[int]:
    sizes, at = [], 0
    while at < len(data):
        sizes.append(mpeg._size(int.from_bytes(data[at : at + 4], "big"), 0))
        at += sizes[-1]
    return sizes


def bare(rate: int = 44100, mode: str = "VARIABLE", channels: int = 1) -> bytes:
    """The same without its Info or Xing frame: nothing states the length."""
    data = encoded(rate, mode, channels)
    return data[frame_sizes(data)[0] :]


def samples(data: bytes) -> np.ndarray:
    """All samples of a bare stream, whose Xing header is put back so that libsndfile knows the length."""
    found = mpeg.walk(data, "")
    assert found is not None
    stream, skip = mpeg.part(data, found, 0, found.samples)
    assert skip == 0
    with soundfile.SoundFile(io.BytesIO(stream)) as sound:
        return sound.read(found.samples, dtype="float32", always_2d=True)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("mode", ["CONSTANT", "AVERAGE", "VARIABLE"])
@pytest.mark.parametrize("rate", [44100, 22050, 8000])
def test_without_a_header_every_frame_is_decoded(rate: int, mode: str, channels: int) -> None:
    data = encoded(rate, mode, channels)
    trimmed, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert np.abs(decode(data, mono=False) - trimmed).max() <= TINY
    plain = bare(rate, mode, channels)
    each = 1152 if rate >= 32000 else 576
    whole = decode(plain, mono=False)
    assert len(whole) == each * len(frame_sizes(plain)) == probe(plain).frames
    found = mpeg.walk(data, "")
    assert found is not None
    assert np.abs(whole[found.begin :][: len(trimmed)] - trimmed).max() <= TINY  # the same sound, with its padding


@pytest.mark.parametrize("mode", ["CONSTANT", "AVERAGE", "VARIABLE"])
@pytest.mark.parametrize("rate", [44100, 8000])
@pytest.mark.parametrize("header", [True, False])
def test_slices_equal_the_full_decode(rate: int, mode: str, header: bool) -> None:
    data = encoded(rate, mode) if header else bare(rate, mode)
    whole = decode(data)
    for first in np.random.default_rng(3).integers(0, len(whole) - 1000, 40).tolist():
        assert (
            np.abs(decode(data, start=first / rate, duration=1000 / rate) - whole[first : first + 1000]).max() <= TINY
        )
    assert np.abs(decode(data, start=(len(whole) - 10) / rate) - whole[-10:]).max() <= TINY


def id3v2(size: int) -> bytes:
    length = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    picture = (b"\xff\xfb\x90\x64" + b"\xff\xe0\x00\x10JFIF" * 40 + b"\xff\xfb\x90\x64" * 3) * (size // 300 + 1)
    return b"ID3\x04\0\0" + length + picture[:size]


def ape(size: int) -> bytes:
    items = (b"\xff\xfb\x90\x44cover art " * (size // 14 + 1))[:size]
    fields = struct.pack("<II", 2000, size + 32)
    return (
        b"APETAGEX" + fields + struct.pack("<II", 1, 0xA0000000) + bytes(8) + items
        + b"APETAGEX" + fields + struct.pack("<II", 1, 0x80000000) + bytes(8)
    )  # fmt: skip


ID3V1 = b"TAG" + b"title".ljust(125, b"\0")
LYRICS = b"LYRICSBEGIN" + b"la la \xff\xfb\x90\x44 la" + b"LYRICS200"
AFTER = {
    "ID3v1": ID3V1,
    "ID3v2": id3v2(5000),
    "ID3v2 and ID3v1": id3v2(900) + ID3V1,
    "APE": ape(4000),
    "APE and ID3v1": ape(999) + ID3V1,
    "Lyrics3": LYRICS + ID3V1,
    "zeros": bytes(3000),
    "garbage": np.random.default_rng(1).bytes(3000),
    "text": b"end " * 500,
    "one byte": b"\xff",
}


@pytest.mark.parametrize("tail", AFTER)
def test_what_follows_the_last_frame_is_not_sound(tail: str) -> None:
    want = samples(bare())
    for data in (bare() + AFTER[tail], id3v2(3000) + bare() + AFTER[tail]):
        assert np.abs(decode(data, mono=False) - want).max() <= TINY
    kept = encoded() + AFTER[tail]
    assert np.abs(decode(kept) - decode(encoded())).max() <= TINY


def test_garbage_between_frames_is_skipped_and_joined_files_are_read_to_the_end() -> None:
    data = bare(mode="CONSTANT")
    sizes = frame_sizes(data)
    middle = sum(sizes[:50])
    broken = data[:middle] + b"some other bytes" * 20 + data[middle:]
    assert np.abs(decode(broken) - decode(data)).max() <= TINY
    both = encoded() + ID3V1 + id3v2(500) + encoded()
    assert probe(both).frames == 2 * 1152 * len(frame_sizes(bare()))
    whole = decode(both)
    assert np.abs(whole[: probe(bare()).frames] - samples(bare())[:, 0]).max() <= TINY


def test_a_cut_file_ends_with_its_last_frame_or_is_refused() -> None:
    plain = bare()
    last = frame_sizes(plain)[-1]
    for cut in (1, last // 2, last - 4):
        assert np.abs(decode(plain[:-cut]) - decode(plain)[:-1152]).max() <= TINY
    assert len(decode(plain[:-5] + ID3V1)) == len(decode(plain)) - 1152
    for cut in (1, 3000):
        with pytest.raises(RecordError, match=r"frames, as the header of this MP3 says"):
            decode(encoded()[:-cut], where="a.mp3")
        with pytest.raises(RecordError, match="a.mp3"):
            probe(encoded()[:-cut], where="a.mp3")


def test_free_format() -> None:
    plain = bytearray(bare(48000, "CONSTANT"))
    want = decode(bytes(plain))
    sizes = frame_sizes(bytes(plain))
    assert len(set(sizes)) == 1  # no padding at this rate
    for at in range(0, len(plain), sizes[0]):
        plain[at + 2] &= 0x0F  # bit rate index 0
    assert probe(bytes(plain)).frames == 1152 * len(sizes)
    assert np.abs(decode(bytes(plain)) - want).max() <= TINY
    rest = decode(bytes(plain), start=1.0, duration=0.5)
    assert np.abs(rest - want[48000:72000]).max() <= TINY


def test_a_large_file_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.mp3"
    path.write_bytes(encoded(seconds=60.0))
    assert path.stat().st_size > probing.READ_AT_ONCE
    calls = []
    walk = mpeg.walk
    monkeypatch.setattr(mpeg, "walk", lambda data, where: calls.append(where) or walk(data, where))
    want = decode(path.read_bytes())
    first = len(calls)
    for start in (0.0, 10.5, 40.25):
        at = round(start * 44100)
        assert np.abs(decode(path, start=start, duration=0.5) - want[at : at + 22050]).max() <= TINY
    assert len(calls) == first + 1
    path.write_bytes(encoded(seconds=61.0))
    assert probe(path).frames == 61 * 44100
    assert len(calls) == first + 2


def test_the_shortest_slices_are_read_where_frames_are_few() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 20_000), 44100, format="MP3")
    data = file.getvalue()
    full = decode(data)
    for first in (0, 1, 500, 1152, 5000, len(full) - 1):
        for length in (1, 10, 300):
            part = decode(data, start=first / 44100, duration=length / 44100)
            assert np.array_equal(part, full[first : first + length]), (first, length)


def test_tags_and_zeros_before_the_sound_are_passed_over() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 20_000), 44100, format="MP3")
    data = file.getvalue()
    small, large, zeros = id3v2(256), id3v2(220_000), bytes(5000)
    unsynchronised = small[:5] + b"\x80" + small[6:]
    for tags in (small * 3, large * 2, zeros, small + zeros, small + zeros + large + zeros, unsynchronised):
        assert np.array_equal(decode(tags + data), decode(data))
    with pytest.raises(RecordError, match=r"tags\.mp3"):
        decode(small * 100, where="tags.mp3")
