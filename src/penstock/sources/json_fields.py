"""JSON records to columns: which fields, of which type.

A field's type is taken from the first record, or said with `types`, and every record is held to it, so a column has
one dtype from the first batch to the last. Strings, objects and mixed values are object columns;
numbers are arrays; lists of numbers are ragged.

Integers are exact or refused: a column of integers holds 64 bits, an object any number of them (the fast parser would
round what is beyond 64 bits to a float). NaN, Infinity, lone surrogates and bytes that are not UTF-8 are not JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from penstock.core.columns import Column, Columns, Ragged, strings
from penstock.core.errors import RecordError, UsageError

TYPES = ("str", "int", "float", "bool", "ints", "floats", "object")
_NUMBER = (int, float)
_HUGE = 1 << 63
_TYPED = "write such numbers as strings"


def type_of(value: Any) -> str:
    """The type a field gets from its first value.

    >>> [type_of(v) for v in ("a", 1, 1.5, True, [1, 2], [1.5], {"k": 1}, None)]
    ['str', 'int', 'float', 'bool', 'ints', 'floats', 'object', 'object']
    """
    for name, kind in (("str", str), ("bool", bool), ("int", int), ("float", float)):
        if type(value) is kind:
            return name
    if isinstance(value, list) and value and all(type(v) in _NUMBER for v in value):
        return "ints" if all(type(v) is int for v in value) else "floats"
    return "object"


def fits(value: Any, kind: str) -> bool:
    """Whether a value may stand in a column of this type. Whole numbers fit a float column; int64 is the widest."""
    if kind == "object":
        return True
    if kind == "int":
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    if kind == "float":
        return type(value) in _NUMBER
    if kind == "ints":
        return isinstance(value, list) and all(type(v) is int and -(1 << 63) <= v < 1 << 63 for v in value)
    if kind == "floats":
        return isinstance(value, list) and all(type(v) in _NUMBER for v in value)
    return type(value) is (str if kind == "str" else bool)


def check_types(types: Mapping[str, str], known: Sequence[str] = TYPES) -> dict[str, str]:
    """Refuses unknown type names."""
    for name, kind in types.items():
        if kind not in known:
            raise UsageError(f"types as one of {', '.join(known)}", got=f"{name}={kind!r}", fix="correct the name")
    return dict(types)


def load(line: bytes | memoryview, where: str) -> dict[str, Any]:
    """One JSON object with exact integers, or a `RecordError` that says what is wrong with the line."""
    found: dict[str, Any] = exact(load_fast(line, where), line, where)
    return found


def load_fast(line: bytes | memoryview, where: str) -> dict[str, Any]:
    """`load`, but integers beyond 64 bits are floats: pass what is used of it through `exact`."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _not_json(bytes(line), error, where) from error
    if not isinstance(value, dict):
        raise RecordError(
            "a JSON object on each line",
            got=f"{_name(value)}: {_sample(bytes(line))}",
            where=where,
            fix='write {"text": ...} on each line; one JSON array of records is read by penstock.read_json(path)',
        )
    return value


def exact(value: Any, data: bytes | memoryview, where: str) -> Any:
    """What `orjson` made of `data`, with integers beyond 64 bits as they were written.

    >>> data = b'{"n": 123456789012345678901}'
    >>> orjson.loads(data), exact(orjson.loads(data), data, "")
    ({'n': 1.2345678901234568e+20}, {'n': 123456789012345678901})
    """
    if not _holds_huge(value):
        return value
    try:
        return json.loads(bytes(data).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # more digits than Python converts
        raise RecordError("numbers that can be held exactly", got=str(error)[:200], where=where, fix=_TYPED) from error


def _holds_huge(value: Any) -> bool:
    """Whether a float in it may have been written as an integer beyond 64 bits."""
    stack = [value]
    while stack:
        item = stack.pop()
        if type(item) is float:
            if not -_HUGE < item < _HUGE:
                return True
        elif type(item) is dict:
            stack += item.values()
        elif type(item) is list:
            stack += item
    return False


def _not_json(line: bytes, error: orjson.JSONDecodeError, where: str) -> RecordError:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return RecordError(
            "JSON in UTF-8",
            got=f"byte 0x{line[bad.start]:02x} at byte {bad.start} of the line ({bad.reason})",
            where=where,
            fix="convert the file to UTF-8",
        )
    constant = re.search(rb"[:\[,]\s*(-?(?:NaN|Infinity))\b", line)
    fix = "repair the line" if constant is None else f"repair the line: write null, {constant[1].decode()} is not JSON"
    got = f"{error.msg} at character {error.pos}: {_sample(line)}"
    return RecordError("valid JSON", got=got, where=where, fix=fix)


def pick(record: dict[str, Any], name: str, kind: str, where: str, depth: int, *, optional: bool = False) -> Any:
    """The value of a field, checked for presence, type and depth."""
    if name not in record:
        if optional and kind in ("str", "object"):
            return None
        raise RecordError(
            f"a field {name!r}",
            got=f"only {', '.join(map(repr, list(record)[:8])) or 'an empty object'}",
            where=where,
            fix="name the field that holds it (fields=, field=, or text_field= of CapibaraDataLoader), or repair "
            "the record",
        )
    value = record[name]
    if not fits(value, kind):
        raise RecordError(
            f"field {name!r} of type {kind}",
            got=_misfit(value, kind),
            where=where,
            fix="repair the record"
            + ("" if kind == "str" else f", or take it as it comes: types={{{name!r}: 'object'}}"),
        )
    if kind == "object" and not shallow(value, depth - 1):
        raise RecordError(
            f"JSON at most {depth} levels deep", got="deeper", where=where, fix="flatten it, or raise limits.json_depth"
        )
    return value


def shallow(value: Any, depth: int) -> bool:
    """Whether arrays and objects are nested at most `depth` deep, without recursion.

    >>> shallow([[1]], 2), shallow([[1]], 1)
    (True, False)
    """
    level = [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        if depth == 0:
            return False
        depth -= 1
        level = [child for v in level for child in (v.values() if isinstance(v, dict) else v)]
    return True


def to_columns(rows: Sequence[Sequence[Any]], types: Mapping[str, str]) -> Columns:
    """Columns from rows of values in the order of `types`."""
    return {name: _column([row[i] for row in rows], kind) for i, (name, kind) in enumerate(types.items())}


def _column(values: list[Any], kind: str) -> Column:
    if kind in ("ints", "floats"):
        return Ragged.of(values, np.int64 if kind == "ints" else np.float64)
    if kind in ("int", "float", "bool"):
        return np.array(values, {"int": np.int64, "float": np.float64, "bool": np.bool_}[kind])
    return strings(values)


def _misfit(value: Any, kind: str) -> str:
    """Why a value does not fit: for a list, which item."""
    if kind in ("ints", "floats") and isinstance(value, list):
        at = next(i for i, item in enumerate(value) if not fits(item, kind[:-1]))
        return f"a list whose item {at} is {_misfit(value[at], kind[:-1])}"
    if kind == "int" and type(value) in _NUMBER:
        # An integer just below -2^63 arrives as the float -2^63.
        beyond = not -_HUGE <= value < _HUGE or (type(value) is float and value == -_HUGE)
        return f"{value}, beyond 64-bit signed integers" if beyond else f"{value}, which is no integer"
    return _name(value)


def _name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _sample(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return repr(text) + ("..." if len(line) > 60 else "")
