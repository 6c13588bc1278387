"""Synthetic audio: waveforms, mel spectrograms, collating."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import UsageError
from penstock.codecs.audio.features import mel_spectrogram
from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset, create_audio_dataset

CONFIG = AudioModalityConfig(sample_rate=16000, duration=1.0, n_mels=80, hop_length=512)


def test_sample_is_as_promised():
    sample = SyntheticAudioDataset(CONFIG, 10, ["sine", "noise", "chirp"])[0]
    assert sample["audio"].shape == (16000,)
    assert sample["audio"].dtype == np.float32
    assert (sample["audio_type"], sample["sample_rate"], sample["duration"], sample["index"]) == ("sine", 16000, 1.0, 0)
    assert type(sample["sample_rate"]) is int
    assert type(sample["duration"]) is float
    assert float(abs(sample["audio"]).max()) == 1.0


def test_mel_is_honoured_and_right():
    dataset = SyntheticAudioDataset(CONFIG, 10)
    batch = dataset.get_batch(indices=[0, 1, 2])
    assert batch["mel"].shape == (3, 80, 32)
    expected = mel_spectrogram(np.asarray(batch["audio"]), 16000, n_fft=1024, hop=512, n_mels=80, pad="constant")
    np.testing.assert_allclose(np.asarray(batch["mel"]), expected, rtol=1e-4, atol=1e-5)
    assert dataset[0]["mel"].shape == (80, 32)
    assert SyntheticAudioDataset(AudioModalityConfig(n_mel_channels=12, duration=0.1))[0]["mel"].shape[0] == 12
    assert "mel" not in SyntheticAudioDataset(AudioModalityConfig(duration=0.1))[0]


def _frequencies(audio, rate, parts=8):
    """The loudest frequency of each part."""
    pieces = np.asarray(audio).reshape(parts, -1)
    spectrum = np.abs(np.fft.rfft(pieces * np.hanning(pieces.shape[1]), axis=1))
    return spectrum.argmax(axis=1) * rate / pieces.shape[1]


def test_kinds_sound_as_named():
    dataset = SyntheticAudioDataset(CONFIG, 60)
    for i in range(0, 60, 3):
        sine = _frequencies(dataset[i]["audio"], 16000)
        assert np.ptp(sine) <= 8.0
        assert 190 <= sine[0] <= 810
        chirp = _frequencies(dataset[i + 2]["audio"], 16000)
        assert (np.diff(chirp) >= 0).all()
        assert 190 <= chirp[0] < chirp[-1] <= 810
        noise = np.asarray(dataset[i + 1]["audio"])
        assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.05
    assert len({float(dataset[i]["audio"][100]) for i in range(0, 60, 3)}) == 20


def test_low_rates_do_not_alias_and_silence_stays_loud_enough():
    slow = SyntheticAudioDataset(AudioModalityConfig(sample_rate=1000, duration=1.0), 4, ["chirp"])
    assert (_frequencies(slow[0]["audio"], 1000, 4) <= 460).all()


def test_not_normalised():
    quiet = SyntheticAudioDataset(AudioModalityConfig(duration=0.1, normalize=False), 3, ["sine"])
    assert 0.45 < float(abs(quiet[0]["audio"]).max()) <= 0.5


def test_collate_and_get_batch_agree():
    dataset = create_audio_dataset("synthetic", CONFIG, n_samples=50, audio_types=["sine", "noise"])
    batch = dataset.collate_fn([dataset[i] for i in range(4)])
    assert batch["audio"].shape == (4, 16000)
    assert batch["audio_type"] == ["sine", "noise", "sine", "noise"]
    assert batch["index"] == [0, 1, 2, 3]
    same = dataset.get_batch(indices=[0, 1, 2, 3])
    assert list(same) == list(batch)
    for name in same:
        np.testing.assert_array_equal(same[name], batch[name])


def test_refused_while_building():
    with pytest.raises(UsageError, match="audio_types one of 'sine', 'noise', 'chirp'"):
        SyntheticAudioDataset(CONFIG, 10, ["sine", "drums"])
    with pytest.raises(UsageError, match="a list of names"):
        SyntheticAudioDataset(CONFIG, 10, "sine")
    with pytest.raises(UsageError, match="dataset_type one of 'synthetic'"):
        create_audio_dataset("librispeech")
    with pytest.raises(UsageError, match="n_mels or n_mel_channels"):
        AudioModalityConfig(n_mels=10, n_mel_channels=20)
    with pytest.raises(UsageError, match="duration"):
        AudioModalityConfig(duration=0)
