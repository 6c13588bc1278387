"""Decodes images to uint8 pixels, only as many as the crop and the target size need.

Crop and target size are known before decoding, so a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the crop still
covers the target there, and only down to the crop's lower edge; then the box is cropped, resized (antialiased) and
oriented, in that order. JPEG is decoded by simplejpeg, or by a libturbojpeg 3 of the machine if that saves time and
makes the same pixels, everything else by Pillow; all release the GIL. Scratch memory is one buffer per thread of at
most 32 MB.

Conversions: grey is repeated over R, G, B; CMYK is converted by Pillow's formula; palettes are resolved; alpha is
dropped for "RGB" and "L" (as Pillow's `convert` does) and kept for "RGBA"; 12-bit and 16-bit grey is scaled to 8 bits;
of animations the first frame is used. Signed, 32-bit and float pixels, CIELAB, 12-bit and lossless JPEG, truncated and
damaged files raise `RecordError`, and so does a PNG with a chunk that does not match its checksum. Pixels that arrive
decoded (uint8 arrays) are cropped and resized like a file.

`method="pillow"` is exactly `exif_transpose(image).convert(mode).crop(box).resize(size, BILINEAR)` of Pillow: JPEG is
then decoded at its full scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image import jpeg_header, png
from penstock.codecs.image.arrays import CHANNELS, convert, probe_array
from penstock.codecs.image.geometry import Box, orient, stored_box
from penstock.codecs.image.info import Data, ImageInfo
from penstock.codecs.image.jpeg import OddSampling, decode_jpeg
from penstock.codecs.image.pillow import decode_pillow
from penstock.codecs.image.probe import probe
from penstock.codecs.image.resize import resize
from penstock.core.errors import UsageError
from penstock.core.limits import LIMITS, Limits

Picture = Data | NDArray[np.uint8]
"""An encoded file, or pixels (H, W, C)."""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Decoding options of all images of a step, checked once.

    `own`: the caller owns the bytes, so that a JPEG's header may be changed during a call.
    """

    mode: str = "RGB"
    exif: str = "apply"
    method: str = "antialias"
    strict: bool = True
    check: str = "crop"
    limits: Limits = LIMITS
    own: bool = False

    def __post_init__(self) -> None:
        if self.mode not in CHANNELS:
            raise UsageError(f"mode one of {', '.join(CHANNELS)}", got=repr(self.mode))
        if self.exif not in ("apply", "ignore"):
            raise UsageError('exif="apply" or "ignore"', got=repr(self.exif))
        if self.check not in ("crop", "whole"):
            raise UsageError('check="crop" or "whole"', got=repr(self.check))


def probe_picture(data: Picture, where: str = "", limits: Limits = LIMITS) -> ImageInfo:
    """The header of an encoded image, or the size of a decoded one."""
    return probe_array(data, where, limits) if isinstance(data, np.ndarray) else probe(data, where=where, limits=limits)


def decode(
    data: Picture,
    *,
    crop: Box | None = None,
    size: tuple[int, int] | None = None,
    mode: str = "RGB",
    exif: str = "apply",
    method: str = "antialias",
    strict: bool = True,
    check: str = "crop",
    where: str = "",
    limits: Limits = LIMITS,
    info: ImageInfo | None = None,
) -> NDArray[np.uint8]:
    """Decodes an image to pixels (H, W, C): only `crop` (y, x, height, width), resized to `size` (height, width).

    `crop` is in full-resolution pixels of the image as displayed: after EXIF orientation with `exif="apply"` (the
    default), as stored with `exif="ignore"` (Pillow always orients a TIFF). `strict=False` also accepts JPEGs in which
    libjpeg repaired damage. `check="whole"` decodes a JPEG to its end even if the crop ends before, to detect more
    damage. `info` is the result of `probe`, if known.

    >>> import io, PIL.Image
    >>> file = io.BytesIO(); PIL.Image.new("RGB", (40, 30), (10, 200, 30)).save(file, "PNG")
    >>> decode(file.getvalue(), crop=(0, 0, 20, 20), size=(8, 8))[0, 0].tolist()
    [10, 200, 30]
    """
    how = ImageOptions(mode, exif, method, strict, check, limits)
    return np.ascontiguousarray(_decode(data, how, crop, size, where, info, None))


def decode_onto(
    out: NDArray[np.uint8],
    data: Picture,
    how: ImageOptions,
    crop: Box | None = None,
    where: str = "",
    info: ImageInfo | None = None,
) -> None:
    """Like `decode` with the size of `out` (H, W, C); writes there without another copy if no rotation is needed."""
    made = _decode(data, how, crop, out.shape[:2], where, info, out)
    if made is not out:
        out[...] = made


def _decode(
    data: Picture,
    how: ImageOptions,
    crop: Box | None,
    size: tuple[int, ...] | None,
    where: str,
    info: ImageInfo | None,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """Returns the pixels: in `out` if no rotation is needed, else in a new array or (size and crop None) as decoded."""
    if info is None:
        info = probe_picture(data, where, how.limits)
    if info.junk:
        data = jpeg_header.without_junk(data)  # type: ignore[arg-type]  # a JPEG is bytes
        info = probe(data, where=where, limits=how.limits)
    turn = info.orientation if how.exif == "apply" else 1
    box = _stored_crop(info, crop, turn, where)
    stored = (size[1], size[0]) if size is not None and turn >= 5 else size
    pixels, shrink, box = _load(data, how, info, box, stored, where)
    y, x, h, w = box
    rest = None
    if shrink == 0:
        pass  # exactly the box
    elif shrink == 1:
        pixels = pixels[y : y + h, x : x + w]
    elif any(side % shrink for side in box):
        rest = (y / shrink, x / shrink, h / shrink, w / shrink)
    else:
        pixels = pixels[y // shrink : (y + h) // shrink, x // shrink : (x + w) // shrink]
    if size is None or stored is None:
        return orient(pixels.copy() if crop is not None and shrink else pixels, turn)
    if how.method == "pillow":  # in Pillow's order
        return resize(orient(pixels, turn), size, method=how.method, out=out)
    return orient(resize(pixels, stored, method=how.method, out=out if turn == 1 else None, box=rest), turn)


def _load(
    data: Picture, how: ImageOptions, info: ImageInfo, box: Box, size: tuple[int, ...] | None, where: str
) -> tuple[NDArray[np.uint8], int, Box]:
    """Pixels, the factor by which they are smaller (0 if they are exactly the box), and where the box is in them."""
    if isinstance(data, np.ndarray):
        y, x, h, w = box
        return convert(data[y : y + h, x : x + w], how.mode), 0, box
    if info.format == "JPEG" and info.channels != 4:
        exact = how.method == "pillow"
        grey = exact and how.mode == "L" and info.channels == 3  # Pillow makes grey of RGB, not of the stored luma
        try:
            pixels, shrink, box = decode_jpeg(
                data, info, box, size, mode="RGB" if grey else how.mode, strict=how.strict, check=how.check,
                where=where, own=how.own, full=exact,
            )  # fmt: skip
            return (convert(pixels, "L") if grey else pixels), shrink, box
        except OddSampling:
            pass
    elif info.format == "PNG" and how.strict:
        png.check(data, where)
    return decode_pillow(data, how.mode, box, info, where, how.limits), 0, box


def _stored_crop(info: ImageInfo, crop: Box | None, turn: int, where: str) -> Box:
    if crop is None:
        return 0, 0, info.height, info.width
    y, x, h, w = crop
    tall, wide = (info.width, info.height) if turn >= 5 else (info.height, info.width)
    if y < 0 or x < 0 or h < 1 or w < 1 or y + h > tall or x + w > wide:
        raise UsageError(f"a crop inside {tall} x {wide}", got=f"(y={y}, x={x}, height={h}, width={w})", where=where)
    box = (int(y), int(x), int(h), int(w))
    return box if turn == 1 else stored_box(box, turn, info.height, info.width)
