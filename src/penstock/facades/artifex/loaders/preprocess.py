"""Compiled preprocessing of image batches. Compiled once for each shape; keys other than `images` pass untouched."""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.core.errors import UsageError
from penstock.outputs.arrays import jax_module

EPSILON = 1e-8


def images_of(batch: dict[str, Any], where: str) -> Any:
    """The images of a batch, or what to do about there being none."""
    if "images" not in batch:
        raise UsageError("a batch with 'images'", got=f"{sorted(batch)}", where=where, fix="use an image dataset")
    return batch["images"]


@cache
def _compiled(name: str) -> Any:
    jax = jax_module()
    jnp = jax.numpy

    def unit(images: Any) -> Any:
        low = images.min()
        return (images - low) / (images.max() - low + EPSILON)

    def standard(images: Any) -> Any:
        images = unit(images)
        axes = tuple(range(1, images.ndim))
        mean = jnp.mean(images, axis=axes, keepdims=True)
        return (images - mean) / (jnp.std(images, axis=axes, keepdims=True) + EPSILON)

    return jax.jit({"unit": unit, "standard": standard, "each": jax.vmap(unit)}[name])


def preprocess_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` scaled to [0, 1] over the batch, then each image to mean 0 and deviation 1. A new dict.

    >>> import numpy as np
    >>> made = preprocess_batch({"images": np.random.default_rng(0).random((4, 8, 8, 3)), "texts": ["a"] * 4})
    >>> round(float(made["images"][0].std()), 3), made["texts"]
    (1.0, ['a', 'a', 'a', 'a'])
    """
    return {**batch, "images": _compiled("standard")(images_of(batch, "preprocess_batch"))}


def normalize_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` scaled to [0, 1] over the whole batch. A new dict."""
    return {**batch, "images": _compiled("unit")(images_of(batch, "normalize_batch"))}


def vectorized_preprocessing(images: Any) -> Any:
    """Each image of (N, H, W, C) scaled to [0, 1] by itself.

    >>> import numpy as np
    >>> float(vectorized_preprocessing(np.arange(24.0).reshape(2, 2, 2, 3))[1].min())
    0.0
    """
    return _compiled("each")(images)


def convert_to_float16(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` in half the memory, to three digits. A new dict.

    >>> import numpy as np
    >>> convert_to_float16({"images": np.zeros((1, 2, 2, 3), np.float32)})["images"].dtype
    dtype('float16')
    """
    return {**batch, "images": images_of(batch, "convert_to_float16").astype("float16")}
