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
    """JPEG: pixel rows of one block row, if decoding may stop after any (baseline, no restart markers); else 0."""
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


def not_an_image(data: Data, where: str, why: str = "") -> RecordError:
    """Creates the error for bytes that are not a supported image."""
    return RecordError(
        "an image (JPEG, PNG, GIF, BMP, WebP, TIFF, PPM, AVIF or JPEG 2000)",
        got=f"{len(data):,} bytes beginning {bytes(data[:12])!r}" + (f" ({why})" if why else ""),
        where=where,
        fix="remove the file, or give it the extension of what it is",
    )
