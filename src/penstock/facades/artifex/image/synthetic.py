"""Synthetic images for testing and development: random, gradient, checkerboard, circles.

Image i is a function of (seed, split, pattern, i): bit-identical on every machine, in any process and order. Nothing
is stored; a batch of 128 images of 32 x 32 x 3 takes a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.arguments import explained_class
from penstock.core.columns import Columns
from penstock.core.randomness import U64
from penstock.facades.artifex.datasets.draw import F32, F64, cosine, normal_grid, sine, uniform_grid
from penstock.facades.artifex.datasets.generated import GeneratedDataset, checked_config, one_of
from penstock.facades.artifex.image.modality import ImageModalityConfig, ImageRepresentation

NOISE = np.float32(0.1)


@explained_class
class SyntheticImageDataset(GeneratedDataset):
    """Samples `{"images": (H, W, C)}`, batches `{"images": (B, H, W, C)}`, float32 in [0, 1].

    >>> dataset = SyntheticImageDataset(ImageModalityConfig(height=8), dataset_size=10, pattern_type="circles")
    >>> dataset.get_batch(4)["images"].shape
    (4, 8, 8, 3)
    """

    def __init__(
        self,
        config: ImageModalityConfig | None = None,
        dataset_size: int = 1000,
        pattern_type: str = "random",
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        super().__init__(checked_config(config, ImageModalityConfig, type(self).__name__), split, rngs=rngs)
        self.set_size(dataset_size)
        self.dataset_size = self._size
        self.pattern_type = one_of("pattern_type", pattern_type, PATTERNS)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        keys = self.record_keys(self.check_indices(indices), f"image {self.pattern_type}")
        images = PATTERNS[self.pattern_type](keys, self.config)
        return {"images": images if self.config.normalize else images * np.float32(255.0)}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "pattern": self.pattern_type}


def random_pixels(keys: U64, config: ImageModalityConfig) -> F32:
    """Every value uniform in [0, 1)."""
    height, width, channels = config.shape
    return uniform_grid(keys, height * width * channels).reshape(-1, height, width, channels)


def gradients(keys: U64, config: ImageModalityConfig) -> F32:
    """A ramp from 0 to 1 in a random direction; the second and third channel are a sine and a cosine of it."""
    height, width, channels = config.shape
    angle = randomness.uniform(keys, 0)
    across, down = cosine(angle)[:, None, None], sine(angle)[:, None, None]
    x, y = _ramp(width)[None, None, :], _ramp(height)[None, :, None]
    least = np.minimum(across, 0) * (width > 1) + np.minimum(down, 0) * (height > 1)
    most = np.maximum(across, 0) * (width > 1) + np.maximum(down, 0) * (height > 1)
    span = np.maximum(most - least, 1e-12)
    ramp = np.clip((across * x + down * y - least) / span, 0.0, 1.0)
    colours = [ramp, sine(ramp / 2), 0.5 + 0.5 * cosine(ramp / 2)]
    return _stack([colours[c % 3] for c in range(channels)], config)


def _ramp(side: int) -> F64:
    return np.arange(side, dtype=np.float64) / max(side - 1, 1)


def checkerboards(keys: U64, config: ImageModalityConfig) -> F32:
    """Squares of 4 to 15 pixels (fewer in small images) of 0 and 1, with a random offset."""
    height, width, channels = config.shape
    side = min(height, width)
    smallest = max(1, min(4, side // 4))
    largest = max(smallest + 1, min(16, side // 2 + 1))
    cell = smallest + randomness.integers(keys, 0, largest - smallest)
    rows = (np.arange(height)[None, :] + randomness.integers(keys, 1, 2 * cell)[:, None]) // cell[:, None]
    columns = (np.arange(width)[None, :] + randomness.integers(keys, 2, 2 * cell)[:, None]) // cell[:, None]
    board = (rows[:, :, None] + columns[:, None, :]) % 2
    return _stack([board] * channels, config)


def circles(keys: U64, config: ImageModalityConfig) -> F32:
    """A white disc on black, its centre within a quarter of the middle, with some noise."""
    height, width, channels = config.shape
    side = min(height, width)
    top = (height - 1) / 2 + randomness.uniform(keys, 0, -height / 4, height / 4)
    left = (width - 1) / 2 + randomness.uniform(keys, 1, -width / 4, width / 4)
    radius = randomness.uniform(keys, 2, max(1.0, side / 8), max(1.5, side / 3))
    dy = np.arange(height)[None, :, None] - top[:, None, None]
    dx = np.arange(width)[None, None, :] - left[:, None, None]
    disc = (dy * dy + dx * dx <= (radius * radius)[:, None, None]).astype(np.float32)
    return noisy(np.repeat(disc[..., None], channels, axis=-1), keys, config)


def noisy(images: F32, keys: U64, config: ImageModalityConfig) -> F32:
    """Adds noise with standard deviation 0.1, clipped to [0, 1]; an alpha channel stays opaque."""
    noise = normal_grid(keys ^ np.uint64(0x6E6F697365), int(np.prod(images.shape[1:])))
    out = np.clip(images + NOISE * noise.reshape(images.shape), 0.0, 1.0)
    if config.representation is ImageRepresentation.RGBA:
        out[..., -1] = 1.0
    return out


def _stack(channels: list[NDArray[Any]], config: ImageModalityConfig) -> F32:
    out = np.stack(channels, axis=-1).astype(np.float32)
    if config.representation is ImageRepresentation.RGBA:
        out[..., -1] = 1.0
    return out


PATTERNS: dict[str, Callable[[U64, ImageModalityConfig], F32]] = {
    "random": random_pixels,
    "gradient": gradients,
    "checkerboard": checkerboards,
    "circles": circles,
}
