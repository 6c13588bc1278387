"""Where an MP4 or Matroska file ends by its own headers: FFmpeg reads a file that was cut as a shorter one.

Costs one small read for each box of an MP4 file, of which there are about four, or two for each fragment.
"""

from __future__ import annotations

from typing import BinaryIO

_MOST_BOXES = 100_000
_SEGMENT = b"\x18\x53\x80\x67"


def missing_bytes(file: BinaryIO, name: str | None) -> int:
    """How many bytes the last part of a file, for FFmpeg's demuxer `name`, has behind the end of the file.

    0 where nothing is missing, and where headers do not say, as in a recorded stream.

    >>> import io
    >>> missing_bytes(io.BytesIO(b"\\0\\0\\0\\x10ftypisom\\0\\0\\0\\0" + b"\\0\\0\\0\\x20mdat1234"), "mov")
    20
    """
    total = file.seek(0, 2)
    return max(0, {"mov": _mp4, "matroska": _matroska}.get(name or "", _unknown)(file, total) - total)


def _unknown(_: BinaryIO, total: int) -> int:
    return total


def _mp4(file: BinaryIO, total: int) -> int:
    at = 0
    for _ in range(_MOST_BOXES):
        file.seek(at)
        head = file.read(16)
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if len(kind) < 4 or size < 8:  # 0: up to the end of the file
            break
        at += size
        if at > total:
            return at if kind in (b"mdat", b"moov", b"moof") else total
    return total


def _matroska(file: BinaryIO, total: int) -> int:
    at = 0
    for wanted in (b"\x1a\x45\xdf\xa3", _SEGMENT):
        file.seek(at)
        head = file.read(12)
        if not head.startswith(wanted) or len(head) < 5:
            return total
        width = 9 - head[4].bit_length()
        stated = int.from_bytes(head[4 : 4 + width], "big") & (1 << 7 * width) - 1
        if width > 8 or stated == (1 << 7 * width) - 1:  # not known when it was written
            return total
        at += 4 + width + stated
    return at
