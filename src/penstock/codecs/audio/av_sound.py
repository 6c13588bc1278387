"""Audio tracks of MP4, M4A, WebM, Matroska and AAC files, through PyAV: the first track, from any sample on.

Positions come from time stamps. A slice that begins late is reached by a seek to a second before it; where stamps are
milliseconds (WebM, Matroska), its place is exact to one. The length is the one that the container states; a file
that ends more than a tenth of a second before it is truncated. Bare AAC states none: its frames are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.av_media import damaged, demuxer, end_of, opened, track_of
from penstock.core.errors import RecordError

F32 = NDArray[np.float32]
SEEK_FROM = 30.0
"""Seconds from the start on which a slice is reached by a seek instead of decoding what comes before."""
PREROLL = 1.0
SHORT = 0.1
"""Seconds by which a track may end before its stated length: encoders round it up to a frame."""
MAX_CHANNELS = 64


@contextmanager
def opened_sound(
    file: BinaryIO, head: bytes, where: str, most_seconds: float
) -> Iterator[tuple[int, int, int, Callable[[int, int], F32]]]:
    """Yields sample rate, length in samples (-1 if unknown), channels, and a function that reads samples."""
    seconds = _counted(file, head, where) if demuxer(head) == "aac" else None
    with opened(file, head, where, "to read AAC, M4A, WebM and other containers") as container:
        track = track_of(container, "audio", where)
        first = next(iter(container.decode(track)), None)
        if first is None or first.sample_rate < 1 or not 1 <= first.layout.nb_channels <= MAX_CHANNELS:
            raise damaged(where, "no audio frames")
        rate, channels = int(first.sample_rate), int(first.layout.nb_channels)
        begin = float((track.start_time or 0) * track.time_base)
        if demuxer(head) == "matroska" and first.pts is not None:  # FFmpeg scales Opus' delay by another rate there
            begin = float(first.pts * first.time_base)
        frames = _length(container, track, rate, begin) if seconds is None else round(seconds * rate)
        if frames > most_seconds * rate:
            frames = int(most_seconds * rate) + rate  # past the limit: refused by the caller

        layout = str(first.layout.name)

        def read(start: int, wanted: int) -> F32:
            if start > SEEK_FROM * rate:
                target = int((start / rate - PREROLL + begin) / track.time_base)
                container.seek(target, stream=track, backward=True)
                return _read(container, start, wanted, (rate, layout, channels, begin), where)
            with opened(
                file, head, where, "to read its audio"
            ) as again:  # a seek to the start would not skip the delay
                return _read(again, start, wanted, (rate, layout, channels, begin), where)

        yield rate, frames, channels, read


def _length(container: Any, track: Any, rate: int, begin: float) -> int:
    if track.duration is not None and track.time_base is not None:
        return round(float(track.duration * track.time_base) * rate)
    end = end_of(container, track)
    return -1 if end is None else max(0, round((end - begin) * rate))


def _counted(file: BinaryIO, head: bytes, where: str) -> float:
    """Seconds of all frames of bare AAC (ADTS), by their headers; `RecordError` for a truncated one."""
    with opened(file, head, where, "to read AAC") as container:
        track = track_of(container, "audio", where)
        ticks = end = 0
        for packet in container.demux(track):
            if demuxer(bytes(packet)[:4]) == "aac":  # not a tag
                ticks, end = ticks + (packet.duration or 0), (packet.pos or 0) + packet.size
        file.seek(end)
        if demuxer(file.read(4)) == "aac":
            raise damaged(where, f"a part of a frame at byte {end:,}, where the file ends")
        return float(ticks * track.time_base)


def _read(container: Any, start: int, wanted: int, form: tuple[int, str, int, float], where: str) -> F32:
    """Samples [start, start + wanted), decoded from where the container is; by time stamps."""
    import av  # opened already

    rate, layout, channels, begin = form
    track = track_of(container, "audio", where)
    convert = av.AudioResampler(format="fltp", layout=layout, rate=rate)
    out = np.zeros((wanted, channels), np.float32)
    position: int | None = None
    done = 0
    for frame in container.decode(track):
        if frame.pts is not None:
            stamped = round((float(frame.pts * frame.time_base) - begin) * rate)
            if position is None or abs(stamped - position) > rate // 100:  # stamps of milliseconds are not exact
                position = stamped
        elif position is None:
            position = 0
        for part in convert.resample(frame):
            values = np.asarray(part.to_ndarray(), np.float32).T
            position = _copy(out, values, position - start) + start
            done = max(done, min(position - start, wanted))
        if position is not None and position - start >= wanted:
            break
    if done < wanted - SHORT * rate:
        raise damaged(where, f"{done:,} of {wanted:,} samples from sample {start:,}")
    if not np.isfinite(out).all():
        raise RecordError("finite samples", got="NaN or infinity among them", where=where, fix="leave the file out")
    return out


def _copy(out: F32, values: F32, at: int) -> int:
    """Puts `values` at row `at` of `out`, as far as they are inside; returns the row after them."""
    end = at + len(values)
    low, high = max(at, 0), min(end, len(out))
    if low < high:
        out[low:high] = values[low - at : high - at]
    return end
