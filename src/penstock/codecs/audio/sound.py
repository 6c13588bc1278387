"""Reads samples through libsndfile (soundfile). Whatever it raises about content becomes a `RecordError`.

It reads from a Python object that remembers an error of the storage: libsndfile itself would report one as the end of
the file, or with a code that hostile headers cause too. Reads go in blocks, so a header with a wrong length costs one
block (4 MB per channel), not the length it claims.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EINVAL
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio import mpeg
from penstock.core.errors import RecordError
from penstock.core.optional import need
from penstock.core.signals import surface, undisturbed

BLOCK = 1 << 20
LONGEST_PACKET = 8192
"""Samples: a block of Vorbis; those of Opus are shorter."""
UNKNOWN_FRAMES = 1 << 60
F32 = NDArray[np.float32]


class _Watched:
    """A file as libsndfile reads it. Seeks to invalid positions, which come from headers, are ignored."""

    def __init__(self, file: BinaryIO) -> None:
        self.file: Any = file
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return int(self.file.seek(offset, whence))
        except (ValueError, OverflowError) as error:
            surface(error)
            return self.tell()
        except OSError as error:
            if error.errno != EINVAL:
                self.error = error
            return self.tell()

    def tell(self) -> int:
        return int(self.file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self.file.readinto(buffer))
        except OSError as error:
            self.error = error
            return 0

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self.file.read(size))
        except OSError as error:
            self.error = error
            return b""

    def write(self, data: bytes) -> int:
        raise io.UnsupportedOperation("read-only")


@contextmanager
def opened(file: BinaryIO, head: bytes, where: str) -> Iterator[Any]:
    """Yields an open `soundfile.SoundFile`. An error of the storage is raised as the `OSError` it is."""
    soundfile = need("soundfile", extra="audio", purpose="to read audio other than WAV")
    watched = _Watched(file)
    try:
        handle = undisturbed(soundfile.SoundFile)(watched)
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        surface(error)
        if watched.error is not None:
            raise watched.error from None
        raise RecordError(
            "audio (WAV, FLAC, Ogg, MP3, AIFF or another format libsndfile reads)",
            got=f"bytes beginning {head!r}: {getattr(error, 'error_string', error)}",
            where=where,
            fix="remove the file, or convert it (to WAV or FLAC)",
        ) from error
    try:
        yield handle
    except RecordError:
        if watched.error is not None:
            raise watched.error from None
        raise
    finally:
        undisturbed(handle.close)()  # interrupted after it has freed the file, it would free it again in __del__


def reader(handle: Any, where: str, seeks_to: int | None = None) -> Callable[[int, int], F32]:
    """Reads frames [first, first + wanted) of an open file.

    `seeks_to` is the last frame to which libsndfile seeks exactly (None: any); later ones are reached by decoding.
    """
    if not handle.seekable():  # GSM 6.10
        seeks_to = 0

    def read(first: int, wanted: int) -> F32:
        try:
            parts, done = _blocks(handle, first, wanted, seeks_to)
        except Exception as error:  # libsndfile's wrapper raises its own and RuntimeError, by version
            surface(error)
            fix = "fetch it again"
            raise RecordError(f"an intact {handle.format} file", got=f"{error}", where=where, fix=fix) from error
        if done < wanted and handle.frames < UNKNOWN_FRAMES:
            expected = f"{wanted:,} frames from frame {first:,}, as the header of this {handle.format} says"
            raise _short(expected, done, where)
        return _finite(np.concatenate(parts) if parts else np.empty((0, handle.channels), np.float32), where)

    return read


def late_reader(content: bytes, head: bytes, where: str) -> Callable[[int, int], F32]:
    """Reads frames of other bytes, which are opened when they are read."""

    def read(first: int, wanted: int) -> F32:
        with opened(io.BytesIO(content), head, where) as handle:
            return reader(handle, where)(first, wanted)

    return read


def mp3_reader(content: bytes, frames: mpeg.Frames, where: str) -> Callable[[int, int], F32]:
    """Reads samples of an MP3 whose frames are known."""

    def read(first: int, wanted: int) -> F32:
        if not wanted:
            return np.empty((0, frames.channels), np.float32)
        stream, skip = mpeg.part(content, frames, first, wanted)
        with opened(io.BytesIO(stream), stream[:12], where) as handle:
            made = reader(handle, where)(0, skip + wanted)
        if made.shape != (skip + wanted, frames.channels):
            raise _short(f"{wanted:,} samples of {frames.channels} channels from {first:,}", len(made) - skip, where)
        return made[skip:]

    return read


def ogg_seeks_to(handle: Any, last_page: int) -> int:
    """The last frame to which libsndfile seeks exactly, if the last page begins at granule position `last_page`.

    libsndfile counts back from the end of a page. The last one states where the sound ends, which mostly is before the
    end of its packets, so a seek into it would land hundreds of samples away.
    """
    rate = 48000 if handle.subtype == "OPUS" else handle.samplerate
    return max(0, last_page * int(handle.samplerate) // int(rate) - LONGEST_PACKET)


@undisturbed
def _blocks(handle: Any, first: int, wanted: int, seeks_to: int | None) -> tuple[list[F32], int]:
    target = first if seeks_to is None else min(first, seeks_to)
    if handle.seekable() and (target or handle.format == "OGG"):  # a stream that begins late is read right after a seek
        handle.seek(target)
    while target < first:
        part = handle.read(min(BLOCK, first - target), dtype="float32")
        if not len(part):
            return [], 0
        target += len(part)
    parts: list[F32] = []
    done = 0
    while done < wanted:
        part = handle.read(min(BLOCK, wanted - done), dtype="float32", always_2d=True)
        if not len(part):
            break
        parts.append(part)
        done += len(part)
    return parts, done


def _short(expected: str, done: int, where: str) -> RecordError:
    fix = "the file is truncated or damaged: fetch it again or leave it out"
    return RecordError(expected, got=f"{done:,}", where=where, fix=fix)


def _finite(samples: F32, where: str) -> F32:
    if not np.isfinite(samples).all():
        raise RecordError("finite samples", got="NaN or infinity among them", where=where, fix="leave the file out")
    return samples
