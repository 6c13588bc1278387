"""Preprocessing of batches: images scaled by compiled programs (one per shape), and short batches padded to full size.

Keys that are not named pass unchanged; each function returns a new dict.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.outputs.arrays import concat_arrays, is_jax_array, jax_array, jax_module

EPSILON = 1e-8


def images_of(batch: dict[str, Any], where: str) -> Any:
    """Returns the images of a batch; raises if it has none."""
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


@explained_call
def preprocess_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` scaled to [0, 1] over the batch, then each image to mean 0 and deviation 1.

    >>> made = preprocess_batch({"images": np.random.default_rng(0).random((4, 8, 8, 3)), "texts": ["a"] * 4})
    >>> round(float(made["images"][0].std()), 3), made["texts"]
    (1.0, ['a', 'a', 'a', 'a'])
    """
    return {**batch, "images": _compiled("standard")(images_of(batch, "preprocess_batch"))}


def normalize_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` scaled to [0, 1] over the batch."""
    return {**batch, "images": _compiled("unit")(images_of(batch, "normalize_batch"))}


@explained_call
def vectorized_preprocessing(images: Any) -> Any:
    """Each image of (N, H, W, C) scaled to [0, 1] by itself.

    >>> float(vectorized_preprocessing(np.arange(24.0).reshape(2, 2, 2, 3))[1].min())
    0.0
    """
    return _compiled("each")(images)


@explained_call
def convert_to_float16(batch: dict[str, Any]) -> dict[str, Any]:
    """`images` as float16: half the memory, three digits.

    >>> convert_to_float16({"images": np.zeros((1, 2, 2, 3), np.float32)})["images"].dtype
    dtype('float16')
    """
    return {**batch, "images": images_of(batch, "convert_to_float16").astype("float16")}


@explained_call
def pad_batch(batch: dict[str, Any], target_size: int, *, mask: str | None = None) -> dict[str, Any]:
    """Returns a batch of `target_size` rows. With `mask="valid"`, a column of that name is True for real rows.

    Every array is a column and is padded, also where they differ in length, and so is a list as long as one of them;
    other values are left unchanged. A full batch is returned as a shallow copy.

    >>> pad_batch({"images": np.zeros((2, 4, 4, 3)), "texts": ["a", "b"]}, 4)["texts"]
    ['a', 'b', 'b', 'b']
    """
    counts = {name: len(value) for name, value in batch.items() if getattr(value, "ndim", 0)}
    if not counts or not min(counts.values()):
        raise UsageError(
            "a batch with at least one row",
            got="an empty one" if batch else "no columns",
            where="pad_batch",
            fix="drop empty batches",
        )
    least = min(counts.values())
    if least < target_size < max(counts.values()):
        raise UsageError(
            f"columns of at most {target_size} rows",
            got=", ".join(f"{name!r} has {count}" for name, count in counts.items()),
            where="pad_batch",
            fix="take what is not one value per row out of the batch",
        )
    lists = {name: len(value) for name, value in batch.items() if isinstance(value, list | tuple)}
    counts |= {name: count for name, count in lists.items() if count in counts.values()}
    out = {
        name: _longer(value, target_size - counts[name]) if counts.get(name, target_size) < target_size else value
        for name, value in batch.items()
    }
    if mask is not None:
        out[mask] = jax_array(np.arange(max(target_size, least)) < least)
    return out


def _longer(value: Any, missing: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([*value, *[value[-1]] * missing])
    if is_jax_array(value):
        return concat_arrays([value, value[-1:].repeat(missing, axis=0)])
    return np.concatenate([value, np.repeat(value[-1:], missing, axis=0)])
