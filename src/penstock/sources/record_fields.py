"""What a record of a user's own dataset is, as named fields, and the type that each field keeps.

Dicts, named tuples and dataclasses name their fields; a string is `{"text": ...}`; the items of a plain tuple are named
by `columns`, or "0", "1", ...; one value alone is "data" ("bytes", and "image" for Pillow images).

A field's type is that of the first record, and every record is held to it, so a column has one dtype in every batch:
numbers and arrays are arrays, lists of numbers are ragged, everything else is an object.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from penstock.core.columns import Column, Ragged, strings
from penstock.core.errors import PenstockError
from penstock.core.exact import exact_array
from penstock.core.signals import surface

_NUMERIC = "biufc"


@runtime_checkable
class ArrayLike(Protocol):
    """A tensor or image that NumPy can read."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


@runtime_checkable
class ImageLike(Protocol):
    """A Pillow image."""

    @property
    def __array_interface__(self) -> Any: ...


@runtime_checkable
class NamedFields(Protocol):
    """A named tuple."""

    _fields: tuple[str, ...]


class FieldError(ValueError):
    """Why a record cannot be read: what was expected, and what came."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got


class FieldType(NamedTuple):
    """The type of a field: `shape` is "object", "list" (of numbers) or "array" of `ndim` dimensions."""

    shape: str
    dtype: str = ""
    ndim: int = 0

    @property
    def title(self) -> str:
        if self.shape == "array":
            return f"{self.dtype} of {self.ndim} dimensions" if self.ndim else f"a number ({self.dtype})"
        return f"a list of {self.dtype}" if self.shape == "list" else "an object"


def fields_of(record: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """A record as a dict of its fields.

    >>> fields_of((1, "cat"), ["image", "label"]), fields_of((1, "cat"), None), fields_of("cat", None)
    ({'image': 1, 'label': 'cat'}, {'0': 1, '1': 'cat'}, {'text': 'cat'})
    """
    if isinstance(record, str) and names is None:
        return {"text": record}
    if isinstance(record, Mapping):
        return _chosen({str(name): value for name, value in record.items()}, names)
    if isinstance(record, tuple) and isinstance(record, NamedFields):
        return _chosen(dict(zip(record._fields, record, strict=True)), names)
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return _chosen({f.name: getattr(record, f.name) for f in dataclasses.fields(record)}, names)
    if isinstance(record, tuple | list):
        items: list[Any] = list(record)
    elif isinstance(record, str | bytes | numbers.Number | ArrayLike | ImageLike):
        items = [record]
    else:
        raise FieldError("a dict, a tuple, a dataclass or a string as each record", type(record).__name__)
    if names is None:
        alone = not isinstance(record, tuple | list)
        return {_alone(record): record} if alone else {str(i): value for i, value in enumerate(items)}
    if len(items) != len(names):
        raise FieldError(f"{len(names)} items in each record: {', '.join(names)}", f"{len(items)} items")
    return dict(zip(names, items, strict=True))


def _alone(record: Any) -> str:
    """The name of a record that is one value; text is "text"."""
    if isinstance(record, bytes):
        return "bytes"
    return "image" if isinstance(record, ImageLike) and not isinstance(record, np.ndarray | ArrayLike) else "data"


def _chosen(fields: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    if names is None:
        return fields
    if missing := [name for name in names if name not in fields]:
        raise FieldError(f"a field {missing[0]!r}", ", ".join(map(repr, list(fields)[:8])) or "an empty record")
    return {name: fields[name] for name in names}


def plain(value: Any, name: str) -> Any:
    """A value with tensors and images as NumPy arrays, and NumPy numbers as arrays without dimensions."""
    if isinstance(value, np.ma.MaskedArray):
        raise FieldError(f"an array without a mask in {name!r}", "a masked array; array.filled(value) has no mask")
    if isinstance(value, str | bytes | bool | int | float | np.ndarray) or value is None:
        return value
    if isinstance(value, ArrayLike | ImageLike):
        try:
            return np.asarray(value)
        except Exception as error:
            surface(error)
            raise FieldError(
                f"an array in {name!r} that NumPy can read", f"{type(error).__name__}: {str(error)[:200]}"
            ) from error
    return value


def type_of(value: Any) -> FieldType:
    """The type that a field gets from its first value.

    >>> type_of(3), type_of([1, 2]), type_of("a").shape, type_of(np.zeros((2, 2), np.float32)).title
    (FieldType(shape='array', dtype='int64', ndim=0), FieldType(shape='list', dtype='int64', ndim=0), 'object', \
'float32 of 2 dimensions')
    """
    if isinstance(value, str | bytes | Mapping) or value is None:
        return FieldType("object")
    if isinstance(value, list | tuple):
        array = _array(value)
        flat = array is not None and array.ndim == 1 and array.dtype.kind in _NUMERIC
        return FieldType("list", str(array.dtype)) if array is not None and flat and len(value) else FieldType("object")
    array = _array(value)
    if array is None or array.dtype.kind not in _NUMERIC:
        return FieldType("object")
    return FieldType("array", str(array.dtype), array.ndim)


def held_to(value: Any, kind: FieldType, name: str) -> Any:
    """The value as its column holds it: an array of the column's dtype, or the object itself."""
    if kind.shape == "object":
        return value
    array = _array(value)
    wrong = array is None or array.dtype.kind not in _NUMERIC
    if not wrong and array is not None:
        wrong = array.ndim != (1 if kind.shape == "list" else kind.ndim)
        empty = array.size == 0  # an empty list has no dtype of its own
        wrong = wrong or not (empty or _fits(array.dtype, np.dtype(kind.dtype)))
    if wrong or array is None:
        got = type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        raise FieldError(f"{kind.title} in field {name!r}, as in the first record", got)
    return array.astype(kind.dtype, copy=False)


def _array(value: Any) -> Any:
    try:
        return exact_array(value)
    except PenstockError as error:
        raise FieldError(error.expected, error.got) from error
    except Exception as error:  # lists of unequal length
        surface(error)
        return None


def _fits(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether numbers can be converted without changing them: integers also into floats, as Python does."""
    return np.can_cast(found, wanted, "safe") or (found.kind in "iu" and wanted.kind == "f" and wanted.itemsize == 8)


def column(values: Sequence[Any], kind: FieldType) -> Column:
    """One column of values that were `held_to` a type."""
    if kind.shape == "object":
        return strings(values)
    if kind.shape == "list":
        return Ragged.of(values, kind.dtype)
    if len({value.shape for value in values}) <= 1:
        return np.stack(values) if len(values) else np.empty(0, kind.dtype)
    return Ragged.of(values, kind.dtype) if kind.ndim == 1 else strings(values)
