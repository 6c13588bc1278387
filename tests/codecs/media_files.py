"""Small MP4, M4A, WebM and AAC files, made with PyAV."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np

KINDS = {"m4a": ("mp4", "aac"), "aac": ("adts", "aac"), "webm": ("webm", "libopus"), "mka": ("matroska", "libopus")}


def tone(seconds: float, rate: int, channels: int = 1) -> np.ndarray:
    """(samples, channels): a rising tone, so that every place sounds different."""
    t = np.arange(round(seconds * rate)) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * (150 + 40 * t + 100 * c) * t) for c in range(channels)], 1).astype(
        np.float32
    )


def encoded_sound(samples: np.ndarray, rate: int, kind: str) -> bytes:
    """Samples (n, channels) as a file of this kind."""
    container_format, codec = KINDS[kind]
    layout = "mono" if samples.shape[1] == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout=layout)
        frame.sample_rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return file.getvalue()


def encoded_video(
    count: int, fps: int = 10, kind: str = "mp4", height: int = 48, width: int = 64, gop: int = 12
) -> bytes:
    """A video whose frame i is a grey level of 10 + 3 i on the left and its opposite on the right."""
    file = io.BytesIO()
    container_format, codec = {"mp4": ("mp4", "libx264"), "webm": ("webm", "libvpx")}[kind]
    with av.open(file, "w", format=container_format) as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size = gop
        stream.codec_context.time_base = Fraction(1, fps)
        stream.options = {"crf": "4"}
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(picture(i, height, width), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def film_with_sound(kind: str, count: int, seconds: float, fps: int = 10) -> bytes:
    """A video as of `encoded_video` with `seconds` of silence, in "mp4", "webm" or "matroska"."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        video: Any = container.add_stream("libx264" if kind == "mp4" else "libvpx", rate=fps)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.codec_context.time_base = Fraction(1, fps)
        sound: Any = container.add_stream("aac" if kind == "mp4" else "libopus", rate=48_000, layout="mono")
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(picture(i, 48, 64), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        wanted = sound.codec_context.frame_size or 960
        for at in range(0, round(seconds * 48_000), wanted):
            part = av.AudioFrame.from_ndarray(np.zeros((1, wanted), np.float32), format="fltp", layout="mono")
            part.rate, part.pts, part.time_base = 48_000, at, Fraction(1, 48_000)
            container.mux(sound.encode(part))
        container.mux(sound.encode(None))
    return file.getvalue()


def level(i: int) -> int:
    return 16 + (5 * i) % 220


def picture(i: int, height: int, width: int) -> np.ndarray:
    pixels = np.full((height, width, 3), level(i), np.uint8)
    pixels[:, width // 2 :] = 255 - level(i)
    return pixels
