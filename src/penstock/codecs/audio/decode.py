"""Decodes a slice of encoded audio to float32 samples at a chosen sample rate.

Seeks to the slice and reads only that, from a path or from bytes. Reads go in blocks, so a header with a wrong length
costs one block (4 MB per channel), not the length it claims. Reading releases the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio import wav
from penstock.codecs.audio.probe import AudioInfo, Media, opened
from penstock.codecs.audio.resample import resample
from penstock.core.errors import RecordError, UsageError
from penstock.core.limits import LIMITS, Limits

BLOCK = 1 << 20


def decode(
    data: Media,
    *,
    start: float = 0.0,
    duration: float | None = None,
    sample_rate: int | None = None,
    mono: bool = True,
    where: str = "",
    limits: Limits = LIMITS,
) -> NDArray[np.float32]:
    """Decodes `duration` seconds (None: to the end) from `start` on, at `sample_rate` (None: the file's own).

    `mono=True` returns (n,), the mean of the channels; `mono=False` returns (n, channels). A slice that extends past
    the end is shorter; one that begins after the end raises. A slice is resampled on its own.

    >>> x = np.linspace(-0.5, 0.5, 8000)
    >>> decode(wav.encode(x, 8000), start=0.5, duration=0.25).shape
    (2000,)
    """
    if start < 0 or (duration is not None and duration < 0):
        raise UsageError("start and duration of 0 or more seconds", got=f"start={start}, duration={duration}")
    with opened(data, where, limits) as (info, handle, plain):
        first = round(start * info.sample_rate)
        if info.frames >= 0 and first > info.frames:
            raise UsageError(f"start within {info.seconds:.3f} seconds", got=f"{start}", where=where)
        left = info.frames - first if info.frames >= 0 else round(limits.audio_seconds * info.sample_rate)
        wanted = left if duration is None else min(left, round(duration * info.sample_rate))
        if plain is not None:
            samples = _wav_blocks(handle, plain, first, wanted, where)
        else:
            samples = _sound_blocks(handle, info, first, wanted, where)
    if (plain is None or plain.encoded[0] == "f") and not np.isfinite(samples).all():
        raise RecordError("finite samples", got="NaN or infinity among them", where=where, fix="leave the file out")
    if mono:
        samples = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
    if sample_rate is not None and sample_rate != info.sample_rate:
        samples = resample(samples, info.sample_rate, sample_rate)
    return np.ascontiguousarray(samples, np.float32)


def _wav_blocks(file: Any, info: wav.WavInfo, first: int, wanted: int, where: str) -> NDArray[np.float32]:
    # `wav.walk` has checked that the file holds these frames, so the full slice is read at once
    return wav.read(file, info, first, wanted, where)


def _sound_blocks(sound: Any, info: AudioInfo, first: int, wanted: int, where: str) -> NDArray[np.float32]:
    parts: list[NDArray[np.float32]] = []
    done = 0
    try:
        if first:
            sound.seek(first)
        while done < wanted:
            part = sound.read(min(BLOCK, wanted - done), dtype="float32", always_2d=True)
            if not len(part):
                break
            parts.append(part)
            done += len(part)
    except Exception as error:  # libsndfile's wrapper raises its own and RuntimeError, by version
        raise RecordError(f"an intact {info.format} file", got=f"{error}", where=where, fix="fetch it again") from error
    if done < wanted and info.frames >= 0:
        raise RecordError(
            f"{wanted:,} frames from frame {first:,}, as the header of this {info.format} says",
            got=f"{done:,}",
            where=where,
            fix="the file is truncated or damaged: fetch it again or leave it out",
        )
    return np.concatenate(parts) if parts else np.empty((0, info.channels), np.float32)
