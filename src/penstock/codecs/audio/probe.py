"""Reads the header of an audio file: sample rate, length and channels, before memory is allocated for samples.

Plain WAV is parsed here; FLAC, Ogg (Vorbis, Opus), MP3, AIFF and the other formats of libsndfile are opened by
soundfile. A file that is longer than the limit, or not audio, raises `RecordError`. A truncated WAV, AIFF or FLAC is
detected; Ogg and MP3 do not state their length, so a truncated file is a shorter one.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from penstock.codecs.audio import wav
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.storage.small_files import open_regular, read_open

Media = bytes | bytearray | memoryview | str | os.PathLike[str]

UNKNOWN_FRAMES = 1 << 60
MAX_CHANNELS = 64
READ_AT_ONCE = 256 << 10  # files up to this size are read completely: many small reads of a header cost more


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
    with opened(data, where, limits) as (info, _, _):
        return info


@contextmanager
def opened(data: Media, where: str, limits: Limits) -> Iterator[tuple[AudioInfo, Any, wav.WavInfo | None]]:
    """Yields the header and an open handle: a binary file with its `WavInfo`, or a `soundfile.SoundFile` with None."""
    is_path = isinstance(data, str | os.PathLike)
    where = where or (os.fspath(data) if is_path else "")  # type: ignore[arg-type]
    file = _open(data, where, limits)
    try:
        head = file.read(12)
        if not head:
            raise RecordError("audio", got="0 bytes", where=where, fix="remove the empty file or write it again")
        plain = wav.walk(file, where) if wav.is_wav(head) else None
        if plain is not None:
            yield (
                _checked(AudioInfo("WAV", plain.sample_rate, plain.frames, plain.channels), where, limits),
                file,
                plain,
            )
            return
        _check_iff(head, file.seek(0, os.SEEK_END), where)
        file.seek(0)
        with _sound(data if is_path else file, head, where) as sound:
            frames = -1 if sound.frames >= UNKNOWN_FRAMES else int(sound.frames)
            yield (
                _checked(AudioInfo(sound.format, sound.samplerate, frames, sound.channels), where, limits),
                sound,
                None,
            )
    finally:
        file.close()


class _BytesFile(io.BytesIO):
    """Bytes as a file whose `seek` ignores invalid positions: libsndfile calls it from C with values from headers."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
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


def _sound(source: Any, head: bytes, where: str) -> Any:
    soundfile = need("soundfile", extra="audio", purpose="to read audio other than WAV")
    try:
        return soundfile.SoundFile(source if isinstance(source, io.BytesIO) else os.fspath(source))
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        raise RecordError(
            "audio (WAV, FLAC, Ogg, MP3, AIFF or another format libsndfile reads)",
            got=f"bytes beginning {head!r}: {getattr(error, 'error_string', error)}",
            where=where,
            fix="remove the file, or convert it (AAC, M4A and video are not supported)",
        ) from error


def _check_iff(head: bytes, total: int, where: str) -> None:
    """Raises for a truncated AIFF, which libsndfile would read without an error."""
    if head[:4] == b"FORM" and head[8:11] == b"AIF" and int.from_bytes(head[4:8], "big") + 8 > total:
        stated = int.from_bytes(head[4:8], "big") + 8
        raise RecordError(f"an AIFF of {stated:,} bytes, as its header says", got=f"{total:,} bytes", where=where)


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
