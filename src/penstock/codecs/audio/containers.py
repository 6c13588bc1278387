"""Sizes that audio containers state: a file shorter than its header says is truncated, and raises.

libsndfile reads such files to their end without an error. Checked are AIFF and 8SVX, AU, W64, RF64, CAF and NIST
SPHERE; WAV has its own parser, FLAC, Ogg and MP3 their own modules.
"""

from __future__ import annotations

import os
import re
import struct
from typing import BinaryIO

from penstock.core.errors import RecordError

_FORMS = (b"AIFF", b"AIFC", b"8SVX", b"16SV")
_COUNT = re.compile(rb"^(sample_count|channel_count|sample_n_bytes) -i (\d{1,12})$", re.MULTILINE)


def check_size(file: BinaryIO, head: bytes, where: str) -> None:
    """Raises `RecordError` if the file is shorter than its header says. `head` is its first 12 bytes."""
    total = file.seek(0, os.SEEK_END)
    stated = _stated(file, head)
    if stated is not None and stated > total:
        raise RecordError(
            f"{stated:,} bytes, as the header says", got=f"{total:,} bytes", where=where,
            fix="the file is truncated: fetch it again or leave it out",
        )  # fmt: skip


def _stated(file: BinaryIO, head: bytes) -> int | None:
    """Bytes of the complete file; None if its header does not say."""
    if head[:4] == b"FORM" and head[8:12] in _FORMS:
        return int.from_bytes(head[4:8], "big") + 8
    if head[:4] == b".snd":
        start, size = struct.unpack(">II", head[4:12].ljust(8, b"\0"))
        return None if size == 0xFFFFFFFF else start + size
    if head[:12] == b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb":
        size = int.from_bytes(_at(file, 16, 8), "little")
        return None if size == 0xFFFFFFFFFFFFFFFF else size  # written to a pipe
    if head[:4] == b"RF64":
        return int.from_bytes(_at(file, 20, 8), "little") + 8 if _at(file, 12, 4) == b"ds64" else None
    if head[:4] == b"caff":
        return _caf(file)
    if head[:8] == b"NIST_1A\n":
        return _sphere(_at(file, 0, 1024))
    return None


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _caf(file: BinaryIO) -> int | None:
    """The end of the chunk of samples, whose size may be -1: up to the end of the file."""
    at = 8
    for _ in range(1000):
        chunk = _at(file, at, 12)
        if len(chunk) < 12:
            return None
        (size,) = struct.unpack(">q", chunk[4:])
        if size < 0:
            return None
        at += 12 + int(size)
        if chunk[:4] == b"data":
            return at
    return None


def _sphere(header: bytes) -> int | None:
    fields = {name: int(value) for name, value in _COUNT.findall(header)}
    start = header[8:16].strip()
    if len(fields) < 3 or not start.isdigit() or b"shorten" in header:
        return None
    return int(start) + fields[b"sample_count"] * fields[b"channel_count"] * fields[b"sample_n_bytes"]
