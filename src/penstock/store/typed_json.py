"""Values that JSON does not have (dates, tuples, NaN, bytes, arrays, other keys), as JSON that says what each is.

Such a value is an object with the one key `_TYPE`: `{"\\0": ["date", "2024-05-01"]}`. What is read is checked, and only
the types below are made: no name in the data decides what is called.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import uuid
import zoneinfo
from typing import Any

import numpy as np
import orjson

_TYPE = "\0"
_ARRAYS = "biufcmM"


def dumps(value: Any) -> bytes:
    """The JSON of a value. Raises TypeError for one of another type.

    >>> loads(dumps({"day": datetime.date(2024, 5, 1), 7: (1, float("inf")), "raw": b"ab"}))
    {'day': datetime.date(2024, 5, 1), 7: (1, inf), 'raw': b'ab'}
    """
    try:
        return orjson.dumps(_plain(value))
    except RecursionError as error:
        raise TypeError("a value of too many levels") from error


def loads(data: bytes) -> Any:
    """The value of such JSON. Raises ValueError, TypeError or KeyError for other JSON."""
    return _value(orjson.loads(data))


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else {_TYPE: ["int", f"{value:x}"]}
    if kind is float:
        return value if math.isfinite(value) else {_TYPE: ["float", repr(value)]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _ARRAYS:
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return {_TYPE: ["array", little.dtype.str, shape, _text(little.tobytes())]}
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {_TYPE: ["text", _text(value.encode("utf-8", "surrogatepass"))]}
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        pairs = [[_plain(key), _plain(item)] for key, item in value.items()]
        named = all(type(key) is str and key != _TYPE for key, _ in pairs)
        return dict(pairs) if named else {_TYPE: ["dict", pairs]}
    return {_TYPE: _typed(value, kind)}


def _typed(value: Any, kind: type) -> list[Any]:
    if kind is tuple:
        return ["tuple", [_plain(item) for item in value]]
    if kind in (bytes, bytearray, memoryview):
        return ["bytes", _text(bytes(value))]
    if kind is datetime.datetime:
        return ["datetime", value.replace(tzinfo=None).isoformat(), _zone(value.tzinfo), value.fold]
    if kind is datetime.time:
        return ["time", value.replace(tzinfo=None).isoformat(), _zone(value.tzinfo), value.fold]
    if kind is datetime.date:
        return ["date", value.isoformat()]
    if kind is datetime.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if kind is decimal.Decimal:
        return ["decimal", str(value)]
    if kind is uuid.UUID:
        return ["uuid", value.hex]
    if kind is complex:
        return ["array", "<c16", "complex", _text(np.array(value).tobytes())]
    raise TypeError(f"Type is not JSON serializable: {kind.__name__}")


def _zone(zone: datetime.tzinfo | None) -> Any:
    """A time zone as its name, its offset in seconds, or None."""
    if isinstance(zone, datetime.timezone):
        offset = zone.utcoffset(None).total_seconds()
        if zone == datetime.timezone(datetime.timedelta(seconds=offset)):
            return offset
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return zone.key
    if zone is None:
        return None
    raise TypeError(f"Type is not JSON serializable: {type(zone).__name__}")


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if _TYPE not in plain:
        return {name: _value(item) for name, item in plain.items()}
    name, *parts = plain[_TYPE]
    if name == "dict":
        return {_value(key): _value(item) for key, item in parts[0]}
    if name == "tuple":
        return tuple(_value(item) for item in parts[0])
    if name == "array":
        return _array(*parts)
    if name in ("datetime", "time"):
        stated, zone, fold = parts
        made: Any = getattr(datetime, name).fromisoformat(stated)
        return made.replace(tzinfo=_zone_of(zone), fold=fold)
    return _READ[name](*parts)


def _zone_of(stated: Any) -> datetime.tzinfo | None:
    if isinstance(stated, str):
        return zoneinfo.ZoneInfo(stated)
    return None if stated is None else datetime.timezone(datetime.timedelta(seconds=stated))


def _array(name: str, shape: Any, text: str) -> Any:
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAYS:
        raise ValueError(f"an array of {name!r}")
    values = np.frombuffer(_bytes(text), dtype)
    if shape is None or shape == "complex":
        return values[0] if shape is None else complex(values[0])
    return values.reshape(shape)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READ: dict[str, Any] = {
    "int": lambda digits: int(digits, 16),
    "float": lambda text: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
    "text": lambda text: _bytes(text).decode("utf-8", "surrogatepass"),
    "bytes": _bytes,
    "date": datetime.date.fromisoformat,
    "timedelta": datetime.timedelta,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
