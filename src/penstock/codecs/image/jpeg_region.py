"""Decodes only the columns and rows of a JPEG that a crop needs, where the machine has a libturbojpeg that can.

What is left out is the inverse transform and the colours of the columns beside the crop and the rows above it; the bits
before the crop are read in any case. Random crops take 6 to 8 % less processor time, small crops of large photographs
43 % (docs/explanation/speed.md). Nothing else may differ, so

- a library is used only after it decoded probe images, made at the first use in a process, to the pixels of simplejpeg;
- only baseline JPEGs are decoded here: what is left out of a progressive one takes part in smoothing its blocks;
- the region goes down to the last row that is decoded otherwise, since damage is looked for up to there;
- where libturbojpeg says anything that simplejpeg would not, simplejpeg decodes the image again and decides.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from penstock.codecs.image import turbojpeg
from penstock.codecs.image.geometry import Box
from penstock.codecs.image.info import Data, ImageInfo
from penstock.codecs.image.jpeg_header import read_header
from penstock.codecs.image.turbojpeg import TurboJpeg
from penstock.core.optional import need

MARGIN = 4
"""Decoded pixels beside the box: colour is interpolated between neighbours, and where a region ends there is none."""
WORTH = 0.75
"""Largest share of the pixels that is decoded as a region: a larger one saves no more than it costs."""

_BASELINE = (0xC0, 0xC1)
_COLUMNS = {
    b"\x11": 8,
    b"\x11\x11\x11": 8,
    b"\x12\x11\x11": 8,
    b"\x21\x11\x11": 16,
    b"\x22\x11\x11": 16,
    b"\x41\x11\x11": 32,
}
"""Sampling factors that the probes have, and the width of the blocks that hold all colours of as many pixels."""


def region_for(data: Data, info: ImageInfo, box: Box, shrink: int, size: tuple[int, int]) -> Box | None:
    """The part (y, x, height, width) to decode of a JPEG of `size` pixels at 1/`shrink`; None if it saves little."""
    block = _COLUMNS.get(_samplings(data, info)) if data[info.frame - 3] in _BASELINE else None
    if block is None:
        return None
    region = _region(box, shrink, size, block)
    return region if region[2] * region[3] <= WORTH * size[0] * size[1] else None


def _region(box: Box, shrink: int, size: tuple[int, int], block: int) -> Box:
    y, x, _, w = box
    top, left = y // shrink, max(0, x // shrink - MARGIN) * shrink // block * block // shrink
    right = min(size[1], -(-(x + w) // shrink) + MARGIN)
    return top, left, size[0] - top, right - left


def _samplings(data: Data, info: ImageInfo) -> bytes:
    """The sampling factors in a frame header, 4 bits each."""
    return bytes(data[info.frame + 7 : info.frame + 7 + 3 * info.channels : 3])


@cache  # two threads may do it twice, which is harmless; a lock could be held in a forked process
def chosen() -> tuple[TurboJpeg | None, str]:
    """The library that decodes regions in this process, and which it is or why there is none."""
    found, text = turbojpeg.load()
    wrong = difference(found) if found is not None else ""
    return (None, f"{text}: not used, {wrong}") if wrong else (found, text)


def difference(library: TurboJpeg) -> str:
    """Compares regions of probe images with simplejpeg; the first difference, or "". Takes about 10 ms."""
    simplejpeg = need("simplejpeg", extra="image", purpose="to decode JPEG")
    for name, data in probes(simplejpeg):
        info = read_header(data, name)
        for shrink in (1, 2, 4, 8):
            size = (-(-info.height // shrink), -(-info.width // shrink))
            for colour in ("RGB", "GRAY", "RGBA") if name == "420" else ("RGB",):
                full = simplejpeg.decode_jpeg(data, colour, min_height=size[0], min_width=size[1], strict=False)
                for box in ((9, 0, 30, 40), (22, 37, 45, 33)):
                    y, x, height, width = region = _region(box, shrink, size, _COLUMNS[_samplings(data, info)])
                    out = np.zeros((height, width, full.shape[2]), np.uint8)
                    said = library.decode(data, (info.height, info.width), shrink, region, out)
                    where = f"region {region} of a {name} probe at 1/{shrink} in {colour}"
                    if said != "":
                        return f"{where}: {said}"
                    first, end = box[1] // shrink, -(-(box[1] + box[3]) // shrink)
                    if not np.array_equal(out[:, first - x : end - x], full[y:, first:end]):
                        return f"other pixels than simplejpeg's in {where}"
    return ""


def probes(simplejpeg: Any) -> list[tuple[str, bytes]]:
    """JPEGs of odd sizes in every sampling, one that is stored as RGB, and one with coefficients far out of range."""
    random = np.random.default_rng(0)
    picture = np.kron(random.integers(0, 200, (9, 14, 3), np.uint8), np.ones((8, 8, 1), np.uint8))[:67, :107]
    picture = picture + random.integers(0, 56, picture.shape, np.uint8)
    made = [
        (sampling, simplejpeg.encode_jpeg(picture, 75, "RGB", sampling))
        for sampling in ("444", "422", "420", "440", "411")
    ]
    made.append(("grey", simplejpeg.encode_jpeg(picture[..., :1].copy(), 75, "GRAY", "Gray")))
    first, third = made[0][1], made[2][1]
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64" + bytes(5)  # says that there is no colour to convert
    made.append(("RGB", first[:2] + adobe + first[2:]))
    at = third.index(b"\xff\xdb") + 5
    made.append(("overflowing", third[:at] + b"\xff" * 64 + third[at + 64 :]))
    return made
