"""Spectrograms, mel filterbanks, log-mel and MFCC in NumPy, as defined by librosa and torchaudio.

The two libraries differ in conventions, not in formulas, so every convention is an argument:

    ==================  ======================  =====================
    argument            librosa's default       torchaudio's default
    ==================  ======================  =====================
    scale               "slaney"                "htk"
    norm                "slaney"                None
    pad                 "constant"              "reflect"
    n_fft, hop          2048, 512               400, 200
    window              Hann, periodic          Hann, periodic
    ==================  ======================  =====================

Arrays are (..., n_mels, frames), float32. Mel spectrograms are computed in blocks of frames that stay in the cache
with matrix products so small that BLAS does not start threads of its own beside those of the loader.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError

F32 = NDArray[np.float32]

_BLOCK_FRAMES = 128
_ONE_THREAD = 1 << 19  # multiplications of one matrix product, up to which OpenBLAS uses the calling thread alone


def stft(
    audio: NDArray[Any], n_fft: int = 1024, hop: int = 256, *, window: int | None = None, center: bool = True,
    pad: str = "reflect",
) -> NDArray[np.complex64]:  # fmt: skip
    """Short-time Fourier transform (..., 1 + n_fft // 2, frames): periodic Hann of `window` samples (None: n_fft).

    `center=True` pads n_fft // 2 samples on both sides, so frame t is centred at sample t * hop.

    >>> stft(np.zeros(1024, np.float32), 256, 64).shape
    (129, 17)
    """
    frames, taps = _frames(audio, n_fft, hop, window=window, center=center, pad=pad)
    spectrum = np.fft.rfft(frames * taps, axis=-1)
    return np.ascontiguousarray(np.swapaxes(spectrum, -1, -2).astype(np.complex64, copy=False))


def _frames(
    audio: NDArray[Any], n_fft: int, hop: int, *, window: int | None = None, center: bool = True, pad: str = "reflect"
) -> tuple[F32, F32]:
    """Overlapping frames (..., frames, n_fft) as a view of the padded audio, and the window they are multiplied by."""
    width = n_fft if window is None else window
    if not (hop > 0 and 0 < width <= n_fft and n_fft >= 2):
        raise UsageError("0 < window <= n_fft and hop > 0", got=f"window={width}, n_fft={n_fft}, hop={hop}")
    if pad not in ("reflect", "constant"):
        raise UsageError('pad="reflect" or "constant"', got=repr(pad))
    x = np.asarray(audio, np.float32)
    if center:
        half = n_fft // 2
        if pad == "reflect" and x.shape[-1] <= half:
            got = f"{x.shape[-1]} samples"
            raise UsageError(f"more than {half} samples to reflect", got=got, fix='pad the audio, or pad="constant"')
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode=pad)  # type: ignore[call-overload]
    if x.shape[-1] < n_fft:
        raise UsageError(f"at least n_fft = {n_fft} samples", got=f"{x.shape[-1]}", fix="pad the audio or center=True")
    frames = np.lib.stride_tricks.sliding_window_view(x, n_fft, axis=-1)[..., ::hop, :]
    return frames, _hann(width, n_fft)


@lru_cache(maxsize=32)
def _hann(width: int, n_fft: int) -> F32:
    taps = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    left = (n_fft - width) // 2
    return np.pad(taps, (left, n_fft - width - left)).astype(np.float32)


def _power(spectrum: NDArray[np.complexfloating], power: float) -> F32:
    if power == 2.0:
        squared: F32 = spectrum.real**2
        squared += spectrum.imag**2
        return squared
    magnitude: F32 = np.abs(spectrum)
    return magnitude if power == 1.0 else magnitude ** np.float32(power)


def hz_to_mel(hz: Any, scale: str = "slaney") -> NDArray[np.float64]:
    """Hertz to mel. "htk": 2595 log10(1 + f / 700). "slaney": linear (200/3 Hz a mel) to 1 kHz, logarithmic above.

    >>> hz_to_mel([1000.0], "slaney").tolist(), round(float(hz_to_mel(1000.0, "htk")), 3)
    ([15.0], 999.986)
    """
    f = np.asarray(hz, np.float64)
    if scale == "htk":
        return np.asarray(2595.0 * np.log10(1.0 + f / 700.0))
    if scale != "slaney":
        raise UsageError('scale="slaney" or "htk"', got=repr(scale))
    above = 15.0 + 27.0 * np.log(np.maximum(f, 1e-10) / 1000.0) / np.log(6.4)
    return np.where(f >= 1000.0, above, f * 3.0 / 200.0)


def mel_to_hz(mel: Any, scale: str = "slaney") -> NDArray[np.float64]:
    """The inverse of `hz_to_mel`.

    >>> mel_to_hz([15.0]).tolist()
    [1000.0]
    """
    m = np.asarray(mel, np.float64)
    if scale == "htk":
        return np.asarray(700.0 * (10.0 ** (m / 2595.0) - 1.0))
    if scale != "slaney":
        raise UsageError('scale="slaney" or "htk"', got=repr(scale))
    return np.where(m >= 15.0, 1000.0 * np.exp((m - 15.0) * np.log(6.4) / 27.0), m * 200.0 / 3.0)


@lru_cache(maxsize=64)
def mel_filterbank(
    sample_rate: int, n_fft: int, n_mels: int = 80, *, fmin: float = 0.0, fmax: float | None = None,
    scale: str = "slaney", norm: str | None = "slaney",
) -> F32:  # fmt: skip
    """Triangular filters (n_mels, 1 + n_fft // 2), evenly spaced in mel; `norm="slaney"` scales each to area 1 (in Hz).

    >>> mel_filterbank(16000, 400, 80).shape
    (80, 201)
    """
    top = sample_rate / 2 if fmax is None else fmax
    if not (0 <= fmin < top <= sample_rate / 2 and n_mels > 0) or norm not in (None, "slaney"):
        got = f"n_mels={n_mels}, fmin={fmin}, fmax={top}, norm={norm!r} at {sample_rate} Hz"
        raise UsageError('0 <= fmin < fmax <= sample_rate / 2, n_mels > 0, norm None or "slaney"', got=got)
    bins = np.arange(1 + n_fft // 2) * (sample_rate / n_fft)
    low, high = float(hz_to_mel(fmin, scale)), float(hz_to_mel(top, scale))
    edges = mel_to_hz(np.linspace(low, high, n_mels + 2), scale)
    gaps = np.diff(edges)[:, None]
    slopes = edges[:, None] - bins[None, :]
    weights = np.maximum(0.0, np.minimum(-slopes[:-2] / gaps[:-1], slopes[2:] / gaps[1:]))
    if norm == "slaney":
        weights *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    bank = weights.astype(np.float32)
    bank.setflags(write=False)  # cached: shared by every caller
    return bank


def mel_spectrogram(
    audio: NDArray[Any], sample_rate: int = 16000, *, n_fft: int = 1024, hop: int = 256, n_mels: int = 80,
    fmin: float = 0.0, fmax: float | None = None, scale: str = "slaney", norm: str | None = "slaney",
    power: float = 2.0, **stft_args: Any,
) -> F32:  # fmt: skip
    """Mel spectrogram (..., n_mels, frames).

    >>> mel_spectrogram(np.zeros(16000, np.float32)).shape
    (80, 63)
    """
    bank = mel_filterbank(sample_rate, n_fft, n_mels, fmin=fmin, fmax=fmax, scale=scale, norm=norm)
    frames, taps = _frames(audio, n_fft, hop, **stft_args)
    out = np.empty((*frames.shape[:-2], n_mels, frames.shape[-2]), np.float32)
    product = max(1, _ONE_THREAD // bank.size)  # frames of one matrix product
    block = max(1, _BLOCK_FRAMES // product) * product
    room = np.empty((min(block, frames.shape[-2]), n_fft), np.float32)
    for item in np.ndindex(frames.shape[:-2]):
        for at in range(0, frames.shape[-2], block):
            some = frames[item][at : at + block]
            values = _power(np.fft.rfft(np.multiply(some, taps, out=room[: len(some)]), axis=-1), power)
            for first in range(0, len(some), product):
                np.matmul(
                    bank, values[first : first + product].T, out=out[item][:, at + first : at + first + product]
                )  # fmt: skip
    return out


def to_db(power: NDArray[Any], *, top_db: float | None = 80.0) -> F32:
    """10 log10(power), clipped below at -100 dB and at `top_db` below the largest value of each item.

    >>> to_db(np.array([1.0, 0.1, 0.0])).tolist()
    [0.0, -10.0, -80.0]
    """
    db = np.float32(10.0) * np.log10(np.maximum(np.asarray(power, np.float32), np.float32(1e-10)))
    if top_db is not None and db.size:
        last = tuple(range(max(0, db.ndim - 2), db.ndim))
        db = np.maximum(db, db.max(axis=last, keepdims=True) - np.float32(top_db))
    return np.asarray(db, np.float32)


def log_mel(audio: NDArray[Any], sample_rate: int = 16000, *, floor: float = 1e-5, **mel_args: Any) -> F32:
    """Natural logarithm of the mel spectrogram: log(max(mel, floor)).

    >>> round(float(log_mel(np.zeros(16000, np.float32)).max()), 3)
    -11.513
    """
    return np.asarray(np.log(np.maximum(mel_spectrogram(audio, sample_rate, **mel_args), np.float32(floor))))


def whisper_log_mel(audio: NDArray[Any], n_mels: int = 80) -> F32:
    """Whisper's input features of 16 kHz audio: log10, clipped at 8 below the maximum, then (x + 4) / 4.

    >>> whisper_log_mel(np.zeros(16000, np.float32)).shape
    (80, 100)
    """
    mel = mel_spectrogram(audio, 16000, n_fft=400, hop=160, n_mels=n_mels)[..., :-1]
    log = np.log10(np.maximum(mel, np.float32(1e-10)))
    log = np.maximum(log, log.max(axis=(-2, -1), keepdims=True) - np.float32(8.0))
    return np.asarray((log + np.float32(4.0)) / np.float32(4.0), np.float32)


def mfcc(audio: NDArray[Any], sample_rate: int = 16000, *, n_mfcc: int = 20, **mel_args: Any) -> F32:
    """Mel-frequency cepstral coefficients (..., n_mfcc, frames): orthonormal DCT-II of the mel spectrogram in dB.

    >>> mfcc(np.zeros(16000, np.float32), n_mfcc=13).shape
    (13, 63)
    """
    db = to_db(mel_spectrogram(audio, sample_rate, **mel_args))
    n_mels = db.shape[-2]
    if not 0 < n_mfcc <= n_mels:
        raise UsageError(f"n_mfcc from 1 to n_mels = {n_mels}", got=f"{n_mfcc}")
    made: F32 = _dct(n_mels)[:n_mfcc] @ db
    return made


@lru_cache(maxsize=16)
def _dct(n: int) -> F32:
    k, i = np.arange(n)[:, None], np.arange(n)[None, :]
    rows = np.cos(np.pi * k * (2 * i + 1) / (2 * n)) * np.sqrt(2.0 / n)
    rows[0] /= np.sqrt(2.0)
    return np.asarray(rows, np.float32)
