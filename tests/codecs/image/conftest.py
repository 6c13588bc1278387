from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image


def make_photo(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Something like a photograph: smooth shading, a few hard edges, mild grain."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
    image = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    for _ in range(6):
        y, x = rng.integers(0, height), rng.integers(0, width)
        image[y : y + height // 4, x : x + width // 4] = rng.integers(0, 256, 3)
    image += rng.normal(0, 4, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def pack(image: Any, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def photo() -> Callable[..., Any]:
    return make_photo


@pytest.fixture
def encode() -> Callable[..., bytes]:
    return pack
