"""Pictures and sounds of samples, small: thumbnails as JPEG, clips as WAV, waveforms and mel spectrograms as PNG.

Everything is decoded by the project's codecs under their limits and encoded again, so that a browser never gets the
bytes of a file as they are: no EXIF, no comments, no formats of its own choosing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import RecordError
from penstock.core.optional import need
from penstock.markup.png import encode_png

SIDE = 240  # pixels of a thumbnail's longer side
TEXT_BYTES = 65536  # bytes up to this many are shown as text, if they are
SECONDS = 60.0  # of a clip
WIDTH, HEIGHT = 640, 84
_BLUE = (60, 125, 217, 255)

U8 = NDArray[np.uint8]


def media_kind(value: Any) -> str | None:
    """Whether a value is encoded media: "image" or "audio", by its first bytes; pixels of an image are "image" too.

    >>> media_kind(b"\\x89PNG\\r\\n\\x1a\\n...."), media_kind(b"RIFF\\0\\0\\0\\0WAVEfmt "), media_kind(b"text")
    ('image', 'audio', None)
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3):
        return "image"
    data = encoded(value)
    if data is None:
        return None
    head = bytes(data[:16])
    if head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")):
        return "image"
    if head[8:12] == b"WEBP" and head.startswith(b"RIFF"):
        return "image"
    if head[8:12] == b"WAVE" or head.startswith((b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3")):
        return "audio"
    return None


def encoded(value: Any) -> bytes | None:
    """The encoded bytes of a value: bytes, or `{"bytes": ..., "path": ...}` as Hugging Face stores media."""
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]
    return value if isinstance(value, bytes) and len(value) >= 8 else None


def as_text(value: bytes) -> str | None:
    """Bytes as text, if they are UTF-8 and not many."""
    try:
        return value.decode() if len(value) <= TEXT_BYTES else None
    except UnicodeDecodeError:
        return None


def thumbnail(value: Any, where: str, side: int = SIDE) -> bytes:
    """A JPEG of at most `side` pixels, of encoded bytes or pixels."""
    from penstock.codecs.image.decode import decode, probe_picture

    data = value if isinstance(value, np.ndarray) else encoded(value)
    if data is None:
        raise RecordError("an image", got="other data", where=where)
    info = probe_picture(data, where)
    scale = min(1.0, side / max(info.width, info.height))
    pixels = decode(data, where=where, info=None if scale == 1.0 else info)
    height, width = pixels.shape[:2]
    if scale < 1.0:
        from penstock.codecs.image.resize import resize

        pixels = resize(pixels, (max(1, round(height * scale)), max(1, round(width * scale))))
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    encode = need("simplejpeg", extra="image", purpose="to show images").encode_jpeg
    jpeg: bytes = encode(np.ascontiguousarray(pixels), quality=88, colorspace="RGB")
    return jpeg


def sound(value: Any, where: str) -> tuple[NDArray[np.float32], int]:
    """The first minute of a recording, mixed to one channel, and its sample rate."""
    from penstock.codecs.audio.decode import decode
    from penstock.codecs.audio.probe import probe

    data = encoded(value)
    if data is None:
        raise RecordError("a recording", got="other data", where=where)
    rate = probe(data, where=where).sample_rate
    return decode(data, duration=SECONDS, where=where), rate


def clip(samples: NDArray[np.float32], rate: int) -> bytes:
    """The samples as WAV, for a player."""
    from penstock.codecs.audio import wav

    return wav.encode(samples, rate)


def waveform(samples: NDArray[np.float32]) -> bytes:
    """The range of the samples in each column of a picture, on a transparent ground."""
    picture: U8 = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    if len(samples):
        edges = np.linspace(0, len(samples), WIDTH + 1).astype(np.int64)[:-1]
        most = max(1e-9, float(np.abs(samples).max()))
        high = np.maximum.reduceat(samples, edges) / max(most, 0.05)
        low = np.minimum.reduceat(samples, edges) / max(most, 0.05)
        middle = HEIGHT / 2
        y = np.arange(HEIGHT)[:, None]
        drawn = (y >= middle - 1 - high * (middle - 2)) & (y <= middle - low * (middle - 2))
        picture[drawn] = _BLUE
    return encode_png(picture)


def mel_picture(samples: NDArray[np.float32], rate: int) -> bytes:
    """The mel spectrogram in decibels, low bands at the bottom, at most 80 dB below the loudest."""
    from penstock.codecs.audio.features import mel_spectrogram, to_db

    n_fft = 512 if rate <= 16000 else 1024
    hop = max(64, len(samples) // WIDTH)
    padded = samples if len(samples) >= n_fft else np.pad(samples, (0, n_fft - len(samples)))
    bands = 64
    db = to_db(mel_spectrogram(padded, rate, n_fft=n_fft, hop=hop, n_mels=bands))
    level = np.clip((db - db.max() + 80) / 80, 0, 1)[::-1]
    columns = np.linspace(0, level.shape[1] - 1, min(WIDTH, max(160, level.shape[1]))).astype(np.int64)
    return encode_png(_coloured(np.repeat(level[:, columns], 2, axis=0)))


def _coloured(level: NDArray[Any]) -> U8:
    """Dark violet to yellow, brighter the louder."""
    stops = np.array([(22, 15, 48), (96, 30, 110), (200, 66, 80), (250, 150, 60), (252, 240, 170)], np.float64)
    at = level * (len(stops) - 1)
    low = np.minimum(at.astype(np.int64), len(stops) - 2)
    share = (at - low)[..., None]
    return np.asarray(np.rint(stops[low] * (1 - share) + stops[low + 1] * share), np.uint8)
