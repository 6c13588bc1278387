"""From columns and samples to what users see: samples, and batches of JAX arrays.

Numbers become JAX arrays. Text and other objects become Python lists, since no device can hold them. In a batch
`index` is called `indices`, `path` `paths` and the strings of `text` `texts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import UsageError
from penstock.outputs.arrays import is_jax_array, jax_array, stack_arrays

PLURAL = {"index": "indices", "path": "paths"}


def is_numeric(value: Any) -> bool:
    """Whether a value can be part of a JAX array."""
    if is_jax_array(value):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, bool | int | float)


def batch_name(name: str, numeric: bool) -> str:
    """What a sample's key is called in a batch.

    >>> batch_name("index", True), batch_name("text", False), batch_name("text", True)
    ('indices', 'texts', 'text')
    """
    if name == "text" and not numeric:
        return "texts"
    return PLURAL.get(name, name)


def batch_of_columns(columns: Columns) -> dict[str, Any]:
    """A batch from columns: one transfer per column.

    >>> sorted(batch_of_columns({"index": np.arange(2), "x": np.zeros((2, 3))}))
    ['indices', 'x']
    """
    return {batch_name(name, _holds_numbers(column)): whole(name, column) for name, column in columns.items()}


def _holds_numbers(column: Column) -> bool:
    return not isinstance(column, Ragged) and column.dtype != object


def whole(name: str, column: Column) -> Any:
    """One column as a JAX array, or as a list when it holds objects."""
    if isinstance(column, Ragged):
        raise UsageError(
            f"rows of one shape in {name!r}",
            got=f"lengths from {column.lengths.min(initial=0)} to {column.lengths.max(initial=0)}",
            fix="pad them in the dataset, or use penstock.Pipeline(dataset).pad(...)",
        )
    return list(column) if column.dtype == object else jax_array(column)


def sample_of_columns(columns: Columns, row: int) -> dict[str, Any]:
    """One row as a sample."""
    return {
        name: column[row] if not isinstance(column, Ragged) and column.dtype == object else jax_array(column[row])
        for name, column in columns.items()
    }


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch from samples: numbers are stacked, everything else is listed.

    >>> collate([{"text": "a", "index": 0}, {"text": "b", "index": 1}])["texts"]
    ['a', 'b']
    """
    if not samples:
        raise UsageError("at least one sample", got="none", fix="ask for at least one record")
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        try:
            values = [sample[name] for sample in samples]
        except KeyError as error:
            raise UsageError(
                f"the same keys in every sample: {sorted(samples[0])}",
                got=f"one without {name!r}",
                fix="give every sample the same keys",
            ) from error
        numeric = is_numeric(first)
        shapes = {tuple(np.shape(value)) for value in values} if numeric else set()
        if len(shapes) > 1:
            raise UsageError(
                f"samples of one shape in {name!r}",
                got=f"{sorted(shapes)[:3]}",
                fix="resize, pad or cut them in the dataset",
            )
        batch[batch_name(name, numeric)] = stack_arrays(values) if numeric else values
    return batch
