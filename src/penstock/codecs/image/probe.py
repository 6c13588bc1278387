"""Reads the header of an image: format, size and channels, before memory is allocated for pixels.

JPEG, PNG and GIF headers are parsed here (a few microseconds); other formats are opened lazily by Pillow, which reads
only their header. An image above the pixel limit, or a file that is not an image, raises a `RecordError` that names
it, so that a loader can skip it.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.storage.small_files import read_whole

Data = bytes | bytearray | memoryview

FORMATS = ("PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats that Pillow may open besides JPEG; none that runs other programs or fetches files (EPS, ...)."""

MAX_SCANS = 500
"""Most scans of a progressive JPEG: each costs a pass over all coefficients, so thousands would be an attack."""

_SEGMENT = struct.Struct(">BBH").unpack_from
_END = {0xDA, 0xD9}
_NO_SOF = {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_LOSSLESS = {0xC3, 0xC7, 0xCB, 0xCF}
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The header of an image. `height` and `width` are as stored; `oriented` is after EXIF orientation."""

    format: str
    height: int
    width: int
    channels: int
    bits: int = 8
    animated: bool = False
    orientation: int = 1
    progressive: bool = False
    frame: int = 0
    """JPEG: byte offset of the frame header's fields."""
    block: int = 0
    """JPEG: pixel rows of one block row, if decoding may stop after any (baseline, no restart markers); else 0."""

    @property
    def oriented(self) -> tuple[int, int]:
        """(height, width) as displayed."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def probe(data: Data | str | os.PathLike[str], *, where: str = "", limits: Limits = LIMITS) -> ImageInfo:
    """Reads the header of encoded bytes, or of a file. Raises `RecordError` if it is not an image or too large.

    >>> png = b"\\x89PNG\\r\\n\\x1a\\n" + bytes.fromhex("0000000d49484452 00000020 00000010 08 02 000000 00000000")
    >>> probe(png).format, probe(png).height, probe(png).width
    ('PNG', 16, 32)
    """
    if isinstance(data, str | os.PathLike):
        where = where or os.fspath(data)
        data = read_whole(data, limits, where=where)
    if len(data) == 0:
        raise RecordError("an image", got="0 bytes", where=where, fix="remove the empty file or write it again")
    head = bytes(data[:32])
    if head[:2] == b"\xff\xd8":
        info = _jpeg(data, where)
    elif head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR" and len(head) >= 26:
        info = _png(data)
    else:
        info = _pillow(data, where, limits)
    if info.height < 1 or info.width < 1:
        raise RecordError("an image with pixels", got=f"{info.height} x {info.width} in its header", where=where)
    if info.height * info.width > limits.pixels:
        raise too_large(f"{info.format} of {info.height} x {info.width}", where, limits)
    return info


def too_large(what: str, where: str, limits: Limits) -> RecordError:
    """Creates the error for an image above the pixel limit."""
    return RecordError(
        f"an image of at most {limits.pixels:,} pixels",
        got=f"{what}, according to its header",
        where=where,
        fix="leave it out, or pass limits=Limits(pixels=...) if you trust it",
    )


def not_an_image(data: Data, where: str, why: str = "") -> RecordError:
    """Creates the error for bytes that are not a supported image."""
    return RecordError(
        "an image (JPEG, PNG, GIF, BMP, WebP, TIFF, PPM, AVIF or JPEG 2000)",
        got=f"{len(data):,} bytes beginning {bytes(data[:12])!r}" + (f" ({why})" if why else ""),
        where=where,
        fix="remove the file, or give it the extension of what it is",
    )


def _jpeg(data: Data, where: str) -> ImageInfo:
    """Parses JPEG segments up to the start of the scan: frame header and EXIF orientation."""
    view, at, n = memoryview(data), 2, len(data)
    orientation, frame, restarts = 1, 0, False
    while at + 4 <= n:
        first, marker, length = _SEGMENT(data, at)
        if first != 0xFF:
            break
        if marker == 0xFF or 0xD0 <= marker <= 0xD7 or marker == 0x01:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _END or length < 2:
            break
        if marker <= 0xCF:
            if marker >= 0xC0 and marker not in _NO_SOF and not frame:
                frame, kind = at + 4, marker
        elif marker == 0xE1 and orientation == 1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = _exif_orientation(bytes(view[at + 10 : at + 2 + length]))
        elif marker == 0xDD:
            restarts = True
        at += 2 + length
    if not frame or frame + 6 > n:
        raise not_an_image(data, where, "a JPEG that ends, or is damaged, before its frame header")
    bits, height, width, channels = struct.unpack_from(">BHHB", view, frame)
    _check_jpeg(data, kind, where, bits=bits, height=height, channels=channels)
    samplings = view[frame + 7 : frame + 7 + 3 * channels : 3]
    block = 8 * max((s & 15 for s in samplings), default=0) if kind in (0xC0, 0xC1) and not restarts else 0
    return ImageInfo("JPEG", height, width, channels, bits, False, orientation, kind in _PROGRESSIVE, frame, block)


def _check_jpeg(data: Data, marker: int, where: str, *, bits: int, height: int, channels: int) -> None:
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


def _exif_orientation(tiff: bytes) -> int:
    """Returns tag 0x0112 of the first directory; 1 if EXIF is damaged, since the image is still usable."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, start)
    for entry in range(min(count, 512)):
        at = start + 2 + 12 * entry
        if at + 12 > len(tiff):
            return 1
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == 0x0112:
            return int(value) if kind == 3 and 1 <= value <= 8 else 1
    return 1


def _png(data: Data) -> ImageInfo:
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    orientation, at, view, animated = 1, 8, memoryview(data), False
    for _ in range(64):  # ancillary chunks before the pixels; later ones are ignored
        if at + 8 > len(view):
            break
        size, kind = struct.unpack_from(">I4s", view, at)
        if kind == b"IDAT":
            break
        animated |= kind == b"acTL"
        if kind == b"eXIf":
            orientation = _exif_orientation(bytes(view[at + 8 : at + 8 + min(size, 65536)]))
        at += 12 + size
    return ImageInfo("PNG", height, width, _PNG_CHANNELS.get(colour, 0), bits, animated, orientation)


def open_pillow(data: Data, where: str, limits: Limits, formats: tuple[str, ...] = FORMATS) -> Any:
    """Opens an image of a safe format lazily with Pillow and checks its size. Pixels are not read yet."""
    image_module = need("PIL.Image", extra="image", purpose="to read images other than JPEG")
    try:
        image = image_module.open(io.BytesIO(data), formats=formats)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise too_large(f"{str(error).split(',')[0].lower()}", where, limits) from error
    except Exception as error:  # header parsers of a dozen formats raise a dozen types on hostile bytes
        unknown = isinstance(error, need("PIL", extra="image").UnidentifiedImageError)
        raise not_an_image(data, where, "" if unknown else f"{error}") from error
    if image.width * image.height > limits.pixels:
        raise too_large(f"{image.format} of {image.height} x {image.width}", where, limits)
    return image


def _pillow(data: Data, where: str, limits: Limits) -> ImageInfo:
    if bytes(data[:4]) == b"GIF8" and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
        if width * height > limits.pixels:
            raise too_large(f"GIF of {height} x {width}", where, limits)
    image = open_pillow(data, where, limits)
    try:
        orientation = int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF: the image is still usable
        orientation = 1
    if image.format == "TIFF":  # Pillow applies the orientation itself while loading, and reports the final size
        orientation = 1
    bits = 16 if image.mode.startswith("I;16") else 32 if image.mode in ("I", "F") else 8
    return ImageInfo(
        str(image.format),
        image.height,
        image.width,
        len(image.getbands()),
        bits,
        bool(getattr(image, "is_animated", False)),
        orientation if 1 <= orientation <= 8 else 1,
    )
