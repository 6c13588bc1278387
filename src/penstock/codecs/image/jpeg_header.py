"""Reads JPEG segments up to the first scan: frame header and orientation.

Bytes between segments that belong to none are skipped, as Pillow and libjpeg skip them; `without_junk` removes them, so
that a strict decode can still tell them from damage in the pixels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from penstock.codecs.image.info import Data, ImageInfo, not_an_image
from penstock.codecs.image.orientation import orientation_of
from penstock.core.errors import RecordError

MAX_SCANS = 500
"""Most scans of a progressive JPEG: each costs a pass over all coefficients, so thousands would be an attack."""
MAX_SEGMENTS = 20_000
"""Most segments before the first scan; real files have a few hundred at most."""

_SOI, _EOI, _SOS, _APP1, _DRI = 0xD8, 0xD9, 0xDA, 0xE1, 0xDD
_ALONE = frozenset([0x00, 0x01, _SOI, *range(0xD0, 0xD8)])  # without a length
_NO_SOF = {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_LOSSLESS = {0xC3, 0xC7, 0xCB, 0xCF}
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_SEGMENT = struct.Struct(">BBH").unpack_from
_FF, _NOT_FF = re.compile(b"\xff"), re.compile(b"[^\xff]")


def read_header(data: Data, where: str) -> ImageInfo:
    """Frame header and orientation; `RecordError` for kinds of JPEG that are not decoded."""
    view, n = memoryview(data), len(data)
    exif: list[bytes] = []
    xmp = b""
    frame, restarts, scanned, end = 0, False, 0, 2
    junk = False
    for marker, at, length in _segments(data):
        junk |= at != end
        end = at + 2 + length
        if marker <= 0xCF:
            if marker >= 0xC0 and marker not in _NO_SOF and not frame:
                frame, kind = at + 4, marker
        elif marker == _APP1:
            body = view[at + 4 : end]
            if body[:6] == _EXIF:
                exif.append(bytes(body[6:]))
            elif body[:29] == _XMP:
                xmp = bytes(body[29:])
        elif marker == _DRI:
            restarts = True
        elif marker == _SOS and at + 4 < n:
            scanned = view[at + 4]
    if not frame or frame + 6 > n:
        raise not_an_image(data, where, "a JPEG that ends, or is damaged, before its frame header")
    bits, height, width, channels = struct.unpack_from(">BHHB", view, frame)
    _check(data, kind, where, bits=bits, height=height, channels=channels)
    samplings = view[frame + 7 : frame + 7 + 3 * channels : 3]
    shortens = kind in (0xC0, 0xC1) and not restarts and scanned == channels
    block = 8 * max((s & 15 for s in samplings), default=0) if shortens else 0
    turn = orientation_of(b"".join(exif), xmp) if exif or xmp else 1
    return ImageInfo("JPEG", height, width, channels, bits, False, turn, kind in _PROGRESSIVE, frame, block, junk)


def without_junk(data: Data) -> bytes:
    """The same JPEG with only its segments before the first scan."""
    view = memoryview(data)
    parts: list[bytes | memoryview] = [b"\xff\xd8"]
    end = 2
    for _, at, length in _segments(data):
        parts.append(view[at : at + 2 + length])
        end = at + 2 + length
    parts.append(view[end:])
    return b"".join(parts)


def _segments(data: Data) -> Iterator[tuple[int, int, int]]:
    """Marker, offset and length of each segment, through the header of the first scan."""
    at, n = 2, len(data)
    for _ in range(MAX_SEGMENTS):
        if at + 4 > n:
            return
        first, marker, length = _SEGMENT(data, at)
        if first != 0xFF or marker == 0xFF:  # junk up to the next marker, or fill bytes before one
            found = (_FF if first != 0xFF else _NOT_FF).search(data, at)
            if found is None:
                return
            at = found.start() - (first == 0xFF)
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker == _EOI or length < 2:
            return
        yield marker, at, length
        if marker == _SOS:
            return
        at += 2 + length


def _check(data: Data, marker: int, where: str, *, bits: int, height: int, channels: int) -> None:
    fix = "convert it to a baseline JPEG or a PNG"
    if marker in _LOSSLESS:
        raise RecordError("a baseline or progressive JPEG", got="a lossless one", where=where, fix=fix)
    if bits != 8:
        raise RecordError("a JPEG of 8 bits a sample", got=f"{bits} bits", where=where, fix=fix)
    if height == 0:
        raise RecordError("a JPEG whose header states its height", got="height 0", where=where, fix=fix)
    if channels not in (1, 3, 4):
        raise RecordError("a JPEG of 1, 3 or 4 channels", got=f"{channels}", where=where, fix=fix)
    if marker in _PROGRESSIVE:
        scans = bytes(data).count(b"\xff\xda")  # byte stuffing keeps this pair out of entropy-coded data
        if scans > MAX_SCANS:
            raise RecordError(f"a progressive JPEG of at most {MAX_SCANS} scans", got=f"{scans}", where=where, fix=fix)
