"""`decode_audio(mel=, cut=, min_duration=, max_duration=)` and features of different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

import penstock as ps
from penstock.codecs.audio import wav
from penstock.codecs.audio.decode import decode
from penstock.testing import assert_elastic, assert_exact_resume

RATE = 16000


def sweep(seconds: float, seed: int = 0) -> np.ndarray:
    t = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(0, 0.01, len(t))
    return (0.4 * np.sin(2 * np.pi * (200 + 900 * t) * t) + noise).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clips")
    for i in range(24):
        (made / f"{i:02}_x.wav").write_bytes(wav.encode(sweep(0.2 + 0.05 * i, i), RATE))
    return made


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    return ps.read_audio(folder, "name").decode_audio(RATE, **options).peek(24)


def librosa_mel(x: np.ndarray, n_fft: int, hop: int, n_mels: int) -> np.ndarray:
    """`librosa.feature.melspectrogram`, from transformers' own implementation of its conventions."""
    bank = mel_filter_bank(1 + n_fft // 2, n_mels, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
    return spectrogram(
        x, window_function(n_fft, "hann"), n_fft, hop, power=2.0, center=True, pad_mode="constant", mel_filters=bank,
        mel_floor=0.0,
    )  # fmt: skip


def torchaudio_mel(x: np.ndarray, n_fft: int, hop: int, n_mels: int) -> np.ndarray:
    """`torchaudio.transforms.MelSpectrogram`: torch.stft with reflected edges, HTK filters without norm."""
    window = torch.hann_window(n_fft)
    spectrum = torch.stft(torch.from_numpy(x), n_fft, hop, window=window, center=True, return_complex=True)
    bank = mel_filter_bank(1 + n_fft // 2, n_mels, 0.0, RATE / 2, RATE, norm=None, mel_scale="htk")
    return bank.T @ (spectrum.abs().numpy() ** 2)


def close(made: np.ndarray, want: np.ndarray) -> bool:
    return made.shape == want.shape and bool(np.abs(made - want).max() <= 2e-4 * np.abs(want).max())


def test_mels_are_those_of_librosa_torchaudio_and_whisper(folder: Path) -> None:
    samples = [row["audio"] for row in rows(folder)]
    sizes = {"n_fft": 512, "hop": 128, "n_mels": 40}
    for definition, reference in (("librosa", librosa_mel), ("torchaudio", torchaudio_mel)):
        mels = rows(folder, features="mel", mel=definition, **sizes)
        logs = rows(folder, features="log_mel", mel=definition, **sizes)
        for x, mel, log in zip(samples, mels, logs, strict=True):
            want = reference(x, 512, 128, 40)
            assert close(mel["audio"], want)
            db = 10 * np.log10(np.maximum(want, 1e-10))
            assert (
                np.abs(log["audio"] - (np.maximum(db, db.max() - 80) if definition == "librosa" else db)).max() < 0.05
            )
            assert mel["lengths"] == mel["audio"].shape[1] == 1 + len(x) // 128
    extractor = WhisperFeatureExtractor()
    padded = rows(folder, features="log_mel", mel="whisper", duration=30.0, offset="start")
    for x, row in zip(samples[:4], padded, strict=False):
        want = extractor(x, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        assert row["audio"].shape == want.shape == (80, 3000)
        assert np.abs(row["audio"] - want).max() < 2e-3
        assert row["lengths"] == len(x) // 160
    alone = rows(folder, features="log_mel", mel="whisper", n_mels=128)
    assert [row["audio"].shape for row in alone[:2]] == [(128, len(x) // 160) for x in samples[:2]]


def test_features_of_different_lengths_are_padded_with_their_lengths(folder: Path) -> None:
    def made(batch: int) -> Any:
        audio = ps.read_audio(folder, "name").shuffle(seed=2)
        return audio.decode_audio(RATE, features="log_mel", n_mels=16, mask=True).batch(batch).pad(multiple=8)

    one = made(4).to_numpy(threads=0).batch_at(0)
    assert one["audio"].shape[:2] == (4, 16)
    assert one["audio"].shape[2] % 8 == 0
    assert one["mask"].shape == (4, one["audio"].shape[2])
    assert one["mask"].sum(axis=1).tolist() == one["lengths"].tolist()
    assert not np.where(one["mask"][:, None], 0, one["audio"]).any()
    assert one["audio"].dtype == np.float32
    assert_exact_resume(lambda: made(4))
    fixed = ps.read_audio(folder, "name").decode_audio(RATE, features="mel", n_mels=16)
    assert fixed.batch(6).pad(to=200).to_torch(threads=0).batch_at(0)["audio"].shape == (6, 16, 200)
    with pytest.raises(ps.RecordError, match="at most 20 values in 'audio'"):
        fixed.batch(6).pad(to=20).to_numpy(threads=0).batch_at(0)
    assert_elastic(lambda batch: fixed.shuffle(seed=1).batch(batch).pad(to=200), batch=4, worlds=(1, 2), threads=(0, 2))


def test_durations_are_a_filter_by_headers(folder: Path) -> None:
    kept = ps.read_audio(folder, "name").decode_audio(RATE, min_duration=0.4, max_duration=1.0)
    batch = kept.batch(24, remainder="short").to_numpy(threads=0).batch_at(0)
    assert batch["lengths"].min() >= 0.4 * RATE
    assert batch["lengths"].max() <= 1.0 * RATE
    assert_elastic(lambda b: kept.shuffle(seed=4).batch(b).pad(to=16000), batch=4, worlds=(1, 2), threads=(0, 2))
    for wrong in ({"min_duration": 3, "max_duration": 2}, {"max_duration": 0}, {"min_duration": -1}):
        with pytest.raises(ps.UsageError, match="min_duration"):
            ps.read_audio(folder, "name").decode_audio(RATE, **wrong)


def test_a_bad_file_is_reported_by_the_decoder_not_lost_by_the_filter(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav.encode(sweep(0.5), RATE))
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    with pytest.raises(ps.BadRecords):
        list(ps.read_audio(tmp_path, None).decode_audio(RATE, max_duration=2.0).batch(2).to_numpy(threads=0))


def cuts(folder: Path, count: int = 40) -> tuple[Any, list[tuple[int, float, float]]]:
    """Cuts of files, as a manifest has them: bytes, start and duration."""
    rng = np.random.default_rng(5)
    files = sorted(folder.glob("*.wav"))
    made = []
    for _ in range(count):
        at = int(rng.integers(10, 24))
        start = round(float(rng.uniform(0, 0.3)), 3)
        made.append((at, start, round(float(rng.uniform(0.1, 0.3)), 3)))
    columns = {
        "audio": [files[at].read_bytes() for at, _, _ in made],
        "start": np.array([start for _, start, _ in made]),
        "length": np.array([length for _, _, length in made], np.float32),
    }
    return ps.from_arrays(columns), made


def test_cuts_are_the_parts_that_their_columns_name(folder: Path) -> None:
    data, made = cuts(folder)
    files = sorted(folder.glob("*.wav"))
    part = data.decode_audio(RATE, cut=("start", "length"))
    for row, (at, start, length) in zip(part.peek(40), made, strict=True):
        assert np.array_equal(row["audio"], decode(files[at], start=start, duration=float(np.float32(length))))
    inside = data.shuffle(seed=1).decode_audio(RATE, duration=0.1, cut=("start", "length"))
    assert_elastic(inside.batch, batch=4, worlds=(1, 2), threads=(0, 2))
    loader = inside.batch(8).to_numpy(threads=0)
    for row in range(8):
        why = loader.why(0, row)
        at, start, length = made[why["record"]]
        assert start - 1e-6 <= why["from"]["start"] <= start + length - 0.1 + 1e-3
        want = decode(files[at], start=why["from"]["start"], duration=0.1)
        assert np.array_equal(loader.batch_at(0)["audio"][row], want)
    longer = data.decode_audio(RATE, min_duration=0.2, cut=("start", "length")).batch(40, remainder="short")
    assert longer.to_numpy(threads=0).batch_at(0)["lengths"].min() >= 0.2 * RATE


def test_cuts_outside_of_their_recording_are_bad_records(folder: Path) -> None:
    data = wav.encode(sweep(1.0), RATE)
    for start, length, text in ((0.8, 0.5, "inside of its recording"), (-1, 1, "start of 0"), (0, 0, "above 0"),
                                (float("nan"), 1, "start of 0"), (5.0, 0.1, "inside of its")):  # fmt: skip
        columns = {"audio": [data] * 2, "s": np.array([0.0, start]), "d": np.array([0.5, length])}
        with pytest.raises(ps.BadRecords, match=text) as caught:
            list(ps.from_arrays(columns).decode_audio(RATE, cut=("s", "d")).batch(2).to_numpy(threads=0))
        assert caught.value.errors[0].row == 1
    with pytest.raises(ps.UsageError, match="a column 'gone'"):
        ps.from_arrays(columns).decode_audio(RATE, cut=("gone", "d")).peek(1)


def test_what_a_definition_does_not_have_is_refused(folder: Path) -> None:
    audio = ps.read_audio(folder, "name")
    for wrong, text in (
        ({"mel": "whisper", "features": "mel"}, 'features="log_mel"'),
        ({"mel": "whisper", "features": "log_mel", "hop": 128}, "hop=160"),
        ({"mel": "kaldi", "features": "mel"}, "mel= one of"),
        ({"mel": "librosa"}, "with features="),
        ({"cut": ("start",)}, "two columns"),
    ):
        with pytest.raises(ps.UsageError, match=text):
            audio.decode_audio(RATE, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ps.UsageError, match="sample_rate=16000"):
        audio.decode_audio(8000, mel="whisper", features="log_mel")
    from penstock.steps.decode_audio import DecodeAudio

    assert not {"mel", "cut"} & DecodeAudio().spec().keys()
