"""Pictures and sounds as files in memory, for pages: PNG and WAV, written here, so that no extra is needed."""

from __future__ import annotations

import base64
import io
import struct
import wave
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's number for grey, grey and alpha, RGB, RGBA


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of uint8 pixels (height, width) or (height, width, 1 to 4 channels), without loss.

    >>> png(np.zeros((2, 3, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 0] = 1  # "sub": each byte minus that of the pixel before it
    flat = pixels.reshape(height, width * channels)
    lines[:, 1:] = flat
    lines[:, 1 + channels :] -= flat[:, :-channels]
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def wav(samples: NDArray[Any], rate: int) -> bytes:
    """A WAV file of float samples in [-1, 1], (samples,) or (samples, channels), as 16 bits.

    >>> wav(np.zeros(4, np.float32), 16000)[:4]
    b'RIFF'
    """
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with np.errstate(invalid="ignore"):
        pcm = np.clip(np.nan_to_num(np.asarray(samples, np.float32)) * 32767, -32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm.tobytes())
    return file.getvalue()


def data_url(data: bytes, kind: str) -> str:
    """The file inside the page: `data:image/png;base64,...`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
