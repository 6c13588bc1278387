"""A batch is a dict of columns with one value per row.

A column is a NumPy array whose first axis is rows (object dtype for str, bytes and other values without a fixed
size), or a `Ragged` for numeric rows of different lengths: one `values` array and `offsets`.
Selecting and concatenating cost one NumPy call per column, never one per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.core.exact import exact_array, one_type
from penstock.core.held_bytes import held_bytes
from penstock.core.signals import surface


@explained_class
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`.

    >>> r = Ragged.of([[1, 2, 3], [], [4]])
    >>> len(r), r.lengths.tolist(), r[0].tolist(), r.take([2, 0]).tolist()
    (3, [3, 0, 1], [1, 2, 3], [[4], [1, 2, 3]])
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.values = values
        self.offsets = offsets

    @classmethod
    def of(cls, rows: Sequence[Any], dtype: Any = None) -> Ragged:
        """Builds a Ragged from a sequence of arrays or lists, one per row."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(a) for a in arrays], out=offsets[1:])
        filled = [a for a in arrays if len(a)] or arrays
        values = np.concatenate(filled) if filled else np.empty(0, dtype or np.int64)
        return cls(values, offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each row."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.offsets.nbytes)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        n = len(self)
        if not -n <= row < n:
            raise IndexError(f"row {row} of {n}")
        row %= n
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[i] for i in range(len(self)))

    def slice(self, start: int, stop: int) -> Ragged:
        """Rows [start, stop), as views of the same values."""
        cut = self.offsets[start : stop + 1]
        return type(self)(self.values[cut[0] : cut[-1]], cut - cut[0])

    def take(self, rows: Any) -> Ragged:
        """Copies the rows with these numbers, in that order."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        shift = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return type(self)(self.values[np.arange(offsets[-1]) + shift], offsets)

    def tolist(self) -> list[list[Any]]:
        return [row.tolist() for row in self]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.values)} values, {self.dtype})"


class Uneven(Ragged):
    """Rows that happen to differ in length: nothing declares them ragged, and in another batch they may be equal."""

    __slots__ = ()


Column = NDArray[Any] | Ragged
Columns = dict[str, Column]


def strings(values: Sequence[Any]) -> NDArray[Any]:
    """An object column: one Python value (str, bytes, dict...) per row.

    >>> strings(["a", "bc"]).tolist()
    ['a', 'bc']
    """
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


class Recipe(Protocol):
    """Expands compact columns into the final ones. Hashable; equal recipes compute the same."""

    def expand(self, xp: Any, columns: Any) -> dict[str, Any]:
        """Returns the final columns as arrays of `xp`: `numpy`, or `jax.numpy` inside a jitted function."""
        ...


class Compact(dict[str, "Column"]):
    """Compact columns with the recipe that expands them into the final ones.

    An output that runs the recipe on the device transfers about a sixth of the bytes.
    """

    def __init__(self, columns: Columns, recipe: Recipe) -> None:
        super().__init__(columns)
        self.recipe = recipe


def rows_of(columns: Columns) -> int:
    """Number of rows; 0 for no columns."""
    return len(next(iter(columns.values()))) if columns else 0


def nbytes(columns: Columns) -> int:
    """Bytes held by the batch, including the contents of objects: text, bytes, arrays, and dicts and lists of them."""
    total = 0
    for column in columns.values():
        total += column.nbytes
        if isinstance(column, np.ndarray) and column.dtype == object:
            values = column.ravel().tolist()
            total += sum(map(len if {*map(type, values)} <= _SIZED else held_bytes, values))
    return total


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Rows [start, stop) of every column, as views.

    >>> cut({"x": np.arange(5)}, 1, 3)["x"].tolist()
    [1, 2]
    """
    return {k: c.slice(start, stop) if isinstance(c, Ragged) else c[start:stop] for k, c in columns.items()}


def take(columns: Columns, rows: Any) -> Columns:
    """Copies the rows with these numbers from every column, in that order."""
    return {k: c.take(rows) if isinstance(c, Ragged) else c[rows] for k, c in columns.items()}


def concat(parts: Sequence[Columns]) -> Columns:
    """Concatenates batches. All must have the same columns; ragged with plain numeric becomes ragged.

    >>> concat([{"x": np.array([1])}, {"x": np.array([2, 3])}])["x"].tolist()
    [1, 2, 3]
    """
    if len(parts) == 1:
        return parts[0]
    names = list(parts[0])
    return {name: _concat_column([part[name] for part in parts]) for name in names}


def _concat_column(columns: Sequence[Column]) -> Column:
    arrays = [c for c in columns if not isinstance(c, Ragged)]
    if len(arrays) == len(columns):
        if len({a.shape[1:] for a in arrays}) == 1:
            return np.concatenate(arrays)
        if all(a.ndim == 2 for a in arrays):
            return _concat_ragged([_as_ragged(a) for a in arrays], Uneven)
        return strings([row for a in arrays for row in a])
    found = all(isinstance(c, Uneven) for c in columns if isinstance(c, Ragged))
    return _concat_ragged([_as_ragged(c) for c in columns], Uneven if found else Ragged)


def _as_ragged(column: Column) -> Ragged:
    if isinstance(column, Ragged):
        return column
    n, width = column.shape
    return Ragged(column.reshape(-1), np.arange(n + 1, dtype=np.int64) * width)


def _concat_ragged(parts: Sequence[Ragged], kind: type[Ragged]) -> Ragged:
    lengths = np.concatenate([p.lengths for p in parts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.concatenate([p.values[p.offsets[0] : p.offsets[-1]] for p in parts])
    return kind(values, offsets)


def scatter(parts: Sequence[tuple[NDArray[np.int64], Columns]], rows: int) -> Columns:
    """Merges parts by row number: row `where[j]` of the result is row j of its part. Each of 0..rows-1 occurs once.

    >>> scatter([(np.array([1]), {"x": np.array([7])}), (np.array([0]), {"x": np.array([5])})], 2)["x"].tolist()
    [5, 7]
    """
    wide = _wide(parts)
    narrow = [{name: column for name, column in columns.items() if name not in wide} for _, columns in parts]
    out: Columns = {}
    for name, (dtype, shape) in wide.items():
        merged = np.empty((rows, *shape), dtype)
        for where, columns in parts:
            merged[where] = columns[name]
        out[name] = merged
    if narrow[0]:
        targets = np.concatenate([where for where, _ in parts])
        order = np.empty(rows, np.int64)
        order[targets] = np.arange(rows)
        out |= take(concat(narrow), order)
    return {name: out[name] for name in parts[0][1]}


_SIZED = {str, bytes}  # whose bytes are their length
_WIDE_ROW = 1024  # bytes of a row from which copying each part to its place is faster than joining and reordering them


def _wide(parts: Sequence[tuple[NDArray[np.int64], Columns]]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Dtype and row shape of the columns that are arrays of equal, wide rows in every part."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name, first in parts[0][1].items():
        if isinstance(first, Ragged) or first.dtype == object or first[:1].nbytes < _WIDE_ROW:
            continue
        kind = first.dtype, first.shape[1:]
        columns = [columns[name] for _, columns in parts]
        if all(not isinstance(c, Ragged) and (c.dtype, c.shape[1:]) == kind for c in columns):
            found[name] = kind
    return found


def row(columns: Columns, index: int) -> dict[str, Any]:
    """One row as a plain dict: scalars for one-dimensional columns, arrays for the rest.

    >>> row({"x": np.array([1, 2]), "t": strings(["a", "b"])}, 1)
    {'x': np.int64(2), 't': 'b'}
    """
    return {name: column[index] for name, column in columns.items()}


def from_rows(rows: Sequence[dict[str, Any]]) -> Columns:
    """Builds columns from rows with the same keys.

    Equal shapes are stacked, one-dimensional arrays of unequal length become ragged, everything else becomes an
    object column. Numbers of different types in one column are refused.

    >>> from_rows([{"a": 1, "b": [1, 2]}, {"a": 2, "b": [3]}])["b"].tolist()
    [[1, 2], [3]]
    """
    names = list(rows[0])
    for index, one in enumerate(rows):
        if one.keys() != rows[0].keys():
            raise UsageError(
                f"the same keys in every row: {sorted(names)}",
                got=f"{sorted(one)} in row {index}",
                fix="return the same keys for every record",
            )
    return {name: stack([one[name] for one in rows], name) for name in names}


def array_of(value: Any) -> NDArray[Any]:
    """A value as an array; a list of lists of unequal length, of which NumPy has none, as one object."""
    try:
        return exact_array(value)
    except ValueError as error:
        surface(error)
        if not isinstance(value, list | tuple):
            raise
        return np.empty((), object)


def stack(values: Sequence[Any], name: str = "") -> Column:
    """Builds one column from one value per row; see `from_rows`. `name` is the column for errors."""
    if isinstance(values[0], str | bytes | dict) or values[0] is None:
        return strings(values)
    arrays = [array_of(value) for value in values]
    if any(a.dtype.kind in "OUS" for a in arrays):
        return strings(values)
    if len({a.dtype for a in arrays}) > 1:
        one_type(name, dict(enumerate(arrays)))
    if len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    if all(a.ndim == 1 for a in arrays):
        return Uneven.of(arrays)
    return strings(arrays)
