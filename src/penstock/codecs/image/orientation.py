"""EXIF orientation of an image from its EXIF or XMP metadata, as Pillow's `ImageOps.exif_transpose` finds it.

The usual entry is read here in about a microsecond; unusual ones are left to Pillow's own parser. Damaged metadata
means no orientation: the pixels are still usable.
"""

from __future__ import annotations

import re
import struct

from penstock.core.optional import need
from penstock.core.signals import surface, undisturbed_by_handlers

_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_TAG, _SHORT = 0x0112, 3


def orientation_of(exif: bytes, xmp: bytes = b"") -> int:
    """Returns the orientation (1 to 8) of a TIFF structure `exif`, else of an XMP packet, else 1.

    >>> orientation_of(b"", b'<rdf:Description tiff:Orientation="6"/>'), orientation_of(b"damaged")
    (6, 1)
    """
    found = _exif(exif) if exif else None
    if found is None and xmp and (match := _XMP.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1


def _exif(tiff: bytes) -> int | None:
    """The value of the orientation tag of the first directory; None if there is none."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return None
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, start)
    for entry in range(min(count, 512)):
        at = start + 2 + 12 * entry
        if at + 12 > len(tiff):
            return _by_pillow(tiff)
        tag, kind, values, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == _TAG:
            return value if kind == _SHORT and values == 1 else _by_pillow(tiff)
    return None


@undisturbed_by_handlers
def _by_pillow(tiff: bytes) -> int | None:
    """For another type, several values or a damaged directory, where Pillow's rules are the reference."""
    try:
        exif = need("PIL.Image", extra="image").Exif()
        exif.load(b"Exif\0\0" + tiff)
        found = exif.get(_TAG)
    except Exception as error:  # damaged EXIF: the image is still usable
        surface(error)
        return None
    return found if isinstance(found, int) else None
