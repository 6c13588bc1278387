"""Looks at the header of an audio file: rate, length, channels, before memory is spent on samples.

Plain WAV is walked here; FLAC, Ogg (Vorbis, Opus), MP3, AIFF and the rest of libsndfile's formats are opened by
soundfile, which reads their header. Longer than the limit, or no audio, is refused with a `RecordError`.
A cut WAV, AIFF or FLAC is noticed; Ogg and MP3 do not state their length, so there a cut file is a shorter one.
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
WHOLE_BYTES = 256 << 10  # files up to this are read whole at once: a header in many small reads costs more


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What the header says. `frames` is -1 where a stream does not state its length."""

    format: str
    sample_rate: int
    frames: int
    channels: int

    @property
    def seconds(self) -> float:
        """Length in seconds; -1 where unknown."""
        return self.frames / self.sample_rate if self.frames >= 0 else -1.0


def probe(data: Media, *, where: str = "", limits: Limits = LIMITS) -> AudioInfo:
    """The header of encoded bytes, or of a file.

    >>> import numpy as np
    >>> probe(wav.encode(np.zeros(800), 8000)).seconds
    0.1
    """
    with opened(data, where, limits) as (info, _, _):
        return info


@contextmanager
def opened(data: Media, where: str, limits: Limits) -> Iterator[tuple[AudioInfo, Any, wav.WavInfo | None]]:
    """Header and an open handle: a binary file with its `WavInfo`, or a `soundfile.SoundFile` with None."""
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


class _Calm(io.BytesIO):
    """Bytes as a file whose `seek` stays put instead of raising: libsndfile calls it from C, with what headers say."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def _open(data: Media, where: str, limits: Limits) -> BinaryIO:
    if not isinstance(data, str | os.PathLike):
        return _Calm(data)
    opened, size = open_regular(data, limits, where)
    if size > WHOLE_BYTES:
        return os.fdopen(opened, "rb")
    try:
        return _Calm(read_open(opened, size))
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
            fix="remove the file, or convert it (AAC, M4A and video are not read)",
        ) from error


def _check_iff(head: bytes, total: int, where: str) -> None:
    """AIFF states its length, and libsndfile reads a shorter file in silence."""
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
            fix="cut it in pieces, or pass limits=Limits(audio_seconds=...) if you trust it",
        )
    return info
