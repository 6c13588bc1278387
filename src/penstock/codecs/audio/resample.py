"""Changes the sample rate with soxr (band-limited, high quality). soxr holds the GIL while it runs.

The result has exactly `resampled_length` samples, so lengths can be planned before anything is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.optional import need

MAX_RATE = 10_000_000


def resampled_length(samples: int, rate: int, new_rate: int) -> int:
    """Number of samples after resampling, rounded to the nearest integer, halves up.

    >>> resampled_length(8001, 8000, 16000), resampled_length(3, 44100, 16000)
    (16002, 1)
    """
    return (2 * samples * new_rate + rate) // (2 * rate)


def resample(samples: NDArray[Any], rate: int, new_rate: int, quality: str = "HQ") -> NDArray[np.float32]:
    """Resamples (n,) or (n, channels) from `rate` to `new_rate`. `quality` is soxr's: QQ, LQ, MQ, HQ, VHQ.

    >>> resample(np.zeros(800, np.float32), 8000, 16000).shape
    (1600,)
    """
    if not (0 < rate <= MAX_RATE and 0 < new_rate <= MAX_RATE):
        raise UsageError(f"sample rates from 1 to {MAX_RATE:,} Hz", got=f"{rate} to {new_rate}")
    samples = np.ascontiguousarray(samples, np.float32)
    length = resampled_length(len(samples), rate, new_rate)
    if rate == new_rate or len(samples) == 0:
        return samples
    soxr = need("soxr", extra="audio", purpose="to change the sample rate")
    made: NDArray[np.float32] = soxr.resample(samples, rate, new_rate, quality=quality)
    if len(made) == length:
        return made
    out = np.zeros((length, *samples.shape[1:]), np.float32)
    out[: min(length, len(made))] = made[:length]
    return out
