"""The whole way from a dataset to training batches: shuffle, scale, augment.

Row by row the augmentation is a function of (seed, epoch, record): not of the batch size, the order or the place in
the batch. It runs compiled, over the whole batch at once.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.facades.artifex.loaders.preprocess import normalize_batch
from penstock.facades.artifex.loaders.rows import Batch, DatasetLoader
from penstock.facades.artifex.text.config import TextParams
from penstock.outputs.arrays import jax_module, record_keys


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
    known = [name for name in ("images", "audio", "text_tokens") if name in batch]
    if not known:
        raise UsageError(
            "images, audio or text_tokens to augment",
            got=f"{sorted(batch)}",
            fix="create_training_pipeline(augment=False)",
        )
    jax_keys = record_keys(keys)
    return {
        **batch,
        **{name: _augmenter(name, *_arguments(name, batch, config))(batch[name], jax_keys) for name in known},
    }


def _arguments(name: str, batch: Batch, config: Any) -> tuple[Any, ...]:
    if name == "audio":
        rate = batch.get("sample_rate", [16000])
        return (int(rate[0] if hasattr(rate, "__len__") else rate),)
    if name == "text_tokens":
        params = TextParams.of(config)
        return params.vocab_size, params.unk_token_id, params.special
    return ()


@cache
def _augmenter(name: str, *arguments: Any) -> Any:
    """One compiled program for a kind of column: rows and a key for each in, augmented rows out."""
    from penstock.facades.artifex import augment

    jax = jax_module()

    def one(row: Any, key: Any) -> Any:
        if name == "images":
            return augment.augment_image(row, key)
        if name == "audio":
            return augment.augment_audio(row, arguments[0], key)
        vocab_size, unknown, special = arguments
        return augment.augment_text_tokens(row, vocab_size, key, mask_token_id=unknown, special_ids=special)

    return jax.jit(jax.vmap(one))
