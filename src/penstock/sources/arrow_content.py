"""What Arrow columns hold, as things to hash: the same for equal values, however a table is cut into chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.optional import need


def content_parts(column: Any) -> list[Any]:
    """What a column holds, as things that can be hashed: lengths, values, and where nulls are."""
    pa = need("pyarrow", extra="parquet")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if hasattr(array, "storage"):
        array = array.storage
    types, kind = pa.types, array.type
    nulls: list[Any] = []
    if array.null_count:
        nulls = [np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))]
        array = array.drop_null()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return [*nulls, array.to_numpy(zero_copy_only=False)]
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        lengths = pa.compute.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets, data = np.frombuffer(array.buffers()[1], _offset_type(kind, types)), array.buffers()[2]
        start, stop = (int(offsets[array.offset + i]) for i in (0, len(array))) if len(array) else (0, 0)
        return [*nulls, lengths, b"" if data is None else np.frombuffer(data, np.uint8)[start:stop]]
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        return [*nulls, lengths, *content_parts(array.flatten())]
    if types.is_struct(kind):
        fields = zip((kind.field(i).name for i in range(kind.num_fields)), array.flatten(), strict=True)
        return [*nulls, *(p for name, field in fields for p in [name, *content_parts(field)])]
    return [*nulls, *(repr(value) for value in array.to_pylist())]


def _offset_type(kind: Any, types: Any) -> Any:
    return np.int64 if types.is_large_string(kind) or types.is_large_binary(kind) else np.int32
