"""Samples: against soundfile's own reading, from paths and bytes, whole and in slices."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest
import soundfile
import soxr

from penstock.codecs.audio import wav
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import probe
from penstock.codecs.audio.resample import resample, resampled_length
from penstock.core.errors import FileMissing, RecordError, UsageError
from penstock.core.limits import Limits


def tone(seconds=1.0, rate=8000, channels=1):
    t = np.arange(int(seconds * rate)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * (300 + 200 * c) * t) for c in range(channels)], axis=1)


def pack(samples, rate=8000, kind="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


TINY = 5e-7  # MP3 decoding differs in the last bit with the alignment of its buffer; the others are equal

KINDS = [("WAV", s) for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "MS_ADPCM")]
KINDS += [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"),
          ("WAVEX", "PCM_16"), ("AU", "PCM_16")]  # fmt: skip


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_whole_files_and_slices_equal_soundfile(kind, subtype, channels, tmp_path):
    data = pack(tone(1.0, 16000, channels), 16000, kind, subtype)
    path = tmp_path / "x.any"
    path.write_bytes(data)
    reference, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    for given in (data, path, str(path), bytearray(data), memoryview(data)):
        whole = decode(given, mono=False)
        assert whole.dtype == np.float32
        assert whole.shape == reference.shape
        assert np.abs(whole - reference).max() <= TINY
    for first in (0, 1, 4000, 9001, 14000):  # of the full decode: soundfile's own seek gives silence in this MP3
        got = decode(path, start=first / 16000, duration=0.125, mono=False)
        assert np.abs(got - reference[first : first + 2000]).max() <= (TINY if subtype != "OPUS" else 2e-3)
    info = probe(data)
    assert (info.sample_rate, info.channels, info.frames) == (rate, channels, len(reference))


def test_mono_is_the_mean_and_stereo_is_kept():
    data = pack(tone(0.5, 8000, 2))
    both = decode(data, mono=False)
    assert both.shape == (4000, 2)
    assert np.abs(decode(data) - both.mean(axis=1)).max() < 1e-7
    assert decode(pack(tone(0.5)), mono=False).shape == (4000, 1)


def test_slices_at_the_end():
    data = pack(tone(1.0))
    assert decode(data, start=0.9, duration=5.0).shape == (800,)
    assert decode(data, start=1.0).shape == (0,)
    with pytest.raises(UsageError, match=r"start within 1\.000 seconds"):
        decode(data, start=1.5)
    with pytest.raises(UsageError, match="0 or more seconds"):
        decode(data, start=-1)


def test_a_slice_reads_only_its_bytes(tmp_path):
    """Half a second out of the middle of a (sparse) file of 200 MB takes no more memory than the half second."""
    frames = 100_000_000
    head = bytearray(wav.encode(np.zeros(0), 16000))
    head[40:44] = struct.pack("<I", frames * 2)
    path = tmp_path / "long.wav"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(44 + frames * 2)
    tracemalloc.start()
    try:
        made = decode(path, start=3000.0, duration=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.shape == (8000,)
    assert peak < 1_000_000


def test_resampling_is_soxr_and_its_length_is_planned():
    for rate, new in ((8000, 16000), (44100, 16000), (16000, 8000), (11025, 48000)):
        for n in (1, 2, 37, 1000, 8001):
            x = tone(1.0, n)[:n, 0].astype(np.float32) if n > 1 else np.ones(1, np.float32)
            assert len(resample(x, rate, new)) == resampled_length(n, rate, new)
    data = pack(tone(1.0))
    made = decode(data, sample_rate=16000)
    assert made.shape == (16000,)
    assert np.abs(made - soxr.resample(decode(data), 8000, 16000, quality="HQ")).max() == 0
    t = np.arange(16000) / 16000
    assert np.abs(made - 0.5 * np.sin(2 * np.pi * 300 * t))[500:-500].max() < 1e-3
    assert decode(pack(tone(1.0, 8000, 2)), sample_rate=16000, mono=False).shape == (16000, 2)
    with pytest.raises(UsageError, match="sample rates from 1"):
        resample(np.zeros(5), 8000, 0)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF"])
def test_truncation_is_noticed(kind):
    rng = np.random.default_rng(0)
    data = pack(rng.normal(0, 0.2, 16000), 8000, kind, "PCM_16")
    for share in (0.3, 0.7, 0.95):
        with pytest.raises(RecordError) as error:
            decode(data[: int(len(data) * share)], where="cut.aud")
        assert "where: cut.aud" in str(error.value)


def test_lengths_of_pipes_are_the_rest_of_the_file():
    data = bytearray(pack(tone(1.0)))
    at = data.index(b"data") + 4
    for size in (0, 0xFFFFFFFF):
        data[at : at + 4] = struct.pack("<I", size)
        assert decode(bytes(data)).shape == (8000,)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"no audio at all, but text", "beginning b'no audio at "),
        (b"RIFF\0\0\0\0WAVE", "without a data chunk"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0\0\0\0\0", "format chunk before the samples"),
        (b"RIFF\0\0\0\0WAVEfmt \4\0\0\0\0\0\0\0", "format chunk of 16 bytes"),
        (b"fLaC" + b"\xff" * 60, "FLAC"),
    ],
)
def test_refusals_name_the_file(data, text):
    with pytest.raises(RecordError) as error:
        decode(data, where="shelf/x.wav")
    assert text in str(error.value)
    assert "where: shelf/x.wav" in str(error.value)


def test_headers_that_contradict_themselves_or_promise_too_much(tmp_path):
    good = wav.encode(np.zeros(100), 8000)
    for at, value in ((22, b"\0\0"), (24, b"\0\0\0\0"), (32, b"\7\0")):
        with pytest.raises(RecordError, match="a consistent WAV format chunk"):
            decode(good[:at] + value + good[at + len(value) :])
    with pytest.raises(RecordError, match=r"4,294,967,294 bytes of samples.*\n.*200 bytes"):
        decode(good[:40] + struct.pack("<I", 0xFFFFFFFE) + good[44:])
    with pytest.raises(RecordError, match="at most 1 seconds"):
        decode(pack(tone(2.0)), limits=Limits(audio_seconds=1.0))
    path = tmp_path / "x.wav"
    path.write_bytes(good)
    with pytest.raises(RecordError, match="at most 100 bytes"):
        decode(path, limits=Limits(record_bytes=100))
    with pytest.raises(FileMissing, match=r"gone\.wav"):
        decode(tmp_path / "gone.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(RecordError, match="regular file"):
        decode(tmp_path / "pipe.wav")


def test_not_a_number_does_not_reach_training():
    samples = np.zeros(100, np.float32)
    samples[50] = np.nan
    with pytest.raises(RecordError, match="finite samples"):
        decode(pack(samples, subtype="FLOAT"), where="x.wav")


def test_reading_and_resampling_run_outside_the_interpreter_lock(tmp_path):
    path = str(tmp_path / "x.flac")
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 400_000), 16000)
    samples = np.zeros(2_000_000, np.float32)
    calls = {"soundfile": lambda: soundfile.read(path), "soxr": lambda: soxr.resample(samples, 8000, 16000)}
    steps, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            steps[0] += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    other = threading.Thread(target=count)
    other.start()
    sys.setswitchinterval(100.0)
    try:
        ran = {}
        for name, call in calls.items():
            start = steps[0]
            for _ in range(200):  # a busy machine may not have a core for the other thread at once
                call()
                if steps[0] > start:
                    break
            ran[name] = steps[0] - start
    finally:
        sys.setswitchinterval(before)
        stop.set()
        other.join()
    assert all(count > 0 for count in ran.values()), ran
