"""Python values as NumPy arrays, with the values that they have: nothing is rounded, wrapped or unmasked on the way.

NumPy makes float64 of integers beyond int64 and of integers beside floats, where numbers above 2**53 lose digits, and
drops the mask of a masked array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError

_EXACT = 2**53  # up to here a float64 holds every integer


def exact_array(value: Any) -> NDArray[Any]:
    """`np.asarray(value)`; integers that it would round are unsigned where that holds them, or refused.

    >>> exact_array([2**63 + 5, 1]).dtype, exact_array([1, 0.5]).tolist()
    (dtype('uint64'), [1.0, 0.5])
    """
    array = np.asarray(value)
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            "an array without a mask",
            got="a masked array, whose masked values are not data",
            fix="array.filled(value), or two columns: array.data and array.mask",
        )
    if array.dtype != np.float64 or not isinstance(value, list | tuple) or not bool((np.abs(array) >= _EXACT).any()):
        return array
    numbers = list(_numbers(value))
    integers = [int(one) for one in numbers if isinstance(one, int | np.integer)]
    if len(integers) == len(numbers) and min(integers) >= 0 and max(integers) < 2**64:
        return np.array(integers, np.uint64).reshape(array.shape)
    for one in integers:
        if abs(one) > _EXACT:
            raise _rounded(one, "negative integers" if len(integers) == len(numbers) else "floats")
    return array


def exact_rows(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Rows of one column, in types that can be joined without rounding an integer.

    >>> [row.dtype.name for row in exact_rows([np.array([2**63 + 5], np.uint64), np.array([1])])]
    ['uint64', 'uint64']
    """
    filled = [row for row in arrays if row.size]
    if len({row.dtype for row in filled}) < 2 or np.result_type(*{row.dtype for row in filled}) != np.float64:
        return arrays
    integers = [row for row in filled if row.dtype.kind in "iu"]
    low, high = (
        min((int(row.min()) for row in integers), default=0),
        max((int(row.max()) for row in integers), default=0),
    )
    if len(integers) == len(filled) and low >= 0:
        return [row.astype(np.uint64) for row in arrays]
    if max(-low, high) > _EXACT:
        raise _rounded(
            high if high > _EXACT else low, "negative integers" if len(integers) == len(filled) else "floats"
        )
    return arrays


def _rounded(number: int, others: str) -> UsageError:
    return UsageError(
        "integers that fit the type of their column",
        got=f"{number}, which float64 would round, in a column with {others}",
        fix="keep such numbers as text, str(n), or make the column of one type",
    )


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield from value.ravel().tolist() if value.dtype.kind in "iu" else value.ravel()
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
    else:
        yield value


_FIX = "return one type in every row, such as {cast}, so that {name!r} is the same in every batch"


class MixedTypes(UsageError):
    """Values of two types in one column; `row` is the first row that differs from those before it."""

    row: int

    def __init__(
        self, name: str, got: str, row: int, *, numbers: bool = True, after: str = "", fix: str = _FIX
    ) -> None:
        super().__init__(
            f"{'numbers' if numbers else 'values'} of one type in column {name!r}{after}",
            got=got,
            fix=fix.format(name=name, cast="float(x)" if numbers else "str(x), or -1 for None")
            + ("" if numbers else '; lists of lists of unequal lengths in a dict, {"lists": x}'),
        )
        self.row = row


def one_type(name: str, arrays: Mapping[int, NDArray[Any]], fix: str = _FIX) -> None:
    """Refuses numbers of different types in one column: its type would depend on which rows a batch has.

    Args:
        arrays: by the number of the row; those without values have no type of their own.

    >>> one_type("x", {0: np.array(1), 1: np.array(2)})
    """
    first: tuple[int, np.dtype[Any]] | None = None
    for row, array in arrays.items():
        if not array.size:
            continue
        if first is None:
            first = row, array.dtype
        elif array.dtype != first[1]:
            raise MixedTypes(name, f"{first[1]} in row {first[0]}, {array.dtype} in row {row}", row, fix=fix)
