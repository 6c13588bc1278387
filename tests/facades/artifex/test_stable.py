"""The generated data, bit for bit: if a digest changes, everybody's data has changed. Then raise RECIPE and say so."""

from __future__ import annotations

import numpy as np

from penstock.core.hashing import content_id
from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset
from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset
from penstock.facades.artifex.image.modality import ImageModalityConfig
from penstock.facades.artifex.image.synthetic import PATTERNS, SyntheticImageDataset
from penstock.facades.artifex.multimodal.synthetic import MultiModalDataset
from penstock.facades.artifex.text.synthetic import PATTERNS as TEXT_PATTERNS
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset

INDICES = np.array([0, 1, 5, 999])
GOLDEN = [
    "ce0a8dfc4f23b987a381c18b5601a6cd",
    "01914ec8c5c123c157bcc399c90560ea",
    "ab44502a7df7ce683d67757e66b84284",
    "b73725f0e9dd16758b66bfafb86469a9",
    "8976a52e0bda4d836b12d7fbe11a14d1",
    "69077e6e0d530364439ec7d9b7794cb8",
    "62b355d8a01fc2d7e07d17f70d4b6bea",
    "dd0761551a1c7f64e2c1fcc4b8cecdff",
    "0e220b06aa2c529f177f38e78042b0c0",
    "203f3814027f777ff02512739cf1ec91",
    "f5d9559d99eba6dead35f80faca999c8",
]


def content() -> list[str]:
    """A digest of some records of every generator."""
    small = ImageModalityConfig(height=16)
    datasets = [SyntheticImageDataset(small, 1000, pattern, rngs=42) for pattern in PATTERNS]
    datasets += [MNISTLikeDataset(small, 1000, rngs=42)]
    datasets += [SyntheticTextDataset(None, 1000, pattern, rngs=42) for pattern in TEXT_PATTERNS]
    datasets += [SyntheticAudioDataset(AudioModalityConfig(duration=0.1), 1000, rngs=42)]
    datasets += [MultiModalDataset(["image", "text", "audio"], 1000, audio_duration=0.1, rngs=42)]
    return [_digest(dataset.read(INDICES)) for dataset in datasets]


def _digest(columns) -> str:
    parts = []
    for name, column in columns.items():
        parts += [name, *(column.tolist() if column.dtype == object else [column])]
    return content_id(parts)


def test_digests():
    assert content() == GOLDEN
