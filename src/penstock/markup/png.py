"""Writes small PNG pictures with the standard library, so that pictures of sound need no image library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes (H, W), (H, W, 3) or (H, W, 4) pixels.

    >>> encode_png(np.zeros((2, 3, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    rows = np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[:, :, None], np.uint8)
    height, width, channels = rows.shape
    kind = {1: 0, 3: 2, 4: 6}[channels]
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line begins with filter 0
    lines[:, 1:] = rows.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = (b"IHDR" + header, b"IDAT" + zlib.compress(lines.tobytes(), 6), b"IEND")
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
