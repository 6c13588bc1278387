"""Columns of any values (text, bytes, None, JSON, arrays, dates) as bytes, one value per document.

A token store holds such a column as ragged bytes under the name `value:NAME`; each value begins with a letter that says
what it is. Nothing is pickled; what is read is checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from penstock.core.columns import Ragged, strings
from penstock.core.errors import StoreError
from penstock.store import typed_json

PREFIX = "value:"
_ARRAYS = "biufc"
_EXACT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def encode_values(values: Sequence[Any]) -> Ragged:
    """The bytes of each value. Raises TypeError for a value of another kind.

    >>> decode_values(encode_values(["a", b"b", None, {"c": [1, 2.5]}]), "here").tolist()
    ['a', b'b', None, {'c': [1, 2.5]}]
    """
    parts = [_encode(value) for value in values]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return Ragged(np.frombuffer(b"".join(parts), np.uint8), offsets)


def decode_values(column: Ragged, where: str) -> np.ndarray[Any, np.dtype[Any]]:
    """The values of some documents."""
    return strings([_decode(one.tobytes(), where) for one in column])


def _encode(value: Any) -> bytes:
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return b"b" + bytes(value)
    if value is None:
        return b"n"
    if isinstance(value, np.ndarray) and value.dtype.kind in _ARRAYS:
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        head = orjson.dumps([little.dtype.str, list(value.shape)])
        return b"a" + len(head).to_bytes(4, "little") + head + little.tobytes()
    data = _exact_json(value)
    return b"t" + typed_json.dumps(value) if data is None else b"j" + data


def _exact_json(value: Any) -> bytes | None:
    """A value as JSON; None if JSON returns another: a date as text, NaN as null, a tuple as a list."""
    try:
        data = orjson.dumps(value, option=_EXACT)
    except TypeError:
        return None
    return data if orjson.loads(data) == value else None


def _decode(data: bytes, where: str) -> Any:
    kind, body = data[:1], data[1:]
    try:
        if kind == b"s":
            return body.decode("utf-8", "surrogatepass")
        if kind == b"b":
            return body
        if kind == b"j":
            return orjson.loads(body)
        if kind == b"t":
            return typed_json.loads(body)
        if kind == b"n" and not body:
            return None
        if kind == b"a":
            return _array(body)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise _damaged(str(error)[:100], where) from error
    raise _damaged(f"a value of kind {kind!r}", where)


def _array(body: bytes) -> Any:
    size = int.from_bytes(body[:4], "little")
    name, shape = orjson.loads(body[4 : 4 + size])
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAYS or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"an array of {name!r}")
    if len(body) - 4 - size != dtype.itemsize * math.prod(shape):
        raise ValueError("an array of another size")
    return np.frombuffer(body, dtype, offset=4 + size).reshape(shape)


def _damaged(got: str, where: str) -> StoreError:
    return StoreError("a value as .tokenize() writes it", got=got, where=where, fix="prepare the store again")
