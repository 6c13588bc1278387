"""Turns rows into columns and columns into rows of numbers, and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.layout import Layout, lay_out
from penstock.collate.pad import as_row, counts_of, place, unreadable
from penstock.collate.tokens import check_aligned
from penstock.core.columns import Ragged
from penstock.core.errors import RecordError, UsageError
from penstock.core.exact import exact_array, one_type
from penstock.core.signals import surface

Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]

_NOT_ROWS = (str, bytes, Mapping, Number, type(None))
_MASK = frozenset({"attention_mask"})
_TYPED = 'pass one type, such as float(x), or name it: schema=OutputSchema({{{name!r}: "float32"}}, extra="keep")'


def columns_of(rows: Rows, optional: frozenset[str] = _MASK) -> dict[str, Any]:
    """Rows turned into one list per name, with one rule for what is missing.

    A row without a column, and one that holds None for it, are the same for `labels` and the `optional` columns.
    Optional ones may be missing in some rows, which then hold None. `labels` are in all rows or in none. Any other
    column is a key of every row, and None is a value like others.

    >>> columns_of([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    >>> columns_of([{"input_ids": [1], "labels": None}, {"input_ids": [2], "attention_mask": [1]}])
    {'input_ids': [[1], [2]], 'attention_mask': [None, [1]]}

    Rows that are bare lists or arrays of numbers are `input_ids`.

    >>> columns_of([[1, 2], [3]])
    {'input_ids': [[1, 2], [3]]}
    """
    if not isinstance(rows, Mapping) and _bare(rows):
        return {"input_ids": list(rows)}
    out = _given_columns(rows) if isinstance(rows, Mapping) else _turned(rows, optional)
    for name in ("labels", *optional):
        column: Any = out.get(name)
        if _has_none(column):
            missing = [value is None for value in column]
            if all(missing):
                del out[name]
            elif name not in optional:
                raise _missing(name, missing.index(True), "None")
    return out


def _bare(rows: Any) -> bool:
    """Whether rows are lists or one-dimensional arrays instead of mappings."""
    first = rows[0] if isinstance(rows, Sequence | np.ndarray) and len(rows) else {}
    if not isinstance(first, list | tuple) and getattr(first, "ndim", 0) != 1:
        return False
    return all(isinstance(row, list | tuple) or getattr(row, "ndim", 0) == 1 for row in rows)


def _has_none(column: Any) -> bool:
    return isinstance(column, list | tuple) and type(None) in set(map(type, column))


def _turned(rows: Sequence[Mapping[str, Any]], optional: frozenset[str]) -> dict[str, Any]:
    check_rows(rows)
    names = list(rows[0])
    if set(map(len, rows)) != {len(names)}:
        return _union(rows, optional)
    try:
        return {name: [row[name] for row in rows] for name in names}  # as many names, and all of them: the same names
    except KeyError:
        return _union(rows, optional)


def _union(rows: Sequence[Mapping[str, Any]], optional: frozenset[str]) -> dict[str, Any]:
    """Columns of rows that do not all have the same names."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out: dict[str, Any] = {}
    for name in names:
        out[name] = [row.get(name) for row in rows]
        absent = [i for i, row in enumerate(rows) if name not in row]
        # Missing labels are None here, and refused, or dropped, with those that say so.
        if absent and name not in optional and (name != "labels" or any(v is not None for v in out[name])):
            raise _missing(name, absent[0], f"columns {', '.join(map(str, rows[absent[0]])) or 'none'}")
    return out


def check_rows(rows: Any) -> None:
    """Raises for what is not a list of mappings, naming the first row that is none."""
    try:
        count = len(rows)
    except TypeError:
        raise UsageError(
            "a list of rows, or a dict of columns, to collate", got=f"a {type(rows).__name__}", fix="pass a list"
        ) from None
    if count == 0:
        raise UsageError("at least one row to collate", got="an empty list", fix="drop empty batches before collating")
    if set(map(type, rows)) == {dict}:
        return
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RecordError(
                "rows that are mappings from name to value",
                got=f"a {type(row).__name__}",
                where=f"row {i} of the batch",
                fix='pass each row as a dict, for example {"input_ids": [1, 2]}',
                row=i,
            )


def _given_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as they are, but for those that are None, if all have as many rows."""
    out: dict[str, Any] = {}
    for name, column in columns.items():
        if column is None:
            continue
        if (
            isinstance(column, str | bytes | Mapping)
            or not hasattr(column, "__len__")
            or getattr(column, "ndim", 1) == 0
        ):
            raise RecordError(
                f"the column {name!r} to hold one value per row",
                got=f"a {type(column).__name__}",
                where="row 0 of the batch",
                fix="pass columns as lists or arrays, or a list of rows",
            )
        out[name] = list(column) if isinstance(column, np.ndarray) and column.dtype == object else column
    counts = {name: len(column) for name, column in out.items()}
    if len(set(counts.values())) > 1:
        raise RecordError(
            "columns with the same number of rows",
            got=", ".join(f"{count} of {name!r}" for name, count in counts.items()),
            where=f"row {min(counts.values())} of the batch",
            fix="pass one value per row in every column",
            row=min(counts.values()),
        )
    return out


def _missing(name: str, i: int, got: str) -> RecordError:
    return RecordError(
        f"every row to have the column {name!r}, as others of the batch do",
        got=got,
        where=f"row {i} of the batch",
        fix="make all rows have the same columns",
        row=i,
    )


def stack(values: Any, name: str = "", typed: bool = False) -> Any:
    """A pass-through column: scalars and equal shapes as one array, everything else as a list.

    Numbers of different types are refused, unless a schema states the type of the column (`typed`).

    >>> stack([1, 2]), stack(["a", "b"]), stack([[1, 2], [3, 4]]).shape
    (array([1, 2]), ['a', 'b'], (2, 2))
    """
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "biufc" else values.tolist()
    if isinstance(values, Ragged):
        values = list(values)
    if all(isinstance(v, Number | np.generic) and not isinstance(v, np.str_ | np.bytes_) for v in values):
        if not typed and len(set(map(type, values))) > 1:
            one_type(name, {i: np.asarray(value) for i, value in enumerate(values)}, _TYPED)
        return exact_array(list(values))
    if any(v is None or isinstance(v, str | bytes | Mapping) for v in values):
        return list(values)
    arrays = _arrays(values, name)
    if arrays is None or any(a.dtype.kind not in "biufc" for a in arrays):
        return list(values)
    if not typed:
        check_type(name, arrays)
    return np.stack(arrays) if len({a.shape for a in arrays}) == 1 else arrays


def check_type(name: str, rows: list[NDArray[Any]] | Ragged) -> None:
    """Refuses rows of different types of numbers: which rows a batch has would decide its type."""
    if not isinstance(rows, Ragged) and len({row.dtype for row in rows}) > 1:
        one_type(name, dict(enumerate(rows)), _TYPED)


def _arrays(values: Any, name: str) -> list[NDArray[Any]] | None:
    """Values as arrays, or None where one is a nest of different lengths. Raises for tensors NumPy cannot read."""
    out = []
    for i, value in enumerate(values):
        try:
            out.append(as_row(value))
        except ValueError as error:
            surface(error)
            return None
        except (TypeError, RuntimeError) as error:
            raise unreadable(i, value, error, name) from error
    return out


def flat_rows(column: Any, name: str = "") -> list[NDArray[Any]] | Ragged | None:
    """A column as flat rows of numbers, or None where it is something else: scalars, text, images."""
    if isinstance(column, Ragged):
        return column
    if isinstance(column, np.ndarray):
        return list(column) if column.ndim == 2 and column.dtype.kind in "biuf" else None
    if any(isinstance(value, _NOT_ROWS) for value in column):
        return None
    rows = _arrays(column, name)
    if rows is None or any(row.ndim != 1 or (row.dtype.kind not in "biuf" and row.size) for row in rows):
        return None
    return rows


def token_rows(column: Any, name: str) -> list[Any] | Ragged:
    """A column as flat rows, or `RecordError` for the first row that is not one.

    Lists are left as they are for `place`, which refuses what is not an integer in them.
    """
    if isinstance(column, list):
        types = set(map(type, column))
        if types == {list} or (types == {np.ndarray} and {v.ndim for v in column} == {1}):
            return column
    rows = flat_rows(column, name)
    if rows is None:
        raise not_flat(column, name)
    return rows


def integer_rows(column: Any, name: str) -> list[NDArray[np.int64]]:
    """A column as one array of 64-bit integers per row, or `RecordError` for the first row that is none."""
    rows = token_rows(column, name)
    counts = counts_of(rows)
    return [row[:n] for row, n in zip(place(rows, lay_out(counts), 0, np.int64, name=name), counts, strict=True)]


def not_flat(column: Any, name: str, of: str = "integers") -> RecordError:
    """The error for a column that is not flat rows; names the first such row."""
    i = next((i for i, value in enumerate(column) if flat_rows([value], name) is None), 0)
    value = column[i]
    shape = getattr(value, "shape", None)
    return RecordError(
        f"{name!r} to be a flat sequence of {of} in every row",
        got=f"{'' if value is None else 'a '}{type(value).__name__}" + (f" of shape {tuple(shape)}" if shape else ""),
        where=f"row {i} of the batch",
        fix=f"pass {name!r} as one list or one-dimensional array per row",
        row=i,
    )


def square_masks(column: Any, layout: Layout) -> NDArray[Any] | None:
    """Masks with a row and a column for each token ((L, L), or (heads, L, L)), padded with 0; None for other masks.

    >>> from penstock.collate.layout import lay_out
    >>> square_masks([np.tri(2, dtype=int), np.ones((1, 1), int)], lay_out([2, 1])).tolist()
    [[[1, 0], [1, 1]], [[1, 0], [0, 0]]]
    """
    if column is None or _has_none(column) or not len(column) or isinstance(column, Ragged):
        return None
    if getattr(column[0], "ndim", 0) < 2 and not _nested(column[0]):
        return None
    rows = _arrays(column, "attention_mask") or []
    heads = rows[0].shape[:-2] if rows else ()
    for i, (row, n) in enumerate(zip(rows, layout.full, strict=True)):
        if row.dtype.kind not in "biu" or row.shape != (*heads, n, n):
            raise RecordError(
                f"'attention_mask' of 0 and 1, of shape {(*heads, n, n)} for a row of {n} tokens",
                got=f"{row.dtype} of shape {row.shape}",
                where=f"row {i} of the batch",
                fix="pass one value per token, or one per pair of tokens",
                row=i,
            )
    if not rows:
        return None
    out = np.zeros((len(rows), *heads, layout.width, layout.width), np.result_type(*{row.dtype for row in rows}))
    for i, (row, start, n) in enumerate(zip(rows, layout.starts(), layout.counts, strict=True)):
        first = 0 if layout.truncate == "right" else row.shape[-1] - n
        out[i, ..., start : start + n, start : start + n] = row[..., first : first + n, first : first + n]
    return out


def _nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


def mask_rows(column: Any, name: str, full: list[int], absent: int) -> list[Any] | Ragged | None:
    """A mask of one value per token; None for no mask at all, `absent` for every token of a row without one."""
    if column is None:
        return None
    if _has_none(column):
        column = [np.full(n, absent, np.int64) if v is None else v for v, n in zip(column, full, strict=True)]
    rows = token_rows(column, name)
    check_aligned(name, rows, full)
    return rows
