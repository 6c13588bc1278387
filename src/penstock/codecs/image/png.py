"""Reads PNG chunks: the header, where the orientation may stand, and checksums.

Every chunk has a CRC-32. Pillow does not check those of the pixels, so a changed byte there can become other pixels
without an error. `check` verifies all chunks, also those without pixels (they can hold the orientation or a palette),
at about 1 GB/s: a few percent of decoding.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from penstock.codecs.image.info import Data, ImageInfo
from penstock.codecs.image.orientation import orientation_of
from penstock.core.errors import RecordError
from penstock.core.signals import surface

MAX_CHUNKS = 200_000
"""Most chunks that are looked at: a file of record size has fewer even with the small ones that some encoders write."""
MAX_TEXT = 1 << 20

_HEAD = struct.Struct(">I4s").unpack_from
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")


def is_png(data: Data) -> bool:
    """Whether these bytes begin like a PNG with its header chunk."""
    return len(data) >= 26 and bytes(data[:8]) == b"\x89PNG\r\n\x1a\n" and bytes(data[12:16]) == b"IHDR"


def read_header(data: Data) -> ImageInfo:
    """The header, and the orientation in any chunk, before or after the pixels."""
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    animated = False
    metadata: dict[str, bytes] = {}
    for kind, at, size in _chunks(data):
        animated |= kind == b"acTL"
        if kind in _METADATA and size <= MAX_TEXT:
            metadata |= _metadata(kind, bytes(data[at : at + size]))
    exif, xmp = metadata.get("exif", b""), metadata.get("xmp", b"")
    orientation = orientation_of(exif or metadata.get("profile", b""), xmp) if metadata else 1
    return ImageInfo("PNG", height, width, _CHANNELS.get(colour, 0), bits, animated, orientation)


def check(data: Data, where: str) -> None:
    """Raises `RecordError` if a chunk does not match its checksum or the file ends before its last chunk.

    >>> body = b"IEND"
    >>> check(b"\\x89PNG\\r\\n\\x1a\\n" + bytes(4) + body + struct.pack(">I", zlib.crc32(body)), "a.png")
    """
    view, last = memoryview(data), b""
    for kind, at, size in _chunks(data):
        end = at + size
        if end + 4 > len(view):
            raise _damaged(f"the file ends inside a chunk {kind!r}", where)
        if zlib.crc32(view[at - 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise _damaged(f"chunk {kind!r} at byte {at - 8:,} does not match its checksum", where)
        last = kind
    if last != b"IEND":
        raise _damaged("the file ends before its last chunk (IEND)", where)


def _damaged(got: str, where: str) -> RecordError:
    fix = "fetch the file again, leave it out, or pass strict=False to use what can be decoded"
    return RecordError("an intact PNG", got=got, where=where, fix=fix)


def _chunks(data: Data) -> Iterator[tuple[bytes, int, int]]:
    """Kind, offset and size of the body of each chunk, up to IEND."""
    at, n = 8, len(data)
    for _ in range(MAX_CHUNKS):
        if at + 8 > n:
            return
        size, kind = _HEAD(data, at)
        yield kind, at + 8, size
        if kind == b"IEND":
            return
        at += 12 + size


def _metadata(kind: bytes, body: bytes) -> dict[str, bytes]:
    """EXIF and XMP bytes of a chunk, under the names that Pillow knows: eXIf, an ImageMagick profile, an XMP text."""
    if kind == b"eXIf":
        return {"exif": body.removeprefix(b"Exif\0\0")}
    name, _, rest = body.partition(b"\0")
    if name not in (b"Raw profile type exif", b"XML:com.adobe.xmp"):
        return {}
    packed = kind == b"zTXt"
    if packed:
        rest = rest[1:]
    elif kind == b"iTXt":
        packed = rest[:1] != b"\0"
        rest = rest[2:].split(b"\0", 2)[-1]
    if packed:
        try:
            rest = zlib.decompressobj().decompress(rest, MAX_TEXT)
        except zlib.error:
            return {}
    if name == b"XML:com.adobe.xmp":
        return {"xmp": rest}
    try:
        return {"profile": bytes.fromhex("".join(rest.decode("latin-1").split("\n")[3:])).removeprefix(b"Exif\0\0")}
    except ValueError as error:
        surface(error)
        return {}
