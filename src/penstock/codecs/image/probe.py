"""Reads the header of an image: format, size and channels, before memory is allocated for pixels.

JPEG, PNG and GIF headers are parsed here (a few microseconds); other formats are opened lazily by Pillow, which reads
only their header. An image above the pixel limit, or a file that is not an image, raises a `RecordError` that names
it, so that a loader can skip it.
"""

from __future__ import annotations

import os

from penstock.codecs.image import jpeg_header, png
from penstock.codecs.image.info import Data, ImageInfo, too_large
from penstock.codecs.image.pillow import probe_pillow
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.storage.small_files import read_whole


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
    if bytes(data[:2]) == b"\xff\xd8":
        info = jpeg_header.read_header(data, where)
    elif png.is_png(data):
        info = png.read_header(data)
    else:
        info = probe_pillow(data, where, limits)
    if info.height < 1 or info.width < 1:
        raise RecordError("an image with pixels", got=f"{info.height} x {info.width} in its header", where=where)
    if info.height * info.width > limits.pixels:
        raise too_large(f"{info.format} of {info.height} x {info.width}", where, limits)
    return info
