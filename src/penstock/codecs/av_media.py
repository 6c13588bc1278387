"""Opens MP4, M4A, WebM, Matroska and AAC files with PyAV (FFmpeg), for audio and video.

Which demuxer reads a file is decided here, by its first bytes: FFmpeg never probes, so playlists and other formats that
name further files are never opened, and no protocol is used: it reads from a Python object. Whatever FFmpeg raises
about content is a `RecordError`; an error of the storage is raised as the `OSError` it is. One thread per file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from penstock.codecs.stated_end import missing_bytes
from penstock.core.errors import PenstockError, RecordError
from penstock.core.optional import need
from penstock.core.signals import surface

OPTIONS = {"probesize": str(5 << 20), "analyzeduration": "5000000", "fflags": "+discardcorrupt"}
_CLOCK = re.compile(r"([0-9]{2,4}):([0-9]{2}):([0-9]{2}(?:\.[0-9]{1,9})?)")


def demuxer(head: bytes) -> str | None:
    """FFmpeg's name of the container that these first 12 bytes begin; None for another one.

    >>> demuxer(b"\\0\\0\\0\\x1cftypisom"), demuxer(b"RIFF")
    ('mov', None)
    """
    if head[4:8] == b"ftyp":
        return "mov"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if len(head) > 3 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    return None


class Watched(io.RawIOBase):
    """A file as FFmpeg reads it: remembers an error of the storage, ignores seeks to places that do not exist."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self.file.read(size)
        except OSError as error:
            self.error = error
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self.file.seek(offset, whence)
        except (ValueError, OverflowError) as error:
            surface(error)
            return self.file.tell()
        except OSError as error:
            self.error = error
            return self.file.tell()

    def tell(self) -> int:
        return self.file.tell()


@contextmanager
def opened(file: BinaryIO, head: bytes, where: str, purpose: str) -> Iterator[Any]:
    """Yields an open PyAV container."""
    av = need("av", extra="av", purpose=purpose)
    name = demuxer(head)
    watched = Watched(file)
    if missing := missing_bytes(file, name):
        raise damaged(where, f"{missing:,} bytes less than its headers state")
    file.seek(0)
    try:
        with av.open(watched, mode="r", format=name, options=OPTIONS, metadata_errors="replace") as container:
            yield container
    except PenstockError as error:
        if watched.error is not None and isinstance(error, RecordError):
            raise watched.error from None
        raise
    except (av.FFmpegError, ValueError, TypeError, ArithmeticError, LookupError, RuntimeError) as error:
        surface(error)
        if watched.error is not None:
            raise watched.error from None
        raise damaged(where, f"{type(error).__name__}: {error}") from error


def track_of(container: Any, kind: str, where: str) -> Any:
    """The first track of a kind, "audio" or "video", that FFmpeg can decode, with one thread."""
    tracks = getattr(container.streams, kind)
    if not tracks or tracks[0].codec_context is None:
        got = "none" if not tracks else "a codec that FFmpeg does not know"
        raise RecordError(f"a file with {kind} that can be decoded", got=got, where=where, fix="leave the file out")
    if not tracks[0].codec_context.is_open:
        tracks[0].codec_context.thread_count = 1
    return tracks[0]


def end_of(container: Any, track: Any) -> float | None:
    """When a track of a Matroska file ends, in seconds from 0, or None: as its writer noted it, else as the longest."""
    if container.duration is None:
        return None
    noted = [_CLOCK.fullmatch(text) for name, text in track.metadata.items() if name.partition("-")[0] == "DURATION"]
    ends = [3600 * int(m[1]) + 60 * int(m[2]) + float(m[3]) for m in noted if m]
    return min([float(container.duration) / 1_000_000, *(end for end in ends if end > 0)])


def damaged(where: str, got: str) -> RecordError:
    fix = "the file is truncated or damaged: fetch it again or leave it out"
    return RecordError("an intact MP4, M4A, WebM, Matroska or AAC file", got=got[:200], where=where, fix=fix)
