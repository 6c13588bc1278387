"""Small audio files are read at once, large ones in parts: the samples and the refusals are the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.codecs.audio import probe as probing
from penstock.codecs.audio import wav
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import probe
from penstock.core.errors import FileMissing, RecordError


@pytest.fixture(params=[0, probing.READ_AT_ONCE], ids=["in parts", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "READ_AT_ONCE", request.param)


@pytest.mark.usefixtures("way")
def test_samples_are_those_that_were_written(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.9, 0.9, 9000)
    (tmp_path / "a.wav").write_bytes(wav.encode(samples, 8000))
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    for name in ("a.wav", "a.flac"):
        assert probe(tmp_path / name).frames == 9000
        assert np.abs(decode(tmp_path / name) - samples).max() < 1e-4
        assert np.abs(decode(tmp_path / name, start=0.25, duration=0.5) - samples[2000:6000]).max() < 1e-4


@pytest.mark.usefixtures("way")
def test_bad_files_are_named_and_nothing_stays_open(tmp_path: Path) -> None:
    whole = wav.encode(np.zeros(5000), 8000)
    bad = {"cut.wav": whole[:-100], "empty.wav": b"", "none.wav": b"RIFF\0\0\0\0WAVEdata", "text.wav": b"hello there"}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe.wav")
    before = len(os.listdir("/proc/self/fd"))
    for name in [*bad, "pipe.wav"]:
        with pytest.raises(RecordError, match=name):
            decode(tmp_path / name)
    with pytest.raises(FileMissing, match="missing.wav"):  # not a bad record: nothing skips it
        decode(tmp_path / "missing.wav")
    assert len(os.listdir("/proc/self/fd")) == before
