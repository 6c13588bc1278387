"""Arrow columns to Penstock columns. Zero-copy for numbers and lists of numbers; one object per row for the rest.

Types that would need code from the file to be understood (pickled extension types) are refused; other extension types
are read as the plain type they are stored in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.columns import Column, Columns, Ragged, strings
from penstock.core.errors import DataError
from penstock.core.optional import need

_PICKLED = b"arrow.py_extension_type"


@dataclass(frozen=True, slots=True)
class NoText:
    """Stands for a text that is not there."""

    reason: str


def kind_of(field: Any, path: str) -> str:
    """What a column becomes: "str", "bytes", "object", a dtype name, or "ragged <dtype>" and "rows <dtype> <n>"."""
    _refuse_pickled(field, path)
    pa = need("pyarrow", extra="parquet")
    t, types = _plain(field.type), pa.types
    if types.is_string(t) or types.is_large_string(t) or types.is_string_view(t):
        return "str"
    if types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t) or types.is_fixed_size_binary(t):
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
        elif kind == "str":
            values = list(texts(array))
            bad += [
                (row, f"text in column {name!r}", v.reason)
                for row, v in enumerate(values)
                if isinstance(v, NoText) and v.reason != "null"
            ]
            out[name] = strings([v if isinstance(v, str) else None for v in values])
        elif kind in ("bytes", "object"):
            out[name] = strings(array.to_pylist())
        else:
            column, holes = _numbers(array, kind)
            bad += [(row, f"numbers in column {name!r} ({kind})", "null among them") for row in holes]
            out[name] = column
    return out, bad


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
    return column.dictionary_decode() if hasattr(column.type, "index_type") else column


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


def column_bytes(group: Any, name: str) -> int:
    """Decoded bytes of one column of a row group, by the footer."""
    parts = (group.column(i) for i in range(group.num_columns))
    return int(sum(p.total_uncompressed_size for p in parts if p.path_in_schema.partition(".")[0] == name))
