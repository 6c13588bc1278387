"""Builds samples, and batches of JAX arrays, from columns or samples.

Numbers become JAX arrays. Text and other objects become Python lists, since a device cannot hold them. In a batch
`index` is named `indices`, `path` `paths` and a `text` of strings `texts`.
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
    """Returns the name of a sample's key in a batch.

    >>> batch_name("index", True), batch_name("text", False), batch_name("text", True)
    ('indices', 'texts', 'text')
    """
    if name == "text" and not numeric:
        return "texts"
    return PLURAL.get(name, name)


def batch_of_columns(columns: Columns) -> dict[str, Any]:
    """Builds a batch from columns, with one transfer per column.

    >>> sorted(batch_of_columns({"index": np.arange(2), "x": np.zeros((2, 3))}))
    ['indices', 'x']
    """
    return {batch_name(name, _holds_numbers(column)): _convert(name, column) for name, column in columns.items()}


def _holds_numbers(column: Column) -> bool:
    return not isinstance(column, Ragged) and column.dtype != object


def _convert(name: str, column: Column) -> Any:
    """Converts a column to a JAX array, or to a list if it holds objects."""
    if isinstance(column, Ragged):
        raise UsageError(
            f"rows of one shape in {name!r}",
            got=f"lengths from {column.lengths.min(initial=0)} to {column.lengths.max(initial=0)}",
            fix="pad them in the dataset, or use penstock.Pipeline(dataset).pad(...)",
        )
    return list(column) if column.dtype == object else jax_array(column)


def sample_of_columns(columns: Columns, row: int) -> dict[str, Any]:
    """Returns one row of columns as a sample."""
    return {
        name: column[row] if not isinstance(column, Ragged) and column.dtype == object else jax_array(column[row])
        for name, column in columns.items()
    }


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Builds a batch from samples: numbers are stacked, everything else becomes a list.

    >>> collate([{"text": "a", "index": 0}, {"text": "b", "index": 1}])["texts"]
    ['a', 'b']
    """
    if not samples:
        raise UsageError("at least one sample", got="none", fix="use at least one index")
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        try:
            values = [sample[name] for sample in samples]
        except KeyError as error:
            raise UsageError(
                f"the same keys in every sample: {sorted(samples[0])}",
                got=f"one without {name!r}",
                fix="return the same keys in every sample",
            ) from error
        numeric = is_numeric(first)
        shapes = {tuple(np.shape(value)) for value in values} if numeric else set()
        if len(shapes) > 1:
            raise UsageError(
                f"samples of one shape in {name!r}",
                got=f"{sorted(shapes)[:3]}",
                fix="resize, pad or crop them in the dataset",
            )
        batch[batch_name(name, numeric)] = stack_arrays(values) if numeric else values
    return batch
