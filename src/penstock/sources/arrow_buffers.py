"""Arrow arrays as plain buffers that grow: many arrays of one type appended become one contiguous array.

Taking scattered rows from one contiguous array is one call per column, whatever the number of row groups it came from.
Offsets are stored with 64 bits, dictionaries as the values they stand for. A type whose values could come out
differently (an extension type inside another type) is not stored at all: `NotStored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.optional import need

I64 = NDArray[np.int64]
Check = Callable[[int, I64, I64], None]  # (number of a buffer, starts, stops): bytes that are going to be read

_MOST_DECODED = 256 << 20  # bytes of one array whose dictionary is replaced by its values


class NotStored(Exception):
    """A type or an amount of values that is not kept as plain buffers; the message says which."""


class Sink(Protocol):
    """Where one buffer goes."""

    def bytes(self, data: Any) -> None:
        """Appends bytes."""
        ...

    def bits(self, values: NDArray[np.bool_] | None, count: int) -> None:
        """Appends bits; None: all of them are 1."""
        ...

    def offsets(self, offsets: I64, narrow: bool) -> None:
        """Appends offsets that begin with 0, moved to where the last ones ended; `narrow`: of 32 bits."""
        ...


def stored_type(t: Any) -> Any:
    """The type in which values of type `t` are stored, at any depth."""
    pa = need("pyarrow", extra="parquet")
    types = pa.types
    if types.is_dictionary(t):
        return stored_type(t.value_type)
    if types.is_string(t) or types.is_large_string(t):
        return pa.large_string()
    if types.is_binary(t) or types.is_large_binary(t):
        return pa.large_binary()
    if types.is_map(t):
        return pa.map_(stored_type(t.key_type), stored_type(t.item_type))
    if types.is_fixed_size_list(t):
        return pa.list_(stored_type(t.value_type), t.list_size)
    if types.is_list(t) or types.is_large_list(t):
        return pa.large_list(stored_type(t.value_type))
    if types.is_struct(t):
        return pa.struct([pa.field(t.field(i).name, stored_type(t.field(i).type)) for i in range(t.num_fields)])
    if types.is_null(t) or types.is_boolean(t) or _width(t):
        return t
    raise NotStored(f"type {t}")


def _width(t: Any) -> int:
    """Bytes of a value of a fixed-width type; 0 for any other type."""
    types = need("pyarrow", extra="parquet").types
    fixed = types.is_primitive(t) or types.is_decimal(t) or types.is_fixed_size_binary(t)
    return int(t.bit_width) // 8 if fixed and not types.is_boolean(t) else 0


def _children(t: Any) -> list[Any]:
    types = need("pyarrow", extra="parquet").types
    if types.is_map(t):
        pa = need("pyarrow", extra="parquet")
        return [pa.struct([pa.field("key", t.key_type, nullable=False), pa.field("value", t.item_type)])]
    if types.is_struct(t):
        return [t.field(i).type for i in range(t.num_fields)]
    nested = types.is_fixed_size_list(t) or types.is_large_list(t)
    return [t.value_type] if nested else []


def _own(t: Any) -> tuple[str, ...]:
    """The buffers of one level of a stored type, in Arrow's order."""
    types = need("pyarrow", extra="parquet").types
    if types.is_null(t):
        return ()
    if types.is_large_string(t) or types.is_large_binary(t):
        return "valid", "offsets", "values"
    if types.is_large_list(t) or types.is_map(t):
        return "valid", "offsets"
    return ("valid",) if types.is_struct(t) or types.is_fixed_size_list(t) else ("valid", "values")


def count_buffers(t: Any) -> int:
    """Buffers of a stored type with all its children."""
    return len(_own(t)) + sum(count_buffers(child) for child in _children(t))


def append(array: Any, t: Any, sinks: Iterator[Sink]) -> None:
    """Appends an array, whose stored type is `t`, to the buffers of that type."""
    types = need("pyarrow", extra="parquet").types
    if types.is_dictionary(array.type):
        array = _decoded(array)
    if types.is_null(t):
        return
    n = len(array)
    next(sinks).bits(array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None, n)
    if types.is_boolean(t):
        next(sinks).bits(array.fill_null(False).to_numpy(zero_copy_only=False), n)
    elif types.is_struct(t):
        for i, child in enumerate(_children(t)):
            append(array.field(i), child, sinks)
    elif types.is_fixed_size_list(t):
        size = t.list_size
        append(array.values.slice(array.offset * size, n * size), t.value_type, sinks)
    elif width := _width(t):
        buffer = array.buffers()[1]
        if n:
            next(sinks).bytes(memoryview(buffer)[array.offset * width : (array.offset + n) * width])
        else:
            next(sinks)
    else:
        _append_ragged(array, t, sinks)


def _decoded(array: Any) -> Any:
    """The values of a dictionary array; `NotStored` where few large ones are repeated until they fill the memory."""
    types = need("pyarrow", extra="parquet").types
    values, chosen = array.dictionary, array.indices.drop_null().to_numpy()
    size = values.nbytes * len(chosen) // max(1, len(values))
    if types.is_string(values.type) or types.is_large_string(values.type) or types.is_binary(values.type):
        lengths = need("pyarrow.compute", extra="parquet").binary_length(values).fill_null(0)
        size = int(lengths.to_numpy(zero_copy_only=False)[chosen].sum(dtype=np.int64))
    if size > _MOST_DECODED:
        raise NotStored(f"values that are repeated to {size} bytes")
    return array.dictionary_decode()


def _append_ragged(array: Any, t: Any, sinks: Iterator[Sink]) -> None:
    types = need("pyarrow", extra="parquet").types
    wide = not (types.is_string(array.type) or types.is_binary(array.type) or _small_list(array.type))
    dtype: Any = np.int64 if wide else np.int32
    raw = array.buffers()[1]
    offsets = np.zeros(1, np.int64)
    if raw is not None and raw.size:
        offsets = np.frombuffer(raw, dtype, len(array) + 1, array.offset * dtype().itemsize).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    next(sinks).offsets(offsets - first, types.is_map(t))
    if types.is_large_string(t) or types.is_large_binary(t):
        data = array.buffers()[2]
        next(sinks).bytes(b"" if data is None or first == last else memoryview(data)[first:last])
    else:
        append(_entries(array).slice(first, last - first), _children(t)[0], sinks)


def _small_list(t: Any) -> bool:
    types = need("pyarrow", extra="parquet").types
    return bool(types.is_list(t) or types.is_map(t))


def _entries(array: Any) -> Any:
    """The values of a list or map array, where its offsets point."""
    pa = need("pyarrow", extra="parquet")
    if not pa.types.is_map(array.type):
        return array.values
    fields = [pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)]
    return pa.StructArray.from_arrays([array.keys, array.items], fields=fields)


def rebuild(t: Any, n: int, buffers: Iterator[Any]) -> Any:
    """The array of `n` values over the buffers of its stored type; a buffer of 0 bytes of valid bits: no nulls."""
    pa = need("pyarrow", extra="parquet")
    types = pa.types
    if types.is_null(t):
        return pa.nulls(n)
    own = {name: next(buffers) for name in _own(t)}
    valid = pa.py_buffer(own["valid"]) if len(own["valid"]) else None
    mine = [valid, *(pa.py_buffer(own[name]) for name in list(own)[1:])]
    if types.is_struct(t):
        counts = [n] * t.num_fields
    elif types.is_fixed_size_list(t):
        counts = [n * t.list_size]
    elif types.is_large_list(t) or types.is_map(t):
        kind: Any = np.int32 if types.is_map(t) else np.int64
        offsets = np.frombuffer(own["offsets"], kind)
        counts = [int(offsets[n]) if len(offsets) else 0]
    else:
        return pa.Array.from_buffers(t, n, mine, null_count=-1 if valid else 0)
    children = [rebuild(child, count, buffers) for child, count in zip(_children(t), counts, strict=True)]
    return pa.Array.from_buffers(t, n, mine, null_count=-1 if valid else 0, children=children)


def touch(t: Any, starts: I64, stops: I64, number: int, buffers: list[Any], check: Check) -> int:
    """Calls `check` for all bytes that values [start, stop) of an array are in; returns the next buffer's number.

    Offsets are read after they were checked.
    """
    types = need("pyarrow", extra="parquet").types
    if types.is_null(t):
        return number
    for name in _own(t):
        size = len(buffers[number])
        if name == "valid" or types.is_boolean(t):
            if size:
                check(number, starts >> 3, (stops + 7) >> 3)
        elif name == "offsets":
            kind: Any = np.int32 if types.is_map(t) else np.int64
            width = kind().itemsize
            check(number, starts * width, (stops + 1) * width)
            offsets = np.frombuffer(buffers[number], kind)
            starts, stops = offsets[starts].astype(np.int64), offsets[stops].astype(np.int64)
        else:
            width = _width(t) or 1
            check(number, starts * width, stops * width)
        number += 1
    if types.is_fixed_size_list(t):
        starts, stops = starts * t.list_size, stops * t.list_size
    for child in _children(t):
        number = touch(child, starts, stops, number, buffers, check)
    return number
