"""View types of Arrow (of strings, bytes, lists), which pyarrow cannot take rows from, as their plain types.

Lists are rebuilt here from lengths and values: pyarrow's own cast of list views leaves the last offset out (26.0), so
that the last row is empty, other data, or ends the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.optional import need


def without_views(table: Any) -> Any:
    """A table without view types."""
    pa = need("pyarrow", extra="parquet")
    for i, field in enumerate(table.schema):
        kind = no_views(field.type)
        if kind != field.type:
            chunks = [plain(chunk) for chunk in table.column(i).chunks]
            table = table.set_column(i, field.with_type(kind), pa.chunked_array(chunks, type=kind))
    return table


def no_views(t: Any) -> Any:
    """The type with views replaced at every depth; an equal one if it has none."""
    pa = need("pyarrow", extra="parquet")
    types = pa.types
    if types.is_string_view(t):
        return pa.large_string()
    if types.is_binary_view(t):
        return pa.large_binary()
    if types.is_struct(t):
        fields = [t.field(i) for i in range(t.num_fields)]
        plain = [field.with_type(no_views(field.type)) for field in fields]
        return t if all(a.type == b.type for a, b in zip(fields, plain, strict=True)) else pa.struct(plain)
    if types.is_map(t):
        plain = pa.map_(no_views(t.key_type), no_views(t.item_type), t.keys_sorted)
        return t if plain.key_type == t.key_type and plain.item_type == t.item_type else plain
    if types.is_list_view(t) or types.is_large_list_view(t):
        return (pa.list_ if types.is_list_view(t) else pa.large_list)(_item(t))
    if types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t):
        item = _item(t)
        if item.type == t.value_type:
            return t
        if types.is_fixed_size_list(t):
            return pa.list_(item, t.list_size)
        return (pa.list_ if types.is_list(t) else pa.large_list)(item)
    return t


def _item(t: Any) -> Any:
    return t.value_field.with_type(no_views(t.value_type))


def plain(array: Any) -> Any:
    """An array with the type `no_views` of its own.

    >>> import pyarrow as pa
    >>> plain(pa.array([[1, 2], None, [3]], pa.list_view(pa.int64()))).to_pylist()
    [[1, 2], None, [3]]
    """
    pa = need("pyarrow", extra="parquet")
    types, kind = pa.types, no_views(array.type)
    if kind == array.type:
        return array
    if types.is_struct(kind):
        children = [plain(child) for child in array.flatten()]
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        keys, items = (plain(child) for child in pairs.flatten().flatten())
        return pa.MapArray.from_arrays(_offsets(pairs, np.int32), keys, items, kind, mask=array.is_null())
    if types.is_fixed_size_list(kind):
        size, start = kind.list_size, array.offset
        values = plain(array.values.slice(start * size, len(array) * size))
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())
    if types.is_list(kind) or types.is_large_list(kind):
        lists, width = (pa.ListArray, np.int32) if types.is_list(kind) else (pa.LargeListArray, np.int64)
        offsets = _offsets(array, width)
        return lists.from_arrays(offsets, plain(array.flatten()), kind, mask=array.is_null())
    return array.cast(kind)


def _offsets(array: Any, width: Any) -> Any:
    """Where each list begins in `array.flatten()`, and the end; a list that is null has no values there."""
    compute, pa = need("pyarrow.compute", extra="parquet"), need("pyarrow", extra="parquet")
    lengths = compute.fill_null(compute.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(width))
