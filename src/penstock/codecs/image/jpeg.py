"""Decodes JPEG with simplejpeg, only as many pixels as a crop and a target size need.

Two savings, both decided before decoding. Scale: at 1/2, 1/4 or 1/8 the inverse transform computes fewer pixels.
Height: a decoder stops at the height in the frame header, so a copy of the bytes whose header states the crop's lower
edge decodes only the rows above it. libjpeg then reports the unread rest ("extraneous bytes before the end marker"),
which is expected; it reports only its first problem, so any other message means damage in the decoded rows, or a
truncated file, and raises. For consistency between crops, left-over data is accepted with any crop. A third saving,
columns beside the crop and rows above it, needs a library that not every machine has: `jpeg_region`.

The price: a changed byte mostly shows, if at all, as too much or too little data at the end of the image. Of random
byte changes in photographs a full decode detected 20 in 100, a shortened one 1 in 100; truncation is always detected.
JPEG has no checksum. `check="whole"` keeps the 20; file hashes (as tar shards have) detect all.
"""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.arrays import CHANNELS
from penstock.codecs.image.geometry import Box
from penstock.codecs.image.info import Data, ImageInfo
from penstock.codecs.image.jpeg_region import chosen, region_for
from penstock.core.errors import RecordError
from penstock.core.optional import need
from penstock.core.signals import surface

SCRATCH_BYTES = 32 << 20

_local = threading.local()
_UNREAD_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")
_BAD_PROFILE = "bad ICC marker"  # which concerns no pixel
_PROFILE = re.compile(rb"\xff\xe2(..ICC_PROFILE\x00)", re.DOTALL)
_ODD_SAMPLING = "Could not determine subsampling level"


class OddSampling(Exception):
    """A JPEG whose colour is sampled in a way (4:1:0, for instance) that TurboJPEG does not decode; libjpeg does."""


def scale_for(box: Box, size: tuple[int, ...] | None) -> int:
    """Returns the factor (1, 2, 4 or 8) by which a JPEG may be decoded smaller so that the box still covers the target.

    >>> scale_for((0, 0, 900, 600), (224, 224)), scale_for((5, 5, 300, 200), (224, 224))
    (2, 1)
    """
    if size is None or box[2] < 2 * size[0] or box[3] < 2 * size[1]:
        return 1
    return next(k for k in (8, 4, 2) if k == 2 or (box[2] >= k * size[0] and box[3] >= k * size[1]))


def height_for(info: ImageInfo, box: Box) -> int:
    """Number of rows to decode for the box: complete blocks, and 8 more rows since colour is smoothed across blocks."""
    block = info.block
    if not block:  # progressive, several scans, restart markers: the end of rows cannot be distinguished from damage
        return info.height
    needed = -(-(box[0] + box[2] + 8) // block) * block
    return needed if needed < 0.95 * info.height else info.height


def decode_jpeg(
    data: Data,
    info: ImageInfo,
    box: Box,
    size: tuple[int, ...] | None,
    *,
    mode: str,
    strict: bool,
    check: str,
    where: str,
    own: bool,
    full: bool = False,
) -> tuple[NDArray[np.uint8], int, Box]:
    """Returns pixels that cover the box, the factor by which they are smaller, and the box with their corner at 0, 0.

    With a box or a size they are in this thread's scratch buffer, valid until its next call. `full` decodes at the full
    scale, whatever the target.
    """
    simplejpeg = need("simplejpeg", extra="image", purpose="to decode JPEG")
    shrink = 1 if full else scale_for(box, size)
    rows = height_for(info, box) if check == "crop" else info.height
    height, width = -(-rows // shrink), -(-info.width // shrink)
    channels = CHANNELS[mode]
    # an image that will be cropped or resized is decoded into this thread's scratch buffer: no page faults per image
    cropped = box != (0, 0, info.height, info.width)
    reused = cropped or size is not None
    library = chosen()[0] if cropped else None
    colour = "GRAY" if mode == "L" else mode
    shorter = rows < info.height
    if shorter:
        if not own or not isinstance(data, memoryview) or data.readonly:
            data = bytearray(data)
        _set_height(data, info, rows)
    try:
        if library is not None and (region := region_for(data, info, box, shrink, (height, width))) is not None:
            y, x, *sides = region
            out = _buffer((*sides, channels), reused)
            said = library.decode(data, (rows, info.width), shrink, region, out)
            if said == "" or (said and check == "crop" and _UNREAD_REST.fullmatch(said)):
                return out, shrink, (box[0] - y * shrink, box[1] - x * shrink, *box[2:])
        out = _buffer((height, width, channels), reused)
        pixels = simplejpeg.decode_jpeg(data, colour, min_height=height, min_width=width, buffer=out)
        shape = pixels.shape[:2]
    except (ValueError, RuntimeError) as error:
        surface(error)
        if _ODD_SAMPLING in str(error):
            raise OddSampling from None
        if _BAD_PROFILE in str(error) and _PROFILE.search(data):
            return decode_jpeg(
                _PROFILE.sub(lambda found: b"\xff\xeb" + found[1], data), info, box, size,
                mode=mode, strict=strict, check=check, where=where, own=False, full=full,
            )  # fmt: skip
        if (check != "crop" or not _UNREAD_REST.fullmatch(str(error))) and (strict or not _repaired(data, colour, out)):
            raise damaged(error, where, strict) from error
        shape = simplejpeg.decode_jpeg_header(data, min_height=height, min_width=width, strict=False)[:2]
    finally:
        if shorter:
            _set_height(data, info, info.height)
    if shape != (height, width):
        raise RecordError(f"{height} x {width} pixels, as the header says", got=f"{shape[0]} x {shape[1]}", where=where)
    return out, shrink, box


def _repaired(data: Data, colour: str, out: NDArray[np.uint8]) -> bool:
    """Decodes a damaged image onto `out`; False if not all of its pixels were written.

    simplejpeg reports no error that follows a warning (a second frame header, a broken table before the last scan) with
    `strict=False`: what it did not decode is then what was in the buffer. Two fillings of the buffer show it.
    """
    simplejpeg = need("simplejpeg", extra="image", purpose="to decode JPEG")
    made: list[NDArray[np.uint8]] = []
    for filling in (0, 255):
        out.fill(filling)
        try:
            simplejpeg.decode_jpeg(data, colour, min_height=len(out), min_width=out.shape[1], strict=False, buffer=out)
        except (ValueError, RuntimeError) as error:
            surface(error)
            return False
        made.append(out.copy())
    return np.array_equal(made[0], made[1])


def _set_height(data: Any, info: ImageInfo, rows: int) -> None:
    data[info.frame + 1 : info.frame + 3] = rows.to_bytes(2, "big")


def damaged(error: Exception, where: str, strict: bool) -> RecordError:
    """Creates the error for a JPEG that libjpeg reports as damaged."""
    other = ", or pass strict=False to use what can be decoded" if strict else ""
    return RecordError(
        "an intact JPEG",
        got=str(error),
        where=where,
        fix=f"fetch the file again{',' if strict else ' or'} leave it out{other}",
    )


def _buffer(shape: tuple[int, ...], reused: bool) -> NDArray[np.uint8]:
    needed = math.prod(shape)
    if not reused or needed > SCRATCH_BYTES:
        return np.empty(shape, np.uint8)
    held: NDArray[np.uint8] | None = getattr(_local, "pixels", None)
    if held is None or len(held) < needed:
        held = _local.pixels = np.empty(min(SCRATCH_BYTES, max(2 * needed, 1 << 20)), np.uint8)
    return held[:needed].reshape(shape)
