"""From a dataset to training batches: shuffle, scale, augment.

The augmentation of a row is a function of (seed, epoch, record), not of the batch size or the position in the batch. It
runs as one compiled program per batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.facades.artifex.augment import augment_columns
from penstock.facades.artifex.loaders.epochs import Batch, DatasetLoader
from penstock.facades.artifex.loaders.preprocess import normalize_batch
from penstock.facades.artifex.text.config import TextParams
from penstock.outputs.arrays import record_keys


@explained_call
def create_training_pipeline(
    dataset: Any,
    batch_size: int,
    augment: bool = True,
    normalize: bool = True,
    shuffle: bool = True,
    *,
    drop_last: bool = True,
    seed: int = 0,
) -> DatasetLoader:
    """Batches for training; each `for` is one epoch. Incomplete last batches are dropped unless asked for.

    `normalize` scales `images` to [0, 1] over the batch. `augment` augments `images`, `audio` and `text_tokens`,
    whichever the batch has.

    >>> from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
    >>> from penstock.facades.artifex.image.modality import ImageModalityConfig
    >>> dataset = SyntheticImageDataset(ImageModalityConfig(height=8), dataset_size=10)
    >>> [batch["images"].shape for batch in create_training_pipeline(dataset, 4)]
    [(4, 8, 8, 3), (4, 8, 8, 3)]
    """
    finish = partial(_finish, augment=augment, normalize=normalize, config=getattr(dataset, "config", None))
    return DatasetLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        finish=finish,
        recipe=f"training augment={bool(augment)} normalize={bool(normalize)} seed={seed}",
    )


def _finish(batch: Batch, keys: U64, *, augment: bool, normalize: bool, config: Any) -> Batch:
    if normalize and "images" in batch:
        batch = normalize_batch(batch)
    if not augment:
        return batch
    augmented = augment_columns(batch, record_keys(keys), TextParams.of(config) if "text_tokens" in batch else None)
    if not augmented:
        raise UsageError(
            "images, audio or text_tokens to augment",
            got=f"{sorted(batch)}",
            fix="create_training_pipeline(augment=False)",
        )
    return batch | augmented
