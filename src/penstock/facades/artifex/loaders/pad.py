"""Pads a short batch to full size by repeating its last row in every column."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.outputs.arrays import concat_arrays, is_jax_array, jax_array


def pad_batch(batch: dict[str, Any], target_size: int, *, mask: str | None = None) -> dict[str, Any]:
    """Returns a batch of `target_size` rows. With `mask="valid"`, a column of that name is True for real rows.

    Values as long as `images` (or else as the first array) are columns; other values are left unchanged. A full batch
    is returned as a shallow copy.

    >>> pad_batch({"images": np.zeros((2, 4, 4, 3)), "texts": ["a", "b"]}, 4)["texts"]
    ['a', 'b', 'b', 'b']
    """
    rows = _rows(batch)
    missing = target_size - rows
    out = {name: _longer(value, rows, missing) if missing > 0 else value for name, value in batch.items()}
    if mask is not None:
        out[mask] = jax_array(np.arange(max(target_size, rows)) < rows)
    return out


def _rows(batch: dict[str, Any]) -> int:
    arrays = [value for value in batch.values() if getattr(value, "ndim", 0)]
    leading = batch.get("images", arrays[0] if arrays else None)
    if leading is None or not len(leading):
        raise UsageError(
            "a batch with at least one row",
            got="an empty one" if batch else "no columns",
            where="pad_batch",
            fix="drop empty batches",
        )
    return len(leading)


def _longer(value: Any, rows: int, missing: int) -> Any:
    countable = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    if not countable or isinstance(value, str | bytes | dict) or len(value) != rows:
        return value
    if isinstance(value, list | tuple):
        return type(value)([*value, *[value[-1]] * missing])
    if is_jax_array(value):
        return concat_arrays([value, value[-1:].repeat(missing, axis=0)])
    return np.concatenate([value, np.repeat(value[-1:], missing, axis=0)])
