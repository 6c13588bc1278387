"""An ASR input pipeline: speed, noise, log-mel of variable length, SpecAugment, tokens, buckets by duration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.augment import Augment, MixNoise, RoomImpulse, SpecAugment, Speed
from penstock.codecs.audio import wav
from penstock.codecs.audio.definitions import features, frames_of
from penstock.testing import assert_elastic, assert_exact_resume

RATE, MELS = 16000, 80
NOISES = [np.random.default_rng(i).normal(0, 0.1, 8000).astype(np.float32) for i in range(4)]
ROOMS = [np.exp(-np.arange(1200) / 150.0).astype(np.float32)]
LETTERS = " abcdefghijklmnopqrstuvwxyz"
SIZES = {"n_fft": 400, "hop": 160, "n_mels": MELS, "n_mfcc": 20}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One long recording, and cuts of it with transcripts, as lhotse or NeMo manifests have them."""
    rng = np.random.default_rng(1)
    words = ["river", "mill", "gate", "water", "stone"]
    starts, seconds, texts = [], [], []
    for _ in range(28):
        count = int(rng.integers(1, 6))
        texts.append(" ".join(rng.choice(words, count).tolist()))
        seconds.append(round(0.3 * count + float(rng.uniform(0, 0.2)), 3))
        starts.append(round(float(rng.uniform(0, 7)), 3))
    t = np.arange(10 * RATE) / RATE
    long = 0.3 * np.sin(2 * np.pi * (150 + 60 * t) * t)
    path = tmp_path_factory.mktemp("asr") / "long.wav"
    path.write_bytes(wav.encode(long, RATE))
    return {"audio": [path.read_bytes()] * 28, "start": np.array(starts), "seconds": np.array(seconds), "text": texts}


def tokens(record: dict[str, Any]) -> dict[str, Any]:
    text = record["text"]
    ids = np.zeros(40, np.int64)
    ids[: len(text)] = [LETTERS.index(c) + 1 for c in text]
    return {**{k: v for k, v in record.items() if k != "text"}, "targets": ids, "target_lengths": len(text)}


def mel(columns: dict[str, Any]) -> dict[str, Any]:
    """Features of augmented waves: an array per row, and their lengths."""
    made = np.empty(len(columns["audio"]), object)
    for i, wave in enumerate(columns["audio"]):
        made[i] = features(np.asarray(wave), RATE, "log_mel", "whisper", **SIZES)
    lengths = np.array([frames_of(len(wave), 160, "whisper") for wave in columns["audio"]])
    return {**columns, "audio": made, "lengths": lengths}


def train(manifest: dict[str, Any], batch: int = 4, to: Any = "longest") -> Any:
    waves = Augment(Speed(0.1, p=0.2), RoomImpulse(ROOMS, p=0.3), MixNoise(NOISES, snr=(5, 20), p=0.5), seed=1)
    return (
        ps.from_arrays(manifest)
        .shuffle(seed=2)
        .decode_audio(RATE, cut=("start", "seconds"), max_duration=1.6)
        .map(tokens)
        .map_batches(waves)
        .map_batches(mel)
        .map_batches(Augment(SpecAugment(2, 27, 2, 20, time_share=0.2), seed=3))
        .batch(batch)
        .pad(to=to, multiple=8)
    )


def test_features_targets_and_lengths(manifest: dict[str, Any]) -> None:
    loader = train(manifest).to_torch(threads=0)
    for number in range(4):
        batch = loader.batch_at(number)
        count, bands, frames = batch["audio"].shape
        assert (count, bands, frames % 8) == (4, MELS, 0)
        assert batch["lengths"].max() <= frames
        assert batch["seconds"].max() <= 1.6
        assert (batch["targets"] > 0).sum(1).tolist() == batch["target_lengths"].tolist()
        assert (batch["lengths"] >= batch["target_lengths"]).all()  # what CTC needs
        for row, length in zip(batch["audio"], batch["lengths"].tolist(), strict=True):
            assert not row[:, length:].any()
            assert row[:, :length].abs().sum() > 0
    drawn = loader.why(0, 0)["from"]["drawn"]["audio"]
    assert drawn[-1]["op"] == "SpecAugment"


def test_the_law(manifest: dict[str, Any]) -> None:
    assert_exact_resume(lambda: train(manifest), most=5, epochs=1)
    assert_elastic(lambda batch: train(manifest, batch, 160), batch=4, worlds=(1, 2), threads=(0, 2))
