"""Columns of Python objects, before they reach a framework: texts stay, dicts of numbers are stacked, arrays refused.

A batch has such a column where rows hold text, or values that have no common shape. Text (and whatever else is not
numbers) is kept beside the arrays. Arrays of different shapes, which would otherwise pass for a column of numbers, are
refused with the way out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged, array_of, stack
from penstock.core.errors import UsageError

NUMBERS = "biufc"
_TEXT = frozenset({str, bytes, type(None)})
_SCALARS = (bool, int, float, complex, np.number, np.bool_)
Nested = dict[str, Any]  # of arrays, or of more of the same


def holds_numbers(column: Any) -> bool:
    """Whether an array has a dtype that frameworks have: numbers, or the small floats of `ml_dtypes`."""
    dtype = column.dtype
    return dtype.kind in NUMBERS or (dtype.kind == "V" and dtype.names is None and dtype.type is not np.void)


def resolved(name: str, column: NDArray[Any], framework: str) -> NDArray[Any] | Nested:
    """The column itself where it is text or other objects, numbers as an array; for dicts of them a dict of arrays.

    >>> rows = np.array([{"a": 1, "b": [1.0, 2.0]}, {"a": 2, "b": [3.0, 4.0]}], object)
    >>> {key: array.shape for key, array in resolved("obs", rows, "JAX").items()}
    {'a': (2,), 'b': (2, 2)}
    """
    if column.dtype != object:
        return column
    values = column.ravel().tolist()
    kinds = set(map(type, values))
    if kinds <= _TEXT:
        return column
    if any(issubclass(kind, _SCALARS) for kind in kinds):
        return _numbers(name, column, values, framework)
    if kinds == {dict} and _all_numbers(values):
        return _stacked(name, values, framework)
    arrays = [value for value in values if _is_array(value)]
    if arrays or (kinds == {dict} and any(_is_array(leaf) for value in values for leaf in _leaves(value))):
        raise _unequal(name, framework, arrays)
    return column


def _numbers(name: str, column: NDArray[Any], values: list[Any], framework: str) -> NDArray[Any]:
    """Numbers that were beside other values, until these were filtered out; with such values still there, refused."""
    other = next((i for i, value in enumerate(values) if not isinstance(value, _SCALARS)), None)
    if other is not None:
        raise UsageError(
            f"a number in every row of column {name!r} for {framework}, or in none",
            got=f"{type(values[other]).__name__} in row {other}",
            fix="return a number for every record, or drop such records with .filter()",
        )
    made = stack(values, name)
    return made if not isinstance(made, Ragged) and holds_numbers(made) else column


def lengths_of(column: Ragged) -> str:
    """The shortest and the longest row, for an error."""
    return f"lengths from {column.lengths.min()} to {column.lengths.max()}" if len(column) else "no rows"


def _stacked(name: str, values: list[dict[str, Any]], framework: str) -> Nested:
    out: Nested = {}
    for key in values[0]:
        if any(value.keys() != values[0].keys() for value in values):
            raise UsageError(
                f"the same keys in every row of column {name!r} for {framework}",
                got=f"{sorted(map(str, values[0]))} and others",
                fix="return the same keys from .map()",
            )
        parts, path = [value[key] for value in values], f"{name}.{key}"
        if all(type(part) is dict for part in parts):
            out[key] = _stacked(path, parts, framework)
            continue
        made = stack(parts)
        if isinstance(made, Ragged) or not holds_numbers(made):
            raise _unequal(path, framework, [made for made in map(array_of, parts) if made.dtype != object])
        out[key] = made
    return out


def _all_numbers(values: list[dict[str, Any]]) -> bool:
    return all(_is_number(leaf) for value in values for leaf in _leaves(value))


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value.values() for leaf in _leaves(part)] if type(value) is dict else [value]


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_number, value))
    return isinstance(value, bool | int | float | complex | np.generic) or _is_array(value)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in NUMBERS


def _unequal(name: str, framework: str, arrays: list[Any]) -> UsageError:
    shapes = sorted({tuple(array.shape) for array in arrays})
    return UsageError(
        f"rows of one shape in column {name!r} for {framework}",
        got=f"shapes {', '.join(map(str, shapes[:3]))}{', ...' if len(shapes) > 3 else ''}"
        if shapes
        else "lists of unequal lengths, or arrays and text together in dicts",
        fix=".decode_images(size) for images, .pad() for sequences, ps.Boxes(max=n) for boxes, or .map(function) to"
        " bring them to one shape or to leave the column out",
    )


def flat(name: str, nested: Nested) -> dict[str, Any]:
    """The arrays of a nested dict under one name each."""
    out: dict[str, Any] = {}
    for key, value in nested.items():
        path = f"{name}{_MARK}{key}"
        out.update(flat(path, value) if isinstance(value, dict) else {path: value})
    return out


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`, for a batch.

    >>> nested({"x": 1, **flat("obs", {"a": 2, "b": {"c": 3}})})
    {'x': 1, 'obs': {'a': 2, 'b': {'c': 3}}}
    """
    out: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split(_MARK)
        place = out
        for key in path:
            place = place.setdefault(key, {})
        place[last] = array
    return out


_MARK = "\x1f"  # the ASCII unit separator: in no column's name
