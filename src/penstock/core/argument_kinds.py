"""Whether values are of the kinds that a signature's annotations name. Used after a call has failed, to say why."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What an annotation accepts, and how to say it."""

    text: str
    accepts: Callable[[Any], bool]


def is_integer(value: Any) -> bool:
    """Whether this is an integer, of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


_PLAIN = {
    "None": Kind("None", lambda value: value is None),
    "bool": Kind("True or False", lambda value: isinstance(value, bool)),
    "int": Kind("an integer", is_integer),
    "float": Kind("a number", _is_number),
    "str": Kind("a string", lambda value: isinstance(value, str)),
    "bytes": Kind("bytes", lambda value: isinstance(value, bytes)),
}
_MANY = {"int": "integers", "float": "numbers", "str": "strings", "bool": "booleans"}


def expected_kind(annotation: str, value: Any) -> str:
    """What the annotation asks for, if `value` is not that; "" if it fits, or if the annotation is not understood.

    >>> expected_kind("int | None", "4"), expected_kind("int | None", 4), expected_kind("SomeAlias", "4")
    ('an integer or None', '', '')
    >>> expected_kind("Sequence[int]", [1, "2"]), expected_kind("Literal['drop', 'pad']", "keep")
    ('a list of integers', "'drop' or 'pad'")
    """
    kinds = [_kind(part) for part in _alternatives(annotation)]
    if not kinds or any(kind is None or kind.accepts(value) for kind in kinds):
        return ""
    return " or ".join(dict.fromkeys(kind.text for kind in kinds if kind is not None))


def _alternatives(annotation: str) -> list[str]:
    """The parts between the `|` that are in no brackets."""
    parts, depth = [""], 0
    for letter in annotation.strip("'\""):
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _kind(annotation: str) -> Kind | None:
    name, _, inside = annotation.partition("[")
    inside = inside.removesuffix("]")
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if name == "Literal":
        try:
            choices = ast.literal_eval(f"[{inside}]")
        except (ValueError, SyntaxError):
            return None
        return Kind(" or ".join(map(repr, choices)), lambda value: any(value is c or value == c for c in choices))
    if name == "Callable":
        return Kind("a function", callable)
    if name in ("Mapping", "dict"):
        return Kind("a dict", lambda value: isinstance(value, Mapping))
    if name in ("Sequence", "list", "tuple"):
        items = inside.split(", ")
        plain = name == "tuple" and items[-1] != "..." and all(item in _PLAIN for item in items)
        return _sequence(items[0], len(items) if plain else None)
    return None


def _sequence(inside: str, count: int | None) -> Kind:
    item = _PLAIN.get(inside)

    def accepts(value: Any) -> bool:
        if isinstance(value, str | bytes | Mapping) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
            return False
        if count is not None and (not isinstance(value, Sequence) or len(value) != count):
            return False
        if item is None or not isinstance(value, Sequence):
            return True
        return all(item.accepts(each) for each in value)

    many = f" of {_MANY[inside]}" if inside in _MANY else ""
    return Kind(f"a list{many}" if count is None else f"a tuple of {count}{many.removeprefix(' of')}", accepts)
