"""The generated data, bit for bit: if a digest changes, everybody's data has changed. Then raise RECIPE and say so."""

from __future__ import annotations

import numpy as np

from penstock._hash import content_id
from penstock.audio.config import AudioModalityConfig
from penstock.audio.synthetic import SyntheticAudioDataset
from penstock.image.mnist_like import MNISTLikeDataset
from penstock.image.modality import ImageModalityConfig
from penstock.image.synthetic import PATTERNS, SyntheticImageDataset
from penstock.multimodal.synthetic import MultiModalDataset
from penstock.text.synthetic import PATTERNS as TEXT_PATTERNS
from penstock.text.synthetic import SyntheticTextDataset

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
