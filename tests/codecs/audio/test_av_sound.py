"""AAC, M4A, WebM and Matroska audio through PyAV: slices are those of the full file; damage is a bad record."""

from __future__ import annotations

import io
import random
from pathlib import Path

import av
import numpy as np
import pytest

import penstock as ps
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import probe
from penstock.core.errors import RecordError
from penstock.core.limits import Limits
from penstock.testing import assert_exact_resume
from tests.codecs.media_files import KINDS, encoded_sound, tone

RATE = 48000


@pytest.fixture(scope="module", params=sorted(KINDS))
def file(request: pytest.FixtureRequest) -> tuple[bytes, np.ndarray]:
    samples = tone(3.0, RATE, 2 if request.param == "m4a" else 1)
    return encoded_sound(samples, RATE, request.param), samples


def test_samples_and_slices_are_where_they_belong(file: tuple[bytes, np.ndarray]) -> None:
    data, want = file
    info = probe(data)
    assert (info.sample_rate, info.channels) == (RATE, want.shape[1])
    assert abs(info.frames - len(want)) <= 2500
    made = decode(data, mono=False)
    lags = [float(np.abs(made[1000 + k : 100_000 + k, 0] - want[1000:100_000, 0]).mean()) for k in range(0, 2200, 8)]
    lag = 8 * int(np.argmin(lags))
    assert min(lags) < 0.02  # the same sound, at most an encoder's delay later
    assert lag <= 2112
    for start, duration in ((0.0, 0.5), (0.7, 0.25), (2.4, 0.3), (1.00001, 0.1)):
        part = decode(data, start=start, duration=duration, mono=False)
        first = round(start * RATE)
        assert part.shape == (round(duration * RATE), want.shape[1])
        assert np.array_equal(part, made[first : first + len(part)])


@pytest.mark.parametrize("kind", ["webm", "mka"])
@pytest.mark.parametrize("rate", [8000, 16000, 24000])
def test_opus_of_low_rates_keeps_its_beginning(kind: str, rate: int) -> None:
    """FFmpeg states a start time for such files that lies behind their first samples."""
    data = encoded_sound(tone(1.0, rate), rate, kind)
    with av.open(io.BytesIO(data)) as container:
        want = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    made = decode(data)
    assert len(made) >= len(want) and probe(data).frames == len(made)
    assert np.array_equal(made[: len(want)], want)


def test_late_slices_are_reached_by_a_seek() -> None:
    samples = tone(45.0, 16000)
    for kind in ("m4a", "mka"):
        rate = 16000 if kind == "m4a" else 48000
        data = encoded_sound(samples if rate == 16000 else tone(45.0, 48000), rate, kind)
        full = decode(data)
        part = decode(data, start=40.0, duration=0.5)
        places = range(40 * rate - rate // 1000, 40 * rate + rate // 1000 + 1)  # WebM stamps are milliseconds
        assert min(np.abs(part - full[at : at + rate // 2]).max() for at in places) < 1e-2
        assert np.abs(part).mean() > 0.1


def test_folders_and_pipelines_take_them(tmp_path: Path) -> None:
    for i, kind in enumerate(sorted(KINDS)):
        (tmp_path / f"{i}.{kind}").write_bytes(encoded_sound(tone(1.0 + 0.2 * i, RATE), RATE, kind))
    audio = ps.read_audio(tmp_path, None)
    assert len(audio.rows()) == len(KINDS)
    made = audio.repeat(4).shuffle(seed=1).decode_audio(16000, duration=0.5)
    assert_exact_resume(lambda: made.batch(4))
    batch = made.batch(4).to_numpy(threads=2).batch_at(0)
    assert batch["audio"].shape == (4, 8000)
    assert (np.abs(batch["audio"]).mean(axis=1) > 0.1).all()


def test_damage_and_wrong_files_are_bad_records() -> None:
    data = encoded_sound(tone(1.0, RATE), RATE, "m4a")
    for bad in (data[: len(data) // 2], data[:60], b"\0\0\0\x1cftypisom", b"\x1aE\xdf\xa3" + bytes(100)):
        with pytest.raises(ps.RecordError):
            decode(bad)
    with pytest.raises(ps.RecordError, match="at most 0 seconds|at most 1 seconds"):
        probe(encoded_sound(tone(3.0, RATE), RATE, "m4a"), limits=Limits(audio_seconds=0.9))
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    with pytest.raises(ps.RecordError):
        decode(playlist)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_changed_bytes_never_crash(kind: str) -> None:
    """Each file is decoded to the end, or is a bad record. Runs in this process: a crash ends the tests."""
    data = encoded_sound(tone(0.3, RATE), RATE, kind)
    rng = random.Random(4)
    outcomes = set()
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 12)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cut = bytes(changed[: rng.choice([len(changed), rng.randrange(len(changed))])])
        try:
            made = decode(cut, limits=Limits(audio_seconds=30.0))
            assert made.ndim == 1
            assert len(made) <= 31 * 192000
            outcomes.add("decoded")
        except (ps.RecordError, ps.MissingExtra):
            outcomes.add("refused")
    assert outcomes == {"decoded", "refused"}


def test_frames_of_bare_aac_are_counted() -> None:
    loud = np.random.default_rng(0).normal(0, 0.2, (RATE, 1)).astype(np.float32)
    for parts in ([np.zeros_like(loud)] * 3 + [loud], [loud] + [np.zeros_like(loud)] * 3):  # no even bit rate
        data = encoded_sound(np.concatenate(parts), RATE, "aac")
        with av.open(io.BytesIO(data)) as container:
            want = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], 1)[0]
        assert probe(data).frames == len(want)
        assert np.array_equal(decode(data), want)
        assert np.array_equal(decode(data, start=3.5), want[168_000:])
        tag = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
        for tagged in (data + b"TAG".ljust(128, b"\0"), tag + data, tag + tag + data):
            assert np.array_equal(decode(tagged), want)
        for cut in (data[:-5], data[: len(data) * 9 // 10]):
            with pytest.raises(RecordError, match=r"where: cut\.aac\n  fix:   the file is truncated"):
                decode(cut, where="cut.aac")
