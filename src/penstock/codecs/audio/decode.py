"""Decodes a slice of encoded audio to float32 samples at a chosen sample rate.

Seeks to the slice and reads only that, from a path or from bytes. Reading releases the GIL.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio.probe import AudioInfo, Media, opened
from penstock.codecs.audio.resample import resample
from penstock.core.errors import UsageError
from penstock.core.limits import LIMITS, Limits


def decode(
    data: Media,
    *,
    start: float | Callable[[AudioInfo], float] = 0.0,
    duration: float | None = None,
    sample_rate: int | None = None,
    mono: bool = True,
    where: str = "",
    limits: Limits = LIMITS,
) -> NDArray[np.float32]:
    """Decodes `duration` seconds (None: to the end) from `start` on, at `sample_rate` (None: the file's own).

    `start` may be a function of the header.

    `mono=True` returns (n,), the mean of the channels; `mono=False` returns (n, channels). A slice that extends past
    the end is shorter; one that begins after the end raises. A slice is resampled on its own.

    >>> from penstock.codecs.audio import wav
    >>> x = np.linspace(-0.5, 0.5, 8000)
    >>> decode(wav.encode(x, 8000), start=0.5, duration=0.25).shape
    (2000,)
    """
    if (not callable(start) and start < 0) or (duration is not None and duration < 0):
        raise UsageError("start and duration of 0 or more seconds", got=f"start={start}, duration={duration}")
    with opened(data, where, limits) as (info, read):
        begin = start(info) if callable(start) else start
        first = round(begin * info.sample_rate)
        if info.frames >= 0 and first > info.frames:
            raise UsageError(f"start within {info.seconds:.3f} seconds", got=f"{begin}", where=where)
        left = info.frames - first if info.frames >= 0 else round(limits.audio_seconds * info.sample_rate)
        samples = read(first, left if duration is None else min(left, round(duration * info.sample_rate)))
    if mono:
        samples = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
    if sample_rate is not None and sample_rate != info.sample_rate:
        samples = resample(samples, info.sample_rate, sample_rate)
    return np.ascontiguousarray(samples, np.float32)
