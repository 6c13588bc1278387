"""Mutated recordings of every format: samples or a `RecordError`; where a format has checksums, never other samples."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from penstock.codecs.audio.decode import decode
from penstock.core.limits import Limits
from tests.hostile.fuzzing import fuzz

LIMITS = Limits(audio_seconds=600)
KINDS = {
    "WAV": "PCM_16",
    "WAV float": "FLOAT",
    "WAV adpcm": "IMA_ADPCM",
    "WAVEX": "PCM_24",
    "RF64": "PCM_16",
    "AIFF": "PCM_16",
    "AU": "PCM_16",
    "CAF": "PCM_16",
    "CAF alac": "ALAC_16",
    "W64": "PCM_16",
    "MP3": "MPEG_LAYER_III",
    "NIST": "PCM_16",
}
CHECKED = {"OGG vorbis": "VORBIS", "OGG opus": "OPUS"}


def encoded(kind: str, subtype: str) -> bytes:
    noise = np.random.default_rng(0).normal(0, 0.1, 3000)
    file = io.BytesIO()
    soundfile.write(file, noise, 16000, format=kind.partition(" ")[0], subtype=subtype)
    return file.getvalue()


def read(data: bytes) -> list[float]:
    made = decode(data, where="a.snd", limits=LIMITS)
    assert np.isfinite(made).all()
    return made.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_give_samples_or_a_record_error(kind: str) -> None:
    fuzz(read, encoded(kind, KINDS[kind]), 250, seed=6)


def test_mp3_without_a_header() -> None:
    from penstock.codecs.audio import mpeg

    data = encoded("MP3", "MPEG_LAYER_III")
    fuzz(read, data[mpeg._size(int.from_bytes(data[:4], "big"), 0) :], 250, seed=7)


@pytest.mark.parametrize("kind", CHECKED)
def test_no_mutant_of_an_ogg_gives_other_samples(kind: str) -> None:
    fuzz(read, encoded(kind, CHECKED[kind]), 400, seed=8, checked=True)


def test_no_mutant_of_the_frames_of_a_flac_gives_other_samples() -> None:
    data = encoded("FLAC", "PCM_16")
    start = data.index(b"\xff\xf8", 42)
    fuzz(lambda mutant: read(data[:start] + mutant), data[start:], 400, seed=9, checked=True)
    fuzz(read, data, 250, seed=10)
