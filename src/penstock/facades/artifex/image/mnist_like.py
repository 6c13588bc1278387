"""Synthetic digits in ten distinct classes, for testing classifiers and conditional models.

A digit of a 5 x 7 font is drawn at a random position, size and brightness, with some noise. Image and label i are a
function of (seed, split, i). Nothing is stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.generated import GeneratedDataset, checked_config, in_order, one_of
from penstock.facades.artifex.image.modality import ImageModalityConfig, ImageRepresentation
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset, noisy

_FONT = """
01110 00100 01110 11110 00010 11111 01110 11111 01110 01110
10001 01100 10001 00001 00110 10000 10000 00001 10001 10001
10011 00100 00001 00001 01010 11110 10000 00010 10001 10001
10101 00100 00110 01110 10010 00001 11110 00100 01110 01111
11001 00100 01000 00001 11111 00001 10001 00100 10001 00001
10001 00100 10000 00001 00010 10001 10001 01000 10001 00001
01110 01110 11111 11110 00010 01110 01110 01000 01110 01110
"""
CLASSES = 10


def _glyphs() -> NDArray[np.float32]:
    """Returns the digits (10, 8, 6), with an empty last row and column for pixels outside."""
    rows = [line.split() for line in _FONT.split("\n") if line]
    digits = np.array([[[int(dot) for dot in row[digit]] for row in rows] for digit in range(CLASSES)], np.float32)
    return np.pad(digits, ((0, 0), (0, 1), (0, 1)))


GLYPHS = _glyphs()


@explained_class
class MNISTLikeDataset(GeneratedDataset):
    """Samples `{"images": (H, W, C), "labels": ()}`, float32 in [0, 1] and int32 labels in [0, num_classes).

    >>> config = ImageModalityConfig(representation=ImageRepresentation.GRAYSCALE, height=28)
    >>> batch = MNISTLikeDataset(config, dataset_size=60000).get_batch(5)
    >>> batch["images"].shape, batch["labels"].shape
    ((5, 28, 28, 1), (5,))
    """

    def __init__(
        self,
        config: ImageModalityConfig | None = None,
        dataset_size: int = 1000,
        num_classes: int = CLASSES,
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        if config is None:
            config = ImageModalityConfig(representation=ImageRepresentation.GRAYSCALE, height=28)
        super().__init__(checked_config(config, ImageModalityConfig, type(self).__name__), split, rngs=rngs)
        self.set_size(dataset_size)
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or not 1 <= num_classes <= CLASSES:
            raise UsageError(f"num_classes from 1 to {CLASSES}", got=repr(num_classes), fix=f"num_classes={CLASSES}")
        if min(config.shape[:2]) < 8:
            raise UsageError("images of at least 8 x 8 for digits", got=f"{config.shape[:2]}", fix="height=28")
        self.dataset_size = self._size
        self.num_classes = num_classes

    def read(self, indices: NDArray[np.int64]) -> Columns:
        height, width, channels = self.config.shape
        keys = self.record_keys(self.check_indices(indices), "mnist_like")
        labels = randomness.integers(keys, 0, self.num_classes)
        tall = height * randomness.uniform(keys, 1, 0.75, 0.85)
        wide = width * randomness.uniform(keys, 2, 0.6, 0.7)
        top = (height - tall) / 2 + randomness.uniform(keys, 3, -0.04, 0.04) * height
        left = (width - wide) / 2 + randomness.uniform(keys, 4, -0.04, 0.04) * width
        rows = _cells(height, top, tall, 7)
        columns = _cells(width, left, wide, 5)
        digits = GLYPHS[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
        bright = randomness.uniform(keys, 5, 0.8, 1.0).astype(np.float32)
        digits = np.repeat((digits * bright[:, None, None])[..., None], channels, axis=-1)
        images = noisy(digits, keys, self.config)
        if not self.config.normalize:
            images = images * np.float32(255.0)
        return {"images": images, "labels": labels.astype(np.int32)}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "classes": self.num_classes}


def _cells(side: int, start: NDArray[np.float64], extent: NDArray[np.float64], cells: int) -> NDArray[np.int64]:
    """Returns the font cell of each pixel of a side (records, side); `cells` means outside."""
    cell = np.floor((np.arange(side)[None, :] + 0.5 - start[:, None]) / extent[:, None] * cells).astype(np.int64)
    return np.where((cell < 0) | (cell >= cells), cells, cell)


TYPES = {"synthetic": SyntheticImageDataset, "mnist_like": MNISTLikeDataset}


@explained_call
def create_image_dataset(
    dataset_type: str = "synthetic", config: ImageModalityConfig | None = None, *, rngs: Any = None, **options: Any
) -> SyntheticImageDataset | MNISTLikeDataset:
    """Creates a dataset by name: "synthetic" or "mnist_like". Further arguments go to its class.

    The first two arguments may come in either order.

    >>> len(create_image_dataset("synthetic", pattern_type="gradient", dataset_size=12))
    12
    """
    dataset_type, config = in_order(dataset_type, config)
    kind: Any = TYPES[one_of("dataset_type", dataset_type, TYPES)]
    made: SyntheticImageDataset | MNISTLikeDataset = kind(config, rngs=rngs, **options)
    return made
