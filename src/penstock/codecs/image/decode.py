"""Decodes images to uint8 pixels, only as many as the crop and the target size need.

Crop and target size are known before decoding, so a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the crop still
covers the target there, and only down to the crop's lower edge; then the box is cropped, resized (antialiased) and
oriented, in that order. JPEG is decoded by simplejpeg, everything else by Pillow; both release the GIL. Scratch memory
is one buffer per thread of at most 32 MB.

Conversions: grey is repeated over R, G, B; CMYK is converted by Pillow's formula; palettes are resolved; alpha is
dropped for "RGB" and "L" (as Pillow's `convert` does) and kept for "RGBA"; 16-bit grey is scaled to 8 bits; of
animations the first frame is used. 32-bit and float pixels, 12-bit and lossless JPEG, truncated and damaged files
raise `RecordError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import Box, orient, stored_box
from penstock.codecs.image.jpeg import CHANNELS, decode_jpeg
from penstock.codecs.image.probe import FORMATS, Data, ImageInfo, open_pillow, probe
from penstock.codecs.image.resize import resize
from penstock.core.errors import RecordError, UsageError
from penstock.core.limits import LIMITS, Limits


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


def decode(
    data: Data,
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
    data: Data,
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
    data: Data,
    how: ImageOptions,
    crop: Box | None,
    size: tuple[int, ...] | None,
    where: str,
    info: ImageInfo | None,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """Returns the pixels: in `out` if no rotation is needed, else in a new array or (size and crop None) as decoded."""
    if info is None:
        info = probe(data, where=where, limits=how.limits)
    turn = info.orientation if how.exif == "apply" else 1
    box = _stored_crop(info, crop, turn, where)
    if size is not None and turn >= 5:
        size = (size[1], size[0])
    if info.format == "JPEG" and info.channels != 4:
        pixels, shrink = decode_jpeg(
            data, info, box, size, mode=how.mode, strict=how.strict, check=how.check, where=where, own=how.own
        )
    else:
        pixels, shrink = _other(data, how.mode, where, how.limits), 1
        if pixels.shape[:2] != (info.height, info.width):
            got = f"{pixels.shape[0]} x {pixels.shape[1]}"
            raise RecordError(f"{info.height} x {info.width} pixels, as the header says", got=got, where=where)
    y, x, h, w = box
    rest = None
    if shrink == 1:
        pixels = pixels[y : y + h, x : x + w]
    elif any(side % shrink for side in box):
        rest = (y / shrink, x / shrink, h / shrink, w / shrink)
    else:
        pixels = pixels[y // shrink : (y + h) // shrink, x // shrink : (x + w) // shrink]
    if size is not None:
        pixels = resize(pixels, size, method=how.method, out=out if turn == 1 else None, box=rest)
    elif crop is not None:
        pixels = pixels.copy()
    return orient(pixels, turn)


def _stored_crop(info: ImageInfo, crop: Box | None, turn: int, where: str) -> Box:
    if crop is None:
        return 0, 0, info.height, info.width
    y, x, h, w = crop
    tall, wide = (info.width, info.height) if turn >= 5 else (info.height, info.width)
    if y < 0 or x < 0 or h < 1 or w < 1 or y + h > tall or x + w > wide:
        raise UsageError(f"a crop inside {tall} x {wide}", got=f"(y={y}, x={x}, height={h}, width={w})", where=where)
    box = (int(y), int(x), int(h), int(w))
    return box if turn == 1 else stored_box(box, turn, info.height, info.width)


def _other(data: Data, mode: str, where: str, limits: Limits) -> NDArray[np.uint8]:
    """Decodes with Pillow: every format except RGB and grey JPEG."""
    image = open_pillow(data, where, limits, ("JPEG",) if bytes(data[:2]) == b"\xff\xd8" else FORMATS)
    if image.mode in ("F", "I") or (image.mode.startswith("I;") and not image.mode.startswith("I;16")):
        raise RecordError(
            "8 or 16 bits a channel", got=f"{image.format} of Pillow mode {image.mode!r}", where=where,
            fix="scale the pixels to 8 bits first: their range is not known here",
        )  # fmt: skip
    try:
        image.load()
        if image.mode.startswith("I;16"):
            grey = ((np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
            return _spread(grey, mode)
        if image.mode != mode:
            image = image.convert("RGBA").convert(mode) if image.mode in ("P", "PA") else image.convert(mode)
        pixels: NDArray[np.uint8] = np.asarray(image)
    except Exception as error:  # decoders of a dozen formats raise a dozen types on hostile bytes
        raise RecordError(
            f"an intact {image.format}",
            got=f"{type(error).__name__}: {error}",
            where=where,
            fix="fetch the file again or leave it out",
        ) from error
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _spread(grey: NDArray[np.uint8], mode: str) -> NDArray[np.uint8]:
    if mode == "L":
        return grey[..., None]
    channels: list[Any] = [grey, grey, grey] + [np.full_like(grey, 255)] * (mode == "RGBA")
    return np.stack(channels, axis=-1)
