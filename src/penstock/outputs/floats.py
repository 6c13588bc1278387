"""The dtypes that a user asks for: `ids="int32"` and `floats="bfloat16"` of the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.optional import need

NAMES = ("float16", "bfloat16", "float32", "float64")


def ids_dtype(ids: Any) -> np.dtype[Any]:
    """The dtype of token ids.

    >>> ids_dtype("int32")
    dtype('int32')
    """
    try:
        made: np.dtype[Any] = np.dtype(ids)
    except (TypeError, ValueError) as error:
        raise UsageError("a dtype of NumPy in ids=", got=f"{ids!r}: {error}", fix='ids="int32"') from error
    return made


def floats_name(floats: Any) -> str | None:
    """The name of a floating-point dtype of NumPy, torch or JAX; None: columns stay as they are.

    >>> floats_name(np.float16), floats_name("bfloat16"), floats_name(None)
    ('float16', 'bfloat16', None)
    """
    if floats is None:
        return None
    name = str(getattr(floats, "__name__", None) or getattr(floats, "name", None) or floats).removeprefix("torch.")
    if name not in NAMES:
        raise UsageError("a floating-point dtype in floats=", got=repr(floats), fix=f"one of {', '.join(NAMES)}")
    return name


def numpy_floats(floats: Any) -> np.dtype[Any] | None:
    """The NumPy dtype; `bfloat16` is that of ml_dtypes, which JAX brings."""
    name = floats_name(floats)
    kind: Any = name
    if name == "bfloat16":
        kind = need("ml_dtypes", extra="jax", purpose="for bfloat16 in NumPy").bfloat16
    return None if name is None else np.dtype(kind)


def cast_floats(column: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Floating-point numbers as `dtype`, rounded to the nearest; numbers beyond its range are refused, not infinite."""
    if column.dtype.kind != "f" or column.dtype == dtype:
        return column
    with np.errstate(over="ignore"):
        made = column.astype(dtype)
    if dtype.itemsize < column.dtype.itemsize and bool(np.isinf(made).any()) and not bool(np.isinf(column).all()):
        check_range(name, str(dtype), bool((np.isinf(made) & ~np.isinf(column)).any()))
    return made


def check_range(name: str, dtype: str, lost: bool) -> None:
    """Refuses a column that holds finite numbers beyond the range of `dtype`."""
    if lost:
        raise UsageError(
            f"numbers within the range of {dtype}",
            got=f"larger ones in column {name!r}",
            fix="scale the column, or keep it as NumPy"
            if dtype == "float32"
            else 'floats="bfloat16", which has the range of float32, or scale the column',
        )
