"""Features against golden arrays made by the libraries whose definitions they follow.

`golden_features.npz` holds what these gave for `signal()` (float32), computed once and stored, so that none of them is
needed here:

- librosa 0.11.0: `feature.melspectrogram(sr=16000, n_fft=512, hop_length=128, n_mels=40)`; the same with `htk=True,
  norm=None, pad_mode="reflect", win_length=400`; `power_to_db` and `feature.mfcc(n_mfcc=13)` of the first;
  `filters.mel(sr=22050, n_fft=256, n_mels=20)` with `fmin=50, fmax=8000` and with `htk=True, norm=None`;
  `stft(signal[:1500], n_fft=256, hop_length=100)`
- torchaudio 2.11.0: `MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=40)` and `MFCC(16000, n_mfcc=13)` over it
- transformers 5.22.2: `WhisperFeatureExtractor(feature_size=80)` of 8000 samples, without padding to 30 s
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.codecs.audio import features
from penstock.core.errors import UsageError

GOLDEN = np.load(Path(__file__).with_name("golden_features.npz"))


def signal(n: int = 4000, rate: int = 16000):
    t = np.arange(n) / rate
    noise = ((np.arange(n, dtype=np.int64) * 7919 + 104729) ** 2 % 10007) / 10007 - 0.5
    chirp = 0.4 * np.sin(2 * np.pi * (220 + 900 * t) * t)
    return (chirp + 0.2 * np.sin(2 * np.pi * 3100 * t) + 0.05 * noise).astype(np.float32)


LIBROSA = {"n_fft": 512, "hop": 128, "n_mels": 40, "pad": "constant"}
TORCHAUDIO = {"n_fft": 400, "hop": 160, "n_mels": 40, "scale": "htk", "norm": None}

MADE = {
    "librosa_mel": lambda: features.mel_spectrogram(signal(), 16000, **LIBROSA),
    "librosa_mel_htk": lambda: features.mel_spectrogram(
        signal(), 16000, n_fft=512, hop=128, n_mels=40, window=400, scale="htk", norm=None
    ),
    "librosa_power_to_db": lambda: features.to_db(features.mel_spectrogram(signal(), 16000, **LIBROSA)),
    "librosa_mfcc": lambda: features.mfcc(signal(), 16000, n_mfcc=13, **LIBROSA),
    "librosa_bank_slaney": lambda: features.mel_filterbank(22050, 256, 20, fmin=50, fmax=8000),
    "librosa_bank_htk": lambda: features.mel_filterbank(22050, 256, 20, scale="htk", norm=None),
    "librosa_stft_real": lambda: features.stft(signal()[:1500], 256, 100, pad="constant").real,
    "librosa_stft_imag": lambda: features.stft(signal()[:1500], 256, 100, pad="constant").imag,
    "torchaudio_mel": lambda: features.mel_spectrogram(signal(), 16000, **TORCHAUDIO),
    "torchaudio_mfcc": lambda: features.mfcc(signal(), 16000, n_mfcc=13, **TORCHAUDIO),
    "whisper_80": lambda: features.whisper_log_mel(signal(8000)),
}


def test_every_golden_array_is_used():
    assert set(MADE) == set(GOLDEN.files)


@pytest.mark.parametrize("name", MADE)
def test_equal_to_the_library(name):
    made, expected = MADE[name](), GOLDEN[name]
    assert made.shape == expected.shape
    assert made.dtype == np.float32
    assert np.abs(made - expected).max() <= 2e-6 * np.abs(expected).max() + 1e-6


def test_conventions_matter():
    """The golden test would see a wrong convention: each differs from the right one by far more than its tolerance."""
    right = features.mel_spectrogram(signal(), 16000, **LIBROSA)
    for wrong in ({"pad": "reflect"}, {"scale": "htk"}, {"norm": None}, {"power": 1.0}):
        made = features.mel_spectrogram(signal(), 16000, **(LIBROSA | wrong))
        assert np.abs(made - right).max() > 1e-3 * np.abs(right).max()


def test_stft_is_the_sum_it_is_defined_by():
    x = signal(600)
    made = features.stft(x, 64, 16, center=False)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    for frame in (0, 7, made.shape[1] - 1):
        piece = x[16 * frame : 16 * frame + 64] * hann
        expected = [(piece * np.exp(-2j * np.pi * k * np.arange(64) / 64)).sum() for k in range(33)]
        assert np.abs(made[:, frame] - expected).max() < 1e-4


def test_batches_are_items_side_by_side():
    batch = np.stack([signal(), signal()[::-1], signal() * 0.1])
    for function in (features.log_mel, features.mfcc, features.whisper_log_mel):
        whole = function(batch)
        for row in range(3):
            assert np.abs(whole[row] - function(batch[row])).max() < 1e-4


def test_mel_and_back():
    hz = np.linspace(0, 8000, 101)
    for scale in ("slaney", "htk"):
        assert np.abs(features.mel_to_hz(features.hz_to_mel(hz, scale), scale) - hz).max() < 1e-8


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: features.stft(signal(100), 256), "more than 128 samples to reflect"),
        (lambda: features.stft(signal(), 256, pad="wrap"), 'pad="reflect" or "constant"'),
        (lambda: features.stft(signal(), 256, window=512), "window <= n_fft"),
        (lambda: features.stft(signal(100), 256, center=False), "at least n_fft = 256 samples"),
        (lambda: features.mel_filterbank(16000, 400, 80, fmax=9000.0), "fmax <= sample_rate / 2"),
        (lambda: features.hz_to_mel(1.0, "bark"), 'scale="slaney" or "htk"'),
        (lambda: features.mfcc(signal(), n_mfcc=81), "n_mels = 80"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(UsageError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("n_fft", "hop", "n_mels", "power"), [(400, 160, 80, 2.0), (1024, 256, 128, 2.0), (512, 100, 7, 1.0)]
)
def test_mel_in_blocks_is_the_filterbank_times_the_spectrogram(n_fft, hop, n_mels, power):
    audio = np.random.default_rng(0).normal(size=(2, 3, 70_001)).astype(np.float32)
    found = features.mel_spectrogram(audio, n_fft=n_fft, hop=hop, n_mels=n_mels, power=power)
    bank = features.mel_filterbank(16000, n_fft, n_mels)
    expected = bank @ np.abs(features.stft(audio, n_fft, hop)) ** power
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6 * float(expected.max()))
    alone = features.mel_spectrogram(audio[1, 2], n_fft=n_fft, hop=hop, n_mels=n_mels, power=power)
    assert np.array_equal(found[1, 2], alone)  # a clip does not depend on the others of its batch
