"""Stated lengths are checked: truncated containers, FLAC without or with a wrong sample count, damaged Ogg pages."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from penstock.codecs.audio import flac, ogg
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import opened, probe
from penstock.core.errors import RecordError, StorageError
from penstock.core.limits import LIMITS

KINDS = [
    ("RF64", "PCM_16"), ("AIFF", "PCM_16"), ("AIFF", "ALAW"), ("AU", "PCM_16"), ("AU", "ULAW"), ("W64", "PCM_24"),
    ("CAF", "PCM_16"), ("CAF", "ALAC_16"), ("SVX", "PCM_16"), ("NIST", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"),
    ("OGG", "OPUS"), ("WAV", "IMA_ADPCM"),
]  # fmt: skip


def encoded(kind: str, subtype: str | None = None, seconds: float = 1.0, channels: int = 1, rate: int = 16000) -> bytes:
    noise = np.random.default_rng(0).normal(0, 0.1, (int(rate * seconds), channels))
    file = io.BytesIO()
    soundfile.write(file, noise, rate, format=kind, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_a_truncated_file_is_refused_and_never_shorter(kind: str, subtype: str, tmp_path: Path) -> None:
    data = encoded(kind, subtype)
    frames = probe(data).frames
    assert len(decode(data)) == frames >= 16000
    for share in (0.999, 0.9, 0.7, 0.5, 0.2):
        cut = data[: int(len(data) * share)]
        with pytest.raises(RecordError, match=r"cut\.snd"):
            decode(cut, where="cut.snd")
        (tmp_path / "cut.snd").write_bytes(cut)
        with pytest.raises(RecordError, match=r"cut\.snd"):
            decode(tmp_path / "cut.snd")


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("seconds", [0.01, 0.5, 3.0])
def test_flac_of_unknown_length_is_read_to_its_end(channels: int, seconds: float, tmp_path: Path) -> None:
    data = encoded("FLAC", "PCM_16", seconds, channels)
    want = decode(data, mono=False)
    streamed = flac.with_total(data, 0)
    assert flac.stated(streamed) == 0
    path = tmp_path / "streamed.flac"
    path.write_bytes(streamed)
    for given in (streamed, path, streamed + b"TAG".ljust(128, b"\0")):
        assert probe(given).frames == len(want)
        assert np.array_equal(decode(given, mono=False), want)
        assert np.array_equal(decode(given, mono=False, start=0.005), want[80:])
    with pytest.raises(RecordError, match="last frame"):
        decode(streamed[:-3], where="a.flac")


@pytest.mark.parametrize("change", [-5000, -1, 1, 4096])
def test_flac_with_a_wrong_length_is_refused(change: int) -> None:
    data = encoded("FLAC", "PCM_16")
    with pytest.raises(RecordError, match="samples, as its header says") as caught:
        decode(flac.with_total(data, 16000 + change), where="a.flac")
    assert "16,000" in caught.value.got


def pages(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 27 + data[26] + sum(data[27 : 27 + data[26]])
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_pages_are_verified(subtype: str) -> None:
    data = encoded("OGG", subtype, 6.0)
    want = decode(data)
    parts = pages(data)
    assert len(parts) > 4
    assert np.array_equal(decode(data + b"trailing bytes"), want)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(data), 60).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(RecordError):
            decode(bytes(changed), where="a.ogg")
    with pytest.raises(RecordError, match="page 4 after page 2"):
        decode(b"".join(parts[:3] + parts[4:]), where="a.ogg")
    with pytest.raises(RecordError, match="one stream"):
        decode(data + data, where="a.ogg")


def test_readers_share_the_position_of_the_file_with_libsndfile(tmp_path: Path) -> None:
    """Files too large to be read at once are read through one descriptor, by the checks and by libsndfile."""
    for kind, subtype in (("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("AIFF", "PCM_16"), ("CAF", "PCM_16")):
        data = encoded(kind, subtype, 90.0)
        path: Any = tmp_path / f"long.{kind}"
        path.write_bytes(data)
        assert len(data) > 256 << 10
        want = decode(data)
        assert np.array_equal(decode(path), want)
        assert np.array_equal(decode(path, start=30.0, duration=1.0), want[480000:496000])


@pytest.mark.parametrize("kind", ["FLAC", "AIFF", "WAV"])
def test_a_disk_that_fails_while_reading_is_not_a_bad_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "long.snd"
    path.write_bytes(encoded(kind, "PCM_16", 60.0))

    def fail_reads() -> None:  # the descriptor becomes one of a folder, which the system refuses to read
        number = next(n for n in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{n}") == str(path))
        folder = os.open(tmp_path, os.O_RDONLY)
        os.dup2(folder, int(number))
        os.close(folder)

    with pytest.raises(StorageError, match="long.snd"), opened(path, "", LIMITS) as (info, read):
        fail_reads()
        read(info.frames // 2, 1000)


def with_last_granule(data: bytes, less: int) -> bytes:
    """An Ogg file whose last page says that the sound ends `less` samples before the end of its packets."""
    at = data.rindex(b"OggS")
    page = bytearray(data[at:])
    page[6:14] = (int.from_bytes(page[6:14], "little") - less).to_bytes(8, "little")
    page[22:26] = ogg._crc(memoryview(page)).to_bytes(4, "little")
    return data[:at] + bytes(page)


@pytest.mark.parametrize("less", [0, 76, 594])
@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_slices_in_the_last_page_of_a_vorbis_file_are_those_of_the_full_file(less: int, seconds: float) -> None:
    data = with_last_granule(encoded("OGG", "VORBIS", seconds), less)
    full = decode(data)
    assert len(full) == round(seconds * 16000) - less
    for back in (1, 100, 700, 3000, len(full) - 1):
        first = len(full) - back
        assert np.array_equal(decode(data, start=first / 16000), full[first:]), back
        assert np.array_equal(decode(data, start=first / 16000, duration=0.01), full[first : first + 160]), back


def test_slices_of_a_file_without_seeks_are_reached_by_decoding() -> None:
    data = encoded("WAV", "GSM610", 2.0, rate=8000)
    full = decode(data)
    for first in (0, 1, 4000, len(full) - 10):
        assert np.array_equal(decode(data, start=first / 8000), full[first:])


def test_w64_of_unknown_length_is_read() -> None:
    data = encoded("W64", "PCM_16")
    piped = data[:16] + b"\xff" * 8 + data[24:]
    assert np.array_equal(decode(piped), decode(data))
