"""What the header of an image says, and the errors of headers that say too much or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import RecordError
from penstock.core.limits import Limits

Data = bytes | bytearray | memoryview


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
    """JPEG: pixel rows of one block row, if decoding may stop after any (baseline, one scan, no restarts); else 0."""
    junk: bool = False
    """JPEG: bytes between the segments of the header that belong to none; decoders skip them."""

    @property
    def oriented(self) -> tuple[int, int]:
        """(height, width) as displayed."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def too_large(what: str, where: str, limits: Limits) -> RecordError:
    """Creates the error for an image above the pixel limit."""
    return RecordError(
        f"an image of at most {limits.pixels:,} pixels",
        got=f"{what}, according to its header",
        where=where,
        fix="leave it out, or pass limits=Limits(pixels=...) if you trust it",
    )


_OTHER_KINDS = (
    (4, (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypheim", b"ftyphevc"), "HEIF"),
    (0, (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"), "JPEG XL"),
    (0, (b"8BPS",), "Photoshop"),
    (0, (b"%!PS", b"%PDF"), "PostScript or PDF"),
    (0, (b"<svg", b"<?xml"), "SVG or other XML"),
    (0, (b"\0\0\1\0", b"\0\0\2\0"), "icon"),
    (0, (b"P7",), "PAM"),
    (0, (b"\x76\x2f\x31\x01",), "OpenEXR"),
    (0, (b"DDS ",), "DDS"),
    (0, (b"qoif",), "QOI"),
)
"""First bytes of formats that are not read: the place of the bytes, the bytes, the name."""

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def not_an_image(data: Data, where: str, why: str = "") -> RecordError:
    """Creates the error for bytes that are not a supported image, or not of a kind that is read."""
    head = bytes(data[:16])
    expected = "an image (JPEG, PNG, GIF, BMP, WebP, TIFF, PPM, AVIF or JPEG 2000)"
    got = f"{len(data):,} bytes beginning {head[:12]!r}" + (f" ({why})" if why else "")
    fix = "remove the file, or give it the extension of what it is"
    if head.startswith(_TIFF):
        expected = "an intact TIFF with pixels in a layout that Pillow reads"
        fix = "convert the file to 8 bits, RGB or grey; fetch it again if other programs do not read it either"
    else:
        name = next((name for at, starts, name in _OTHER_KINDS if head[at:].startswith(starts)), "")
        if name:
            got, fix = f"a file of the format {name} by its first bytes", "convert the file to JPEG or PNG"
    return RecordError(expected, got=got, where=where, fix=fix)
