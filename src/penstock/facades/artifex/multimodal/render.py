"""Renders a latent vector as an image, tokens or audio, and recovers it.

Each rendering preserves the vector up to scale, so that the agreement of two modalities can be measured:

- image: a sum of two-dimensional cosines, one per component, scaled to [0, 1];
- text: the token at position t encodes the size of component t (mod 32);
- audio: a sum of sines with integer numbers of cycles, one per component, scaled to a peak of 1.

`recover_*` projects onto the same cosines and sines, or decodes the tokens.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.facades.artifex.datasets.draw import F32, F64, cosine, sine

LATENT = 32
FIRST_WORD = 4  # ids 0 to 3 are PAD, UNK, BOS and EOS
_CHANNEL_SHIFT = 11
_ROWS = 4  # waveforms per step: few enough for the CPU cache


@lru_cache(maxsize=16)
def cosines(height: int, width: int) -> F64:
    """Returns the lowest two-dimensional cosines (components, height, width) without the constant one."""
    pairs = sorted((i + j, i, j) for i in range(min(height, LATENT)) for j in range(min(width, LATENT)) if i + j)
    y, x = (np.arange(height) + 0.5) / (2 * height), (np.arange(width) + 0.5) / (2 * width)
    return np.stack([cosine(i * y)[:, None] * cosine(j * x)[None, :] for _, i, j in pairs[:LATENT]])


def render_image(hidden: F64, shape: tuple[int, int, int]) -> F32:
    """Renders images (B, H, W, C) in [0, 1]."""
    height, width, channels = shape
    waves = cosines(height, width)
    out = np.zeros((len(hidden), height, width, channels))
    for channel in range(channels):
        turned = np.roll(hidden, channel * _CHANNEL_SHIFT, axis=1)
        for number, wave in enumerate(waves):  # added in this order: the same sum on every machine
            out[..., channel] += turned[:, number, None, None] * wave
    low = out.min(axis=(1, 2, 3), keepdims=True)
    span = out.max(axis=(1, 2, 3), keepdims=True) - low
    return np.asarray((out - low) / np.where(span > 0, span, 1), np.float32)


def recover_image(images: NDArray[np.float32]) -> F64:
    """Recovers the latent vectors of rendered images (H * W above 32), up to scale."""
    height, width, channels = images.shape[1:]
    waves = cosines(height, width)
    sizes = (waves * waves).sum(axis=(1, 2))
    found = np.zeros((len(images), LATENT))
    for channel in range(channels):
        parts = np.einsum("bhw,khw->bk", images[..., channel].astype(np.float64), waves) / sizes
        full = np.zeros_like(found)
        full[:, : parts.shape[1]] = parts
        found += np.roll(full, -channel * _CHANNEL_SHIFT, axis=1)
    return found


def render_text(hidden: F64, vocab_size: int, length: int) -> NDArray[np.int32]:
    """Renders tokens (B, length) in [4, vocab_size): no special ids."""
    parts = hidden[:, np.arange(length) % LATENT]
    share = 0.5 + 0.5 * parts / (1.0 + np.abs(parts))
    words = vocab_size - FIRST_WORD
    return (FIRST_WORD + np.minimum(np.floor(share * words), words - 1)).astype(np.int32)


def recover_text(tokens: NDArray[np.int32], vocab_size: int) -> F64:
    """Recovers the latent vectors of rendered texts (at least 32 tokens), up to the precision of the vocabulary."""
    share = (tokens[:, :LATENT].astype(np.float64) - FIRST_WORD + 0.5) / (vocab_size - FIRST_WORD)
    signed = 2.0 * share - 1.0
    return signed / (1.0 - np.abs(signed))


@lru_cache(maxsize=4)
def tones(samples: int, seconds: float) -> F64:
    """Returns sines (32, samples) from about 100 to 2000 Hz with integer numbers of cycles."""
    highest = max(1, samples // 2 - 1)
    cycles = np.rint((100.0 + 60.0 * np.arange(LATENT)) * seconds).astype(np.int64)
    if len(np.unique(cycles)) < LATENT or cycles[0] < 1 or cycles[-1] > highest:
        cycles = 1 + np.arange(LATENT) % highest
    return sine(cycles[:, None] * np.arange(samples) / samples)


def render_audio(hidden: F64, samples: int, seconds: float) -> F32:
    """Renders waveforms (B, samples) with a peak of 1."""
    waves = tones(samples, seconds)
    out = np.empty((len(hidden), samples), np.float32)
    for start in range(0, len(hidden), _ROWS):
        part = hidden[start : start + _ROWS]
        total = np.zeros((len(part), samples))
        for number, wave in enumerate(waves):
            total += part[:, number, None] * wave
        peak = np.abs(total).max(axis=1, keepdims=True)
        out[start : start + _ROWS] = total / np.where(peak > 0, peak, 1)
    return out


def recover_audio(audio: NDArray[np.float32], seconds: float) -> F64:
    """Recovers the latent vectors of rendered waveforms (more than 66 samples), up to scale."""
    return np.asarray(audio.astype(np.float64) @ tones(audio.shape[1], seconds).T)


def agreement(one: F64, other: F64) -> F64:
    """Returns the cosine similarity of the two vectors of each record, from -1 to 1.

    >>> agreement(np.array([[1.0, 0.0]]), np.array([[2.0, 0.0]])).tolist()
    [1.0]
    """
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(axis=1) / np.where(lengths > 0, lengths, 1))
