"""Mel features by the definitions of librosa, torchaudio and Whisper: the same numbers as the libraries compute.

    ============  =====================================================  ==========================================
    definition    mel                                                    log_mel
    ============  =====================================================  ==========================================
    None          Slaney scale and norm, zero padding                    log(max(mel, 1e-5))
    librosa       the same: `librosa.feature.melspectrogram`             `librosa.power_to_db`: 10 log10, 80 dB
    torchaudio    HTK scale, no norm, reflected edges: `MelSpectrogram`  `AmplitudeToDB("power")`: 10 log10
    whisper       Slaney, reflected edges, last frame left out           log10, 8 below the maximum, (x + 4) / 4
    ============  =====================================================  ==========================================

MFCC are the orthonormal DCT-II of decibels (80 below the maximum) in the first three.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.codecs.audio.features import F32, log_mel, mel_spectrogram, mfcc, to_db, whisper_log_mel
from penstock.core.errors import UsageError

Definition = Literal["librosa", "torchaudio", "whisper"]
Kind = Literal["log_mel", "mel", "mfcc"]

CONVENTIONS: dict[Definition | None, dict[str, Any]] = {
    None: {"pad": "constant"},
    "librosa": {"pad": "constant"},
    "torchaudio": {"pad": "reflect", "scale": "htk", "norm": None},
}
WHISPER = {"sample_rate": 16000, "n_fft": 400, "hop": 160}


def check(definition: Definition | None, kind: Kind, **sizes: int) -> None:
    """Raises if a definition has no such features, or fixes a size that differs."""
    if definition != "whisper":
        return
    if kind != "log_mel":
        raise UsageError('features="log_mel" with mel="whisper"', got=f"features={kind!r}")
    for name, needed in WHISPER.items():
        if sizes[name] != needed:
            raise UsageError(f'{name}={needed} with mel="whisper"', got=f"{name}={sizes[name]}")


def features(
    samples: F32, sample_rate: int, kind: Kind, definition: Definition | None, *, n_fft: int, hop: int, n_mels: int,
    n_mfcc: int,
) -> F32:  # fmt: skip
    """Features (..., bands, frames) of rows of samples.

    >>> import numpy as np
    >>> silence, sizes = np.zeros(1600, np.float32), {"n_fft": 400, "hop": 160, "n_mels": 80, "n_mfcc": 20}
    >>> features(silence, 16000, "log_mel", "whisper", **sizes).shape
    (80, 10)
    """
    if definition == "whisper":
        return whisper_log_mel(samples, n_mels)
    shared: dict[str, Any] = {"n_fft": n_fft, "hop": hop, "n_mels": n_mels, **CONVENTIONS[definition]}
    if kind == "mfcc":
        return mfcc(samples, sample_rate, n_mfcc=n_mfcc, **shared)
    if kind == "mel":
        return mel_spectrogram(samples, sample_rate, **shared)
    if definition is None:
        return log_mel(samples, sample_rate, **shared)
    return to_db(mel_spectrogram(samples, sample_rate, **shared), top_db=80.0 if definition == "librosa" else None)


def frames_of(samples: Any, hop: int, definition: Definition | None) -> Any:
    """How many frames this many samples have."""
    return samples // hop + (0 if definition == "whisper" else 1)


def shortest(n_fft: int, definition: Definition | None) -> int:
    """The fewest samples that have features: reflected edges need half a window."""
    return n_fft // 2 + 1 if definition in ("torchaudio", "whisper") else 1
