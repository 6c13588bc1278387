"""Reads the header of an audio file: sample rate, length and channels, before memory is allocated for samples.

Plain WAV is parsed here; FLAC, Ogg (Vorbis, Opus), MP3, AIFF and the other formats of libsndfile are opened by
soundfile; MP4, M4A, WebM, Matroska and AAC by PyAV (extra `av`). A file that is longer than the limit, truncated, or
not audio, raises `RecordError`; a file that cannot be read raises `StorageError`. Lengths are exact: of FLAC the last
frame is compared with the header, of Ogg all pages are verified, of MP3 all frames are counted; of PyAV's formats they
are as stated. An Ogg or MP3 without a length of its own that ends between two pages or frames is a shorter file.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.codecs import av_media
from penstock.codecs.audio import av_sound, containers, flac, mpeg, ogg, sound, wav
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.os_errors import storage_errors
from penstock.core.signals import surface
from penstock.storage.small_files import open_regular, read_open

Media = bytes | bytearray | memoryview | str | os.PathLike[str]
Reader = Callable[[int, int], NDArray[np.float32]]
"""Reads frames [first, first + n) as (n, channels)."""

MAX_CHANNELS = 64
READ_AT_ONCE = 256 << 10  # files up to this size are read completely: many small reads of a header cost more
MAX_TAGS, MAX_ZEROS = 16, 1 << 16
REMEMBERED = 64
"""Large files of which the frames or verified pages are remembered, for the next slice."""


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The header of an audio file. `frames` is -1 if the format does not state its length."""

    format: str
    sample_rate: int
    frames: int
    channels: int

    @property
    def seconds(self) -> float:
        """Length in seconds; -1 if unknown."""
        return self.frames / self.sample_rate if self.frames >= 0 else -1.0


def probe(data: Media, *, where: str = "", limits: Limits = LIMITS) -> AudioInfo:
    """Reads the header of encoded bytes, or of a file.

    >>> import numpy as np
    >>> probe(wav.encode(np.zeros(800), 8000)).seconds
    0.1
    """
    with opened(data, where, limits) as (info, _):
        return info


@contextmanager
def opened(data: Media, where: str, limits: Limits) -> Iterator[tuple[AudioInfo, Reader]]:
    """Yields the header, and a function that reads samples, valid inside the block."""
    path = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
    where = where or path
    with storage_errors(where), _open(data, where, limits) as file:
        head = file.read(12)
        if not head:
            raise RecordError("audio", got="0 bytes", where=where, fix="remove the empty file or write it again")
        plain = wav.walk(file, where) if wav.is_wav(head) else None
        if plain is not None:
            info = AudioInfo("WAV", plain.sample_rate, plain.frames, plain.channels)
            yield _checked(info, where, limits), lambda first, n: wav.read(file, plain, first, n, where)
            return
        tagged = _after_tags(file, head)
        if av_media.demuxer(tagged) is not None:
            with av_sound.opened_sound(file, tagged, where, limits.audio_seconds) as (rate, frames, channels, reader):
                info = AudioInfo(av_media.demuxer(tagged) or "", rate, frames, channels)
                yield _checked(info, where, limits), reader
            return
        found = _mp3(file, where) if mpeg.is_frame(tagged) else None
        if found is not None:  # libsndfile knows an MP3 only by its first bytes, and after one tag at most
            info = AudioInfo("MP3", found[1].sample_rate, found[1].samples, found[1].channels)
            yield _checked(info, where, limits), sound.mp3_reader(*found, where)
            return
        containers.check_size(file, head, where)
        file.seek(0)
        with sound.opened(file, head, where) as handle:
            kind, rate, frames, channels = handle.format, handle.samplerate, int(handle.frames), handle.channels
            read = sound.reader(handle, where)
            if kind == "MP3":
                found = _mp3(file, where)
                if found is None:
                    raise RecordError("an MP3 with frames", got="none", where=where, fix="leave the file out")
                rate, frames, channels = found[1].sample_rate, found[1].samples, found[1].channels
                read = sound.mp3_reader(*found, where)
            elif head[:4] == b"fLaC":
                claimed, frames = frames, _flac_samples(file, where)
                if claimed != frames:  # the header says "unknown"
                    content = flac.with_total(_content(file), frames)
                    read = sound.late_reader(content, head, where)
            elif kind == "OGG":
                last_page = _remembered(file, "OGG", lambda: ogg.check(_content(file), where))
                read = sound.reader(handle, where, sound.ogg_seeks_to(handle, last_page))
            info = AudioInfo(kind, rate, -1 if frames >= sound.UNKNOWN_FRAMES else frames, channels)
            yield _checked(info, where, limits), read


def _after_tags(file: BinaryIO, head: bytes) -> bytes:
    """The first bytes after the ID3 tags and zeros with which a file begins; `head` if there are none."""
    at = 0
    for _ in range(MAX_TAGS):
        if head[:3] == b"ID3" and len(head) >= 10:
            at += mpeg.id3_size(head)
        elif head[:4] == bytes(4):
            file.seek(at)
            zeros = file.read(MAX_ZEROS)
            at += len(zeros) - len(zeros.lstrip(b"\0"))
        else:
            break
        file.seek(at)
        head = file.read(12)
    return head


def _mp3(file: BinaryIO, where: str) -> tuple[bytes, mpeg.Frames] | None:
    content = _content(file, 0)
    found = _remembered(file, "MP3", lambda: mpeg.walk(content, where))
    return None if found is None else (content, found)


def _flac_samples(file: BinaryIO, where: str) -> int:
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(42)
    file.seek(position)
    tail = max(flac.TAIL, int.from_bytes(header[15:18], "big"))
    return flac.total_samples(header, _content(file, max(0, size - tail)), where)


class _BytesFile(io.BytesIO):
    """Bytes as a file whose `seek` ignores invalid positions: libsndfile calls it from C with values from headers."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError) as error:
            surface(error)
            return self.tell()


def _open(data: Media, where: str, limits: Limits) -> BinaryIO:
    if not isinstance(data, str | os.PathLike):
        return _BytesFile(data)
    opened, size = open_regular(data, limits, where)
    if size > READ_AT_ONCE:
        return os.fdopen(opened, "rb")
    try:
        return _BytesFile(read_open(opened, size))
    finally:
        os.close(opened)


def _content(file: BinaryIO, offset: int = 0) -> bytes:
    """The bytes from `offset` on; the position, which libsndfile counts on, stays."""
    position = file.tell()
    try:
        file.seek(offset)
        return file.read()
    finally:
        file.seek(position)


_facts: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_lock = threading.Lock()


def _remembered(file: BinaryIO, kind: str, find: Callable[[], Any]) -> Any:
    """The result of `find`, computed once for a large file as long as it does not change."""
    if isinstance(file, io.BytesIO):
        return find()
    found = os.fstat(file.fileno())
    key = (kind, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    with _lock:
        if key in _facts:
            _facts.move_to_end(key)
            return _facts[key]
    made = find()
    with _lock:
        _facts[key] = made
        while len(_facts) > REMEMBERED:
            _facts.popitem(last=False)
    return made


def _checked(info: AudioInfo, where: str, limits: Limits) -> AudioInfo:
    if info.sample_rate < 1 or not 1 <= info.channels <= MAX_CHANNELS:
        got = f"{info.sample_rate} Hz, {info.channels} channels"
        raise RecordError(f"a sample rate, and 1 to {MAX_CHANNELS} channels", got=got, where=where)
    if info.seconds > limits.audio_seconds:
        raise RecordError(
            f"audio of at most {limits.audio_seconds:,.0f} seconds",
            got=f"{info.seconds:,.0f} seconds, according to its header",
            where=where,
            fix="split it, or pass limits=Limits(audio_seconds=...) if you trust it",
        )
    return info
