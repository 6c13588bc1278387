"""Frames of a video by time, through PyAV. The frame at time t is the last one whose time stamp is not after t.

Only what is needed is decoded: from the key frame before the first wanted time on, with a seek wherever the next wanted
frame is far. Frames are cropped and resized one at a time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.av_media import damaged, demuxer, end_of, opened, track_of
from penstock.codecs.image.geometry import Box
from penstock.codecs.image.resize import resize
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.os_errors import storage_errors
from penstock.storage.small_files import open_regular

Media = bytes | bytearray | memoryview | str | os.PathLike[str]
FAR = 2.0
"""Seconds to the next wanted frame from which on a seek is tried."""
MAX_STEPS = 20_000
"""Most frames that are decoded for one wanted frame."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """The header of a video: its first video track, as displayed."""

    height: int
    width: int
    seconds: float
    fps: float


class Video:
    """An open video; use as `with open_video(...) as video`."""

    def __init__(self, container: Any, where: str, limits: Limits) -> None:
        self.container, self.where, self.limits = container, where, limits
        self.track = track_of(container, "video", where)
        self._check_size(self.track.codec_context.width, self.track.codec_context.height)
        self.begin = float((self.track.start_time or 0) * self.track.time_base)
        frame = next(iter(container.decode(self.track)), None)
        if frame is None:
            raise damaged(where, "no video frames")
        self.turns = round(frame.rotation / 90) % 4
        height, width = (frame.width, frame.height) if self.turns % 2 else (frame.height, frame.width)
        rate = self.track.average_rate or self.track.guessed_rate
        fps = float(rate) if rate else 0.0
        self.info = VideoInfo(height, width, self._seconds(fps), fps)
        if self.info.seconds > limits.audio_seconds:
            raise RecordError(
                f"a video of at most {limits.audio_seconds:,.0f} seconds",
                got=f"{self.info.seconds:,.0f} seconds, according to its header",
                where=where,
                fix="split it, or pass limits=Limits(audio_seconds=...) if you trust it",
            )

    def _seconds(self, fps: float) -> float:
        if self.track.duration is not None:
            return max(0.0, float(self.track.duration * self.track.time_base))
        if (end := end_of(self.container, self.track)) is not None:
            return max(0.0, end - self.begin)
        return float(self.track.frames) / fps if self.track.frames and fps else 0.0

    def _check_size(self, width: int, height: int) -> None:
        if width < 1 or height < 1 or width * height > self.limits.pixels:
            raise RecordError(
                f"video frames of 1 to {self.limits.pixels:,} pixels", got=f"{height} x {width}", where=self.where,
                fix="leave it out, or pass limits=Limits(pixels=...) if you trust it",
            )  # fmt: skip

    def frames(self, times: Sequence[float], out: NDArray[np.uint8], crop: Box | None, method: str) -> None:
        """Writes the frames at `times` (rising, in seconds from the start) into `out` (n, height, width, 3)."""
        now: float | None = None
        frame: Any = None
        ahead: Any = None
        reader: Any = None
        for i, time in enumerate(times):
            if reader is None or (now is not None and time - now > FAR):
                reader, frame = self._from(time), None
                ahead = next(reader, None)
                if ahead is not None and self._time(ahead) > time > 0:  # the seek went too far
                    reader = self._from(0.0)
                    ahead = next(reader, None)
            steps = 0
            while ahead is not None and (frame is None or self._time(ahead) <= time + 1e-6):
                frame, ahead = ahead, next(reader, None)
                steps += 1
                if steps > MAX_STEPS:
                    raise damaged(self.where, f"more than {MAX_STEPS:,} frames before {time:.3f} seconds")
            if frame is None:
                raise damaged(self.where, f"no frame at {time:.3f} seconds")
            now = self._time(frame)
            self._write(frame, out[i], crop, method)

    def _from(self, time: float) -> Any:
        self.container.seek(int((time + self.begin) / self.track.time_base), stream=self.track, backward=True)
        return iter(self.container.decode(self.track))

    def _time(self, frame: Any) -> float:
        return 0.0 if frame.pts is None else float(frame.pts * frame.time_base) - self.begin

    def _write(self, frame: Any, out: NDArray[np.uint8], crop: Box | None, method: str) -> None:
        self._check_size(frame.width, frame.height)
        pixels = np.rot90(frame.to_ndarray(format="rgb24"), self.turns)
        if pixels.shape[:2] != (self.info.height, self.info.width):
            raise damaged(self.where, f"frames of {self.info.height} x {self.info.width} and of {pixels.shape[:2]}")
        if crop is not None:
            y, x, h, w = crop
            pixels = pixels[y : y + h, x : x + w]
        resize(np.ascontiguousarray(pixels), out.shape[:2], method=method, out=out)


class open_video:  # noqa: N801 - used as a function: `with open_video(data) as video:`
    """Opens a video from bytes or from a file. Raises `RecordError` if it is none."""

    def __init__(self, data: Media, where: str = "", limits: Limits = LIMITS) -> None:
        self.data, self.limits = data, limits
        self.where = where or (os.fspath(data) if isinstance(data, str | os.PathLike) else "")
        self._open = ExitStack()

    def __enter__(self) -> Video:
        stack = ExitStack()
        with stack:
            stack.enter_context(storage_errors(self.where))
            file = stack.enter_context(self._file())
            head = file.read(12)
            if demuxer(head) in (None, "aac"):
                raise RecordError(
                    "a video (MP4, MOV, WebM or Matroska)", got=f"bytes beginning {head!r}", where=self.where,
                    fix="leave the file out, or convert it",
                )  # fmt: skip
            container = stack.enter_context(opened(file, head, self.where, "to decode video"))
            video = Video(container, self.where, self.limits)
            self._open = stack.pop_all()
        return video

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.__exit__(*error)

    def _file(self) -> BinaryIO:
        if not isinstance(self.data, str | os.PathLike):
            return io.BytesIO(self.data)
        handle, _ = open_regular(self.data, self.limits, self.where)
        return os.fdopen(handle, "rb")
