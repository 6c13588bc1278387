"""Builds samples, and batches of JAX arrays, from columns or samples.

Numbers become JAX arrays. Text and other objects become Python lists, since a device cannot hold them. In a batch
`index` is named `indices`, `path` `paths` and a `text` of strings `texts`. Rows of different lengths are padded with 0
to the longest; then `x_mask`, True where `x` holds values, is added to the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.core.exact import exact_array, one_type
from penstock.outputs.arrays import is_jax_array, jax_array, stack_arrays

PLURAL = {"index": "indices", "path": "paths"}


def is_numeric(value: Any) -> bool:
    """Whether a value can be part of a JAX array."""
    if is_jax_array(value):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    if isinstance(value, list) and value:
        return all(isinstance(one, bool | int | float | np.number) for one in value)
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
    batch: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            batch.update(padded(batch_name(name, True), list(column)))
        elif column.dtype == object:
            batch[batch_name(name, False)] = list(column)
        else:
            batch[batch_name(name, True)] = jax_array(column)
    return batch


def padded(name: str, values: Sequence[Any], axis: int = 0) -> dict[str, Any]:
    """Stacks arrays that differ in length along one axis: padded with 0 to the longest, with a mask if any is shorter.

    >>> {name: array.tolist() for name, array in padded("x", [np.array([1, 2]), np.array([3])]).items()}
    {'x': [[1, 2], [3, 0]], 'x_mask': [[True, True], [True, False]]}
    """
    lengths = np.array([np.shape(value)[axis] for value in values])
    if (lengths == lengths[0]).all():
        return {name: stack_arrays(values)}
    longest = int(lengths.max())
    arrays = [np.asarray(value) for value in values]
    rows = np.stack([_longer(array, longest, axis) for array in arrays])
    return {name: jax_array(rows), f"{name}_mask": jax_array(np.arange(longest) < lengths[:, None])}


def _longer(array: NDArray[Any], length: int, axis: int) -> NDArray[Any]:
    edges = [(0, 0)] * array.ndim
    edges[axis] = (0, length - array.shape[axis])
    return np.pad(array, edges)


def sample_of_columns(columns: Columns, row: int) -> dict[str, Any]:
    """Returns one row of columns as a sample."""
    return {
        name: column[row] if not isinstance(column, Ragged) and column.dtype == object else jax_array(column[row])
        for name, column in columns.items()
    }


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Builds a batch from samples: numbers are stacked, sequences of different lengths padded, all else is a list.

    >>> collate([{"text": "a", "index": 0}, {"text": "b", "index": 1}])["texts"]
    ['a', 'b']
    """
    if not samples:
        raise UsageError("at least one sample", got="none", fix="use at least one index")
    batch: dict[str, Any] = {}
    for name, values in columns_of(samples).items():
        numeric = [is_numeric(value) for value in values]
        batch.update(_column(name, batch_name(name, all(numeric)), values, numeric))
    return batch


def _column(name: str, out: str, values: list[Any], numeric: list[bool]) -> dict[str, Any]:
    """The column `out` of the values of one key, and its mask if they are padded."""
    if all(isinstance(value, dict) for value in values):
        inner = columns_of(values, f" of {name!r}")
        made = (
            (key, _column(f"{name}.{key}", key, parts, list(map(is_numeric, parts)))) for key, parts in inner.items()
        )
        return {out: {key: value for _, part in made for key, value in part.items()}}
    if not any(numeric):
        return {out: values}
    if not all(numeric):
        odd = values[numeric.index(False)]
        raise UsageError(
            f"numbers in {name!r} of every sample", got=f"{type(odd).__name__}", fix="return one type in every sample"
        )
    arrays = [value if hasattr(value, "dtype") else exact_array(value) for value in values]
    if len({(value.dtype.kind, min(4, value.dtype.itemsize)) for value in arrays}) > 1:  # JAX has 32 of 64 bits
        one_type(name, {i: np.asarray(value) for i, value in enumerate(arrays)})
    shapes = {tuple(np.shape(value)) for value in arrays}
    if len(shapes) == 1:
        return {out: stack_arrays(arrays)}
    if {len(shape) for shape in shapes} != {1}:
        raise UsageError(
            f"samples of one shape in {name!r}",
            got=f"{sorted(shapes)[:3]}",
            fix="resize, pad or crop them in the dataset; sequences of numbers are padded",
        )
    return padded(out, arrays)


def columns_of(samples: Sequence[dict[str, Any]], where: str = "") -> dict[str, list[Any]]:
    """The values of samples by key; raises unless all have the same keys."""
    names = list(samples[0])
    for sample in samples:
        if len(sample) != len(names) or any(name not in sample for name in names):
            odd = sorted(set(map(str, names)) ^ set(map(str, sample)))
            raise UsageError(
                f"the same keys in every sample{where}: {sorted(map(str, names))}",
                got=f"one without {odd[0]!r}" if odd[0] in names else f"one with {odd[0]!r} too",
                fix="return the same keys in every sample",
            )
    return {name: [sample[name] for sample in samples] for name in names}
