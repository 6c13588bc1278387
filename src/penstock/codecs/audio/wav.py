"""Reads PCM and float WAV without a library: parses the chunks, then reads the requested frames.

The header is checked against the file: a `data` chunk longer than the file means a truncated file and raises
(libsndfile would read it without an error). Sizes 0 and 0xFFFFFFFF are what programs write into pipes; there the rest
of the file is data, unless it is other chunks to its end. Values equal libsndfile's float32 conversion.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import RecordError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_MAX_CHUNKS = 1000


@dataclass(frozen=True, slots=True)
class WavInfo:
    """Position and format of the samples. `encoded` is "u8", "i2", "i3", "i4", "f4" or "f8"."""

    sample_rate: int
    channels: int
    frames: int
    offset: int
    encoded: str

    @property
    def frame_bytes(self) -> int:
        return self.channels * int(self.encoded[1:] if self.encoded != "u8" else 1)


def is_wav(head: bytes) -> bool:
    """Whether these first 12 bytes begin a little-endian RIFF/WAVE file."""
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE"


def walk(file: BinaryIO, where: str) -> WavInfo | None:
    """Reads the header of an open WAV; None if the codec is not plain PCM or float.

    >>> import io
    >>> walk(io.BytesIO(encode(np.zeros((5, 1)), 8000)), "").frames
    5
    """
    total = file.seek(0, os.SEEK_END)
    at, fmt = 12, None
    for _ in range(_MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            break
        name, size = struct.unpack("<4sI", head)
        if name == b"fmt ":
            fmt = _format(file.read(min(size, 40)), where)
        elif name == b"data":
            return _data(fmt, at + 8, size or _unstated(file, at + 8, total), total, where)
        at += 8 + size + (size & 1)
    raise RecordError("a WAV with samples", got=f"{total:,} bytes without a data chunk", where=where)


def _format(body: bytes, where: str) -> tuple[int, int, str]:
    if len(body) < 16:
        raise RecordError("a WAV format chunk of 16 bytes", got=f"{len(body)}", where=where)
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 26:
        (tag,) = struct.unpack_from("<H", body, 24)
    kind = {_PCM: {8: "u8", 16: "i2", 24: "i3", 32: "i4"}, _FLOAT: {32: "f4", 64: "f8"}}.get(tag, {}).get(bits, "")
    if kind and (channels < 1 or rate < 1 or align != channels * bits // 8):
        got = f"{channels} channels at {rate} Hz, {bits} bits, {align} bytes a frame"
        raise RecordError("a consistent WAV format chunk", got=got, where=where)
    return rate, channels, kind


def _unstated(file: BinaryIO, at: int, total: int) -> int:
    """The length of samples that are said to be none: a pipe's, which did not know it, or none and other chunks."""
    rest = total - at
    for _ in range(_MAX_CHUNKS):
        if at >= total:
            return 0
        file.seek(at)
        head = file.read(8)
        if len(head) < 8 or not all(32 <= byte < 127 for byte in head[:4]):
            return rest
        size = int.from_bytes(head[4:], "little")
        at += 8 + size + (size & 1)
        if at > total + 1:  # the last chunk need not be padded
            return rest
    return rest


def _data(fmt: tuple[int, int, str] | None, offset: int, size: int, total: int, where: str) -> WavInfo | None:
    if fmt is None:
        raise RecordError("a WAV format chunk before the samples", got="none", where=where)
    rate, channels, kind = fmt
    available = total - offset
    if size == 0xFFFFFFFF:
        size = available
    if size > available:
        raise RecordError(
            f"{size:,} bytes of samples, as the header says",
            got=f"{available:,} bytes",
            where=where,
            fix="the file is truncated: fetch it again or leave it out",
        )
    if not kind:
        return None
    info = WavInfo(rate, channels, 0, offset, kind)
    return WavInfo(rate, channels, size // info.frame_bytes, offset, kind)


def read(file: BinaryIO, info: WavInfo, start: int, frames: int, where: str) -> NDArray[np.float32]:
    """Reads frames [start, start + frames) as float32 (frames, channels) in [-1, 1]."""
    file.seek(info.offset + start * info.frame_bytes)
    raw = file.read(frames * info.frame_bytes)
    if len(raw) != frames * info.frame_bytes:
        got = f"{len(raw) // info.frame_bytes} frames"
        raise RecordError(f"{frames} frames from frame {start}", got=got, where=where)
    samples = _to_float(raw, info.encoded).reshape(-1, info.channels)
    if info.encoded[0] == "f" and not np.isfinite(samples).all():
        raise RecordError("finite samples", got="NaN or infinity among them", where=where, fix="leave the file out")
    return samples


def _to_float(raw: bytes, kind: str) -> NDArray[np.float32]:
    if kind in ("f4", "f8"):
        return np.frombuffer(raw, "<" + kind).astype(np.float32)
    if kind == "u8":
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(2.0**-7)
    if kind == "i3":  # three bytes become the upper three of a 32-bit integer
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (wide.view("<i4")[:, 0] >> 8).astype(np.float32) * np.float32(2.0**-23)
    scale = np.float32(2.0**-15 if kind == "i2" else 2.0**-31)
    return np.frombuffer(raw, "<" + kind).astype(np.float32) * scale


def encode(samples: NDArray[np.floating], sample_rate: int) -> bytes:
    """Encodes (frames, channels) or (frames,) samples in [-1, 1] as 16-bit WAV; for examples and tests.

    >>> len(encode(np.zeros(100), 8000))
    244
    """
    frames = np.atleast_2d(samples.T).T
    data = np.clip(np.rint(frames * 32768.0), -32768, 32767).astype("<i2").tobytes()
    channels = frames.shape[1]
    fmt = struct.pack("<HHIIHH", _PCM, channels, sample_rate, sample_rate * channels * 2, channels * 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body
