"""Arrow columns to Penstock columns. Zero-copy for numbers and lists of numbers; one object per row for the rest.

Types that would need code from the file to be understood (pickled extension types) are refused; other extension types
are read as the plain type they are stored in. Dates and times are `datetime` objects where those hold the value
exactly, else NumPy scalars (`datetime64`, `timedelta64`): nanoseconds, and years before 1 or after 9999.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.columns import Column, Columns, Ragged, strings
from penstock.core.errors import DataError
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.sources import arrow_views
from penstock.sources.arrow_views import no_views

VALUES = "values of column"  # begins what was expected of a value that is neither text nor number
_PICKLED = b"arrow.py_extension_type"


@dataclass(frozen=True, slots=True)
class NoText:
    """Stands for a text that is not there."""

    reason: str


def kind_of(field: Any, path: str) -> str:
    """What a column becomes: "str", "bytes", "object", a dtype name, or "ragged <dtype>" and "rows <dtype> <n>"."""
    _refuse_pickled(field, path)
    pa = need("pyarrow", extra="parquet")
    t, types = no_views(_plain(field.type)), pa.types
    if types.is_string(t) or types.is_large_string(t):
        return "str"
    if types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t):
        return "bytes"
    if _is_number(t):
        return str(np.dtype(t.to_pandas_dtype()))
    if (types.is_list(t) or types.is_large_list(t)) and _is_number(t.value_type):
        return f"ragged {np.dtype(t.value_type.to_pandas_dtype())}"
    if types.is_fixed_size_list(t) and _is_number(t.value_type):
        return f"rows {np.dtype(t.value_type.to_pandas_dtype())} {t.list_size}"
    return "object"


def _refuse_pickled(field: Any, path: str) -> None:
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if name == _PICKLED or str(getattr(field.type, "extension_name", "")).encode() == _PICKLED:
        raise DataError(
            "columns of plain types",
            got=f"column {field.name!r} has a pickled Python type",
            where=path,
            fix="write the file again with plain types; code inside data is never run",
        )
    for i in range(getattr(field.type, "num_fields", 0)):
        child = field.type.field(i) if hasattr(field.type, "field") else None
        if child is not None:
            _refuse_pickled(child, path)


def _plain(t: Any) -> Any:
    while hasattr(t, "storage_type"):
        t = t.storage_type
    return t.value_type if hasattr(t, "index_type") else t


def chosen_columns(
    schema: Any, wanted: Sequence[str] | None, kinds: dict[str, str], path: str, first_path: str
) -> list[str]:
    """The columns to read of a file, with their kinds added to `kinds` by the first file and compared by the others."""
    others = [] if wanted is not None or not kinds else [name for name in schema.names if name not in kinds]
    if others:
        listed = ", ".join(map(repr, kinds)) if len(kinds) <= 8 else "..."
        raise DataError(
            f"the columns of {first_path}: {', '.join(list(kinds)[:20])}", got=f"{others[0]!r} too", where=path,
            fix=f"name columns that every file has: columns=[{listed}]",
        )  # fmt: skip
    names = list(wanted) if wanted is not None else list(kinds) or schema.names
    for name in names:
        if schema.names.count(name) != 1:
            raise DataError(
                f"a column {name!r}" + ("" if name not in schema.names else " once"),
                got=", ".join(schema.names[:20]) or "no columns", where=path,
                fix="name columns that every file has: columns=[...]",
            )  # fmt: skip
        kind = kind_of(schema.field(name), path)
        if kinds.setdefault(name, kind) != kind:
            raise DataError(
                f"column {name!r} of type {kinds[name]}, as in {first_path}", got=kind, where=path,
                fix="convert the files to one schema",
            )  # fmt: skip
    return names


def column_type(field: Any) -> Any:
    """The plain type of a column, as `to_columns` reads it."""
    return no_views(_plain(field.type))


def _is_number(t: Any) -> bool:
    types = need("pyarrow", extra="parquet").types
    return bool(types.is_integer(t) or types.is_floating(t) or types.is_boolean(t))


def to_columns(table: Any, kinds: Mapping[str, str]) -> tuple[Columns, list[tuple[int, str, str]]]:
    """Columns of a table, and its bad rows as (row, expected, got)."""
    out: Columns = {}
    bad: list[tuple[int, str, str]] = []
    for name, kind in kinds.items():
        array = _one(table.column(name))
        if kind not in ("str", "bytes", "object") and array.null_count:
            rows = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()
            bad += [(row, f"a value in column {name!r} ({kind})", "null") for row in rows]
        elif (quick := _quick_objects(array, kind)) is not None:
            out[name] = quick
        elif kind == "str":
            values = list(texts(array))
            bad += [
                (row, f"text in column {name!r}", v.reason)
                for row, v in enumerate(values)
                if isinstance(v, NoText) and v.reason != "null"
            ]
            out[name] = strings([v if isinstance(v, str) else None for v in values])
        elif kind in ("bytes", "object"):
            found, wrong = _objects(array)
            bad += [(row, f"{VALUES} {name!r} ({array.type})", reason) for row, reason in wrong]
            out[name] = strings(found)
        else:
            column, holes = _numbers(array, kind)
            bad += [(row, f"numbers in column {name!r} ({kind})", "null among them") for row in holes]
            out[name] = column
    return out, bad


def _quick_objects(array: Any, kind: str) -> Column | None:
    """A column of str or bytes, made by Arrow; None if it is neither, or one of its texts is not UTF-8."""
    if kind not in ("str", "bytes"):
        return None
    try:
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    except Exception as error:
        surface(error)
        return None


def _one(column: Any) -> Any:
    """A column as one array of its plain type."""
    pa = need("pyarrow", extra="parquet")
    if isinstance(column, pa.ChunkedArray):
        chunks = [c.storage if hasattr(c, "storage") else c for c in column.chunks]
        plain = pa.chunked_array(chunks, type=chunks[0].type if chunks else None) if chunks else column
        column = plain.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    if hasattr(column, "storage"):
        column = column.storage
    if hasattr(column.type, "index_type"):
        column = decoded(column)
    return arrow_views.plain(column)


def return_memory() -> None:
    """Gives what Arrow freed back to the system, which its allocator delays."""
    need("pyarrow", extra="parquet").default_memory_pool().release_unused()


def decoded(array: Any) -> Any:
    """A dictionary array as the values that it stands for; those of Polars are views."""
    return arrow_views.plain(array.dictionary).take(array.indices)


def _objects(array: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    """One Python value per row, and the rows that have none as (row, reason)."""
    try:
        return _values(array), []
    except Exception as error:  # of one row: bytes that are not UTF-8, a struct with a name twice
        surface(error)
    values: list[Any] = []
    bad: list[tuple[int, str]] = []
    for row in range(len(array)):
        try:
            values += _values(array.slice(row, 1))
        except Exception as error:
            surface(error)
            values.append(None)
            bad.append((row, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))
    return values, bad


def _values(array: Any) -> list[Any]:
    """`to_pylist`, but with exact times, and the same whether pandas is installed or not."""
    types = need("pyarrow", extra="parquet").types
    t = array.type
    if not _holds_times(t):
        return array.to_pylist()  # type: ignore[no-any-return]
    if hasattr(array, "storage"):
        return _values(array.storage)
    if types.is_dictionary(t):
        return _values(decoded(array))
    if types.is_struct(t):
        names = [t.field(i).name for i in range(t.num_fields)]
        if len(set(names)) != len(names):
            raise ValueError(f"a struct with a name twice: {', '.join(names)}")
        rows = zip(*(_values(child) for child in array.flatten()), strict=True)
        there = array.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, there, strict=True)]
    if types.is_map(t):
        return [i if i is None else [tuple(pair.values()) for pair in _values(i)] for i in (m.values for m in array)]
    if types.is_nested(t):
        return [None if item.values is None else _values(item.values) for item in array]
    return [_time(scalar, t, types) for scalar in array]


def _time(scalar: Any, t: Any, types: Any) -> Any:
    if not scalar.is_valid or types.is_interval(t):
        return scalar.as_py()
    unit: Any = "D" if types.is_date32(t) else "ms" if types.is_date64(t) else t.unit
    if unit != "ns" or scalar.value % 1000 == 0:
        try:
            return (scalar.cast(_in_microseconds(t, types)) if unit == "ns" else scalar).as_py()
        except (OverflowError, ValueError) as error:
            surface(error)
    return (np.timedelta64 if types.is_duration(t) or types.is_time(t) else np.datetime64)(scalar.value, unit)


def _in_microseconds(t: Any, types: Any) -> Any:
    pa = need("pyarrow", extra="parquet")
    if types.is_timestamp(t):
        return pa.timestamp("us", t.tz)
    return pa.duration("us") if types.is_duration(t) else pa.time64("us")


def _holds_times(t: Any) -> bool:
    types = need("pyarrow", extra="parquet").types
    if types.is_temporal(t):
        return True
    if hasattr(t, "storage_type"):
        return _holds_times(t.storage_type)
    if types.is_dictionary(t):
        return _holds_times(t.value_type)
    return any(_holds_times(t.field(i).type) for i in range(t.num_fields))


def _numbers(array: Any, kind: str) -> tuple[Column, list[int]]:
    shape, _, rest = kind.partition(" ")
    if not rest:
        return array.to_numpy(zero_copy_only=False), []
    values = array.flatten()
    holes: list[int] = []
    if values.null_count:
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        holes = np.unique(np.searchsorted(np.cumsum(lengths), nulls, side="right")).tolist()
    if holes:
        return np.empty(len(array)), holes
    flat = values.to_numpy(zero_copy_only=False)
    if shape == "rows":
        return flat.reshape(len(array), int(rest.split()[1])), []
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Ragged(flat, offsets - offsets[0]), []


def texts(column: Any) -> Iterator[str | NoText]:
    """The strings of a column; a value that is null or not UTF-8 becomes a `NoText`."""
    column = _one(column)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_decode(v.as_buffer()) for v in column]
    for value in values:
        yield NoText("null") if value is None else value


def _decode(buffer: Any) -> str | NoText | None:
    if buffer is None:
        return None
    try:
        return buffer.to_pybytes().decode("utf-8")  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        return NoText(f"bytes that are not UTF-8 ({error.reason} at byte {error.start})")
