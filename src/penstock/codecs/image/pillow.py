"""Decodes with Pillow: every format except RGB and grey JPEG. Whatever Pillow raises becomes a `RecordError`.

Decoders of a dozen formats raise a dozen types on hostile bytes (struct.error, IndexError, SyntaxError, ValueError,
MemoryError, OSError), some while opening, some on attributes, some while loading. All calls of Pillow are here, inside
a `try`. The bytes are in memory, so none of them is an error of the storage. Images are closed before an error
leaves: its traceback would otherwise keep their pixels.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import Box
from penstock.codecs.image.info import Data, ImageInfo, not_an_image, too_large
from penstock.core.errors import RecordError
from penstock.core.limits import Limits
from penstock.core.optional import need
from penstock.core.signals import surface, undisturbed_by_handlers

FORMATS = ("PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats that Pillow may open besides JPEG; none that runs other programs or fetches files (EPS, ...)."""

_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT, _TILE_WIDTH, _TILE_HEIGHT = 258, 262, 339, 322, 323  # TIFF tags
_VIA = {"P": "RGBA", "PA": "RGBA", "RGBa": "RGBA", "La": "LA"}
_CONVERTIBLE = frozenset(["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"])


@undisturbed_by_handlers
def probe_pillow(data: Data, where: str, limits: Limits) -> ImageInfo:
    """The header of an image in one of the formats of Pillow."""
    if bytes(data[:4]) == b"GIF8" and len(data) >= 10:
        width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        if width * height > limits.pixels:
            raise too_large(f"GIF of {height} x {width}", where, limits)
    image = _open(data, where, limits, FORMATS)
    try:
        facts = _facts(image)
        bits = 8 if not facts.top else 16 if facts.top > 255 else 32
        channels = len(image.getbands())
        return ImageInfo(
            facts.format, image.height, image.width, channels, bits, _animated(image), _orientation(image, facts.format)
        )
    except Exception as error:
        surface(error)
        raise _damaged(str(image.format), error, where) from None
    finally:
        image.close()


@undisturbed_by_handlers
def decode_pillow(data: Data, mode: str, box: Box, info: ImageInfo, where: str, limits: Limits) -> NDArray[np.uint8]:
    """Pixels (h, w, channels of `mode`) of the box (y, x, h, w) of an image."""
    image = _open(data, where, limits, ("JPEG",) if bytes(data[:2]) == b"\xff\xd8" else FORMATS)
    try:
        facts = _facts(image)
        if facts.tile > limits.pixels:  # it would be allocated before it is read
            raise too_large(f"{facts.format} with tiles of {facts.tile:,} pixels", where, limits)
        if facts.unknown:
            raise RecordError(
                "unsigned pixels of 8 or 16 bits in a known colour space", got=facts.unknown, where=where,
                fix="convert the file to 8 bits, RGB or grey: which values are black and white is not known here",
            )  # fmt: skip
        image.load()
        if image.size != (info.width, info.height):
            got = f"{image.height} x {image.width}"
            raise RecordError(f"{info.height} x {info.width} pixels, as the header says", got=got, where=where)
        return _pixels(image, facts, mode, box)
    except RecordError:
        raise
    except Exception as error:
        surface(error)
        raise _damaged(str(image.format), error, where) from None
    finally:
        image.close()


@undisturbed_by_handlers
def stored_values(data: Data, box: Box, info: ImageInfo, where: str, limits: Limits) -> NDArray[Any]:
    """The numbers stored for the pixels of a box: palette indices, or grey as stored; (h, w), or (h, w, channels)."""
    image = _open(data, where, limits, ("JPEG",) if bytes(data[:2]) == b"\xff\xd8" else FORMATS)
    try:
        image.load()
        y, x, h, w = box
        values: NDArray[Any] = np.asarray(image.crop((x, y, x + w, y + h)))
    except Exception as error:
        surface(error)
        raise _damaged(str(image.format), error, where) from None
    finally:
        image.close()
    if info.format == "PNG" and info.channels == 1 and info.bits in (2, 4):  # Pillow scales these to 255
        values = values // (255 // ((1 << info.bits) - 1))
    return values


def _open(data: Data, where: str, limits: Limits, formats: tuple[str, ...]) -> Any:
    """Opens an image of a safe format lazily and checks its size. Pixels are not read yet."""
    image_module = need("PIL.Image", extra="image", purpose="to read images other than JPEG")
    try:
        image = image_module.open(io.BytesIO(data), formats=formats)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise too_large(f"{str(error).split(',')[0].lower()}", where, limits) from None
    except Exception as error:
        surface(error)
        unknown = isinstance(error, need("PIL", extra="image").UnidentifiedImageError)
        raise not_an_image(data, where, "" if unknown else f"{type(error).__name__}: {error}") from None
    if image.width * image.height > limits.pixels:
        raise too_large(f"{image.format} of {image.height} x {image.width}", where, limits)
    return image


def _damaged(kind: str, error: Exception, where: str) -> RecordError:
    got = f"{type(error).__name__}: {error}"
    seen: BaseException | None = error
    while seen is not None:  # the frames of decoders hold their buffers
        seen = seen.with_traceback(None).__context__
    return RecordError(f"an intact {kind}", got=got, where=where, fix="fetch the file again or leave it out")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What Pillow's mode alone does not say about pixels."""

    format: str
    top: int = 0
    """One channel of more than 8 bits: the value of white; 1 if it is not known."""
    inverted: bool = False
    """Zero is white; Pillow inverts pixels of 8 bits itself, not those of 16."""
    unknown: str = ""
    """What the pixels are, if black and white or the colour space are not known."""
    tile: int = 0


def _facts(image: Any) -> _Facts:
    kind, mode = str(image.format), str(image.mode)
    tags = image.tag_v2 if kind == "TIFF" else {}
    bits, sample = _first(tags.get(_BITS, 16)), _first(tags.get(_SAMPLE_FORMAT, 1))
    tile = _first(tags.get(_TILE_WIDTH, 0)) * _first(tags.get(_TILE_HEIGHT, 0))
    if mode.startswith("I;16"):
        return _Facts(kind, (1 << bits) - 1, tags.get(_PHOTOMETRIC) == 0, "", tile)
    if (kind, mode) == ("PPM", "I"):  # Pillow scales these to 16 bits
        return _Facts(kind, 65535)
    if mode == "F":
        return _Facts(kind, 1, False, f"a {kind} of floating-point pixels", tile)
    if mode == "I":
        return _Facts(kind, 1, False, f"a {kind} of {'signed ' * (sample == 2)}{bits}-bit integer pixels", tile)
    if sample == 2:  # Pillow reads these as unsigned
        return _Facts(kind, 0, False, f"a {kind} of signed {bits}-bit integer pixels", tile)
    return _Facts(kind, 0, False, "" if mode in _CONVERTIBLE else f"a {kind} in Pillow mode {mode!r}", tile)


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple) else value)


def _orientation(image: Any, kind: str) -> int:
    if kind == "TIFF":  # Pillow applies it while loading, and reports the final size
        return 1
    try:
        found = image.getexif().get(0x0112, 1)
    except Exception as error:  # damaged EXIF: the image is still usable
        surface(error)
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _animated(image: Any) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception as error:  # a later frame is damaged; only the first is used
        surface(error)
        return True


def _pixels(image: Any, facts: _Facts, mode: str, box: Box) -> NDArray[np.uint8]:
    y, x, h, w = box
    info = image.info
    if (h, w) != (image.height, image.width):
        image = image.crop((x, y, x + w, y + h))
    if facts.top:
        return _from_16_bits(np.asarray(image), facts, mode, info.get("transparency", -1))
    if image.mode in _VIA and image.mode != mode:
        image = image.convert(_VIA[image.mode])
    if image.mode != mode:
        image = image.convert(mode)
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _from_16_bits(values: NDArray[Any], facts: _Facts, mode: str, transparent: Any) -> NDArray[np.uint8]:
    """8-bit pixels of one channel whose values go from 0 to `facts.top`."""
    top = facts.top
    grey: NDArray[np.uint8] = ((np.minimum(values, top).astype(np.uint32) * 255 + top // 2) // top).astype(np.uint8)
    if facts.inverted:
        grey = np.invert(grey)
    if mode == "L":
        return grey[..., None]
    out = np.empty((*grey.shape, len(mode)), np.uint8)
    out[..., :3] = grey[..., None]
    if mode == "RGBA":
        out[..., 3] = np.where(values == transparent, 0, 255)
    return out
