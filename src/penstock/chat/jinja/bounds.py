"""The filters, operators and methods of a template, each with its result bounded before it is computed.

Their cost is counted in `meter`.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.chat.jinja.meter import MAX_NODES, clock, fits, measure, spent, too_much
from penstock.core.errors import RecordError, UsageError
from penstock.core.optional import need

MAX_RANGE = 10_000
MAX_BITS = 4096
LONGEST_ESCAPE = 5  # of one character, such as &#34;

# In formats: a long width or precision, one that is taken from the values, and a field inside a field.
_WIDE = re.compile(r"\d{4}|%[^a-zA-Z%]*\*|\{[^{}]*\{[^{}]*\}")
_DATE_PART = re.compile(r"%(-?[aAbBdHIjmMpSuwyY%])|%")
# Everything str.splitlines takes for the end of a line.
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def split(method: Callable[..., list[str]], sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """`str.split` or `str.rsplit`, for texts that do not fall into too many pieces: no more are ever made."""
    most = MAX_NODES if maxsplit < 0 else min(maxsplit, MAX_NODES)
    pieces = method(sep, most)
    if len(pieces) > MAX_NODES:
        raise too_much(f"text split in at most {MAX_NODES} pieces", "more")
    return pieces


def splitlines(text: str, keepends: bool = False) -> list[str]:
    if len(text) > MAX_NODES and sum(map(text.count, _LINE_ENDS)) > MAX_NODES:
        raise too_much(f"text of at most {MAX_NODES} lines", "more")
    return text.splitlines(keepends)


def listed(value: Iterable[Any]) -> list[Any]:
    """The `list` filter, of bounded length."""
    out = list(islice(value, MAX_NODES + 1))
    if len(out) > MAX_NODES:
        raise too_much(f"lists of at most {MAX_NODES} items", "a longer one")
    return out


def join_text(parts: Iterable[Any], glue: str = "") -> str:
    """Parts as text, joined, measured before they are."""
    texts = []
    total = 0
    for part in parts:
        clock.tick()
        texts.append(to_text(part))
        total += len(texts[-1]) + len(glue)
        fits(total)
    return str(spent(glue.join(texts)))


def to_text(value: Any) -> str:
    """What `{{ value }}` writes. Only data can be written: an object's address would differ from run to run."""
    if type(value) is str:
        return value
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    if isinstance(value, list | tuple | Mapping):
        measure(value)
        return str(value)
    if need("jinja2", extra="hf").Undefined in type(value).__mro__:
        return str(value)
    raise forbidden(f"writing out an object of type {type(value).__name__}")


def marked_safe(value: Any) -> Any:
    """The `safe` filter: text that escapes for HTML what is added to it, as in Jinja and so in transformers."""
    return need("markupsafe", extra="hf").Markup(to_text(value))


def soft_text(value: Any) -> Any:
    """The `string` filter: text, which stays safe if it is."""
    return value if is_safe(value) else to_text(value)


def is_safe(value: Any) -> bool:
    """Whether it is text that the `safe` filter has marked."""
    return isinstance(value, str) and hasattr(value, "__html__")


def forbidden(what: str) -> RecordError:
    return RecordError("a template that only formats messages", got=what, fix="use a template you trust")


def replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = to_text(text), to_text(old), to_text(new)
    times = text.count(old) if count is None or count < 0 else min(int(count), text.count(old))
    fits(len(text) + times * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else int(count))


def join_strings(glue: str, parts: Iterable[Any]) -> str:
    """`str.join`, which takes nothing but text."""
    texts = listed(parts)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("str.join with something else than text; the filter `join` writes it out")
    return join_text(texts, glue)


def join(environment: Any, value: Iterable[Any], glue: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        of = need("jinja2.filters", extra="hf").make_attrgetter(environment, attribute)
        value = (of(item) for item in value)
    return join_text(value, to_text(glue))


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    pad = width if isinstance(width, str) else " " * min(int(width), 65)
    if len(pad) > 64:
        raise too_much("an indent of at most 64 characters", "a wider one")
    start, *lines = splitlines(to_text(text) + "\n")  # at every kind of line end, as Jinja does
    fits(len(text) + (1 + len(lines)) * len(pad))
    rest = ("\n" + pad + line if line or blank else "\n" for line in lines)
    body = (pad if first else "") + start + "".join(rest)
    return marked_safe(body) if is_safe(text) else body


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    measure(value)
    if indent is not None and not 0 <= int(indent) <= 16:
        raise too_much("a JSON indent of 0 to 16", repr(indent))
    pair = tuple(separators) if separators is not None else None
    coder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)
    return join_text(coder.iterencode(value))  # piece by piece: deep nests with an indent grow without measure


def short_range(*args: int) -> range:
    out = range(*args)
    # Compared by its ends: len() of a huge range overflows.
    if out[MAX_RANGE:]:
        raise too_much(f"ranges of at most {MAX_RANGE} numbers", "a longer one")
    return out


def raise_exception(message: Any = "") -> None:
    raise RecordError("a record the chat template accepts", got=to_text(message), fix="repair the record's messages")


def binop(operator: str, left: Any, right: Any, plain: Callable[[Any, Any], Any]) -> Any:
    """An arithmetic operator, with the size of its result bounded before it is computed."""
    clock.tick()
    sized = (str, list, tuple)
    if operator == "%" and isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else (right,))
        return spent(plain(left, right))
    if isinstance(left, sized) or isinstance(right, sized):
        if operator == "*":
            thing, times = (left, right) if isinstance(left, sized) else (right, left)
            if isinstance(times, int) and times > 0:
                fits(_size(thing) * times)
        elif operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            escaped = LONGEST_ESCAPE if is_safe(left) or is_safe(right) else 1
            fits(escaped * (_size(left) + _size(right)))
    elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise too_much(f"integers of at most {MAX_BITS} bits", "a larger one")
    return spent(plain(left, right))


def percent(text: str, *values: Any, **named: Any) -> Any:
    """`text % values`, with plain values and small widths only.

    >>> percent("%s is %.2f", "pi", 3.14159)
    'pi is 3.14'
    """
    _check_format(text, (*values, *named.values()))
    return spent(soft_text(text) % (named or values))


class Format:
    """`text.format`, run by Jinja's own safe formatter, with plain values and small widths only."""

    def __init__(self, text: str, safe: Callable[..., str]) -> None:
        self.text, self.safe = text, safe

    def __call__(self, *values: Any, **named: Any) -> str:
        named = {name: value for name, value in named.items() if name not in ("_loop_vars", "_block_vars")}
        _check_format(self.text, (*values, *named.values()))
        return str(spent(self.safe(*values, **named)))


def _check_format(text: str, values: Iterable[Any]) -> None:
    """Refuses widths that could ask for gigabytes, and values that are no data."""
    if _WIDE.search(to_text(text)):
        raise forbidden(f"the format {text[:60]!r}, with a width of more than three digits or from a value")
    escaped = LONGEST_ESCAPE if is_safe(text) else 1
    fits(len(text) + escaped * sum(len(to_text(value)) for value in values) * max(1, text.count("{") + text.count("%")))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else measure(value)


def date_text(date: datetime.date | None, pattern: str) -> str:
    """`date.strftime(pattern)` for the usual parts only: widths, which could ask for gigabytes, are refused.

    >>> date_text(datetime.date(2024, 7, 26), "%d %b %Y")
    '26 Jul 2024'
    """
    if date is None:
        raise UsageError(
            "a date for the chat template, which writes today's with strftime_now",
            got="none: a store or a run must not depend on the day it is made",
            fix='date="2024-07-26", with the date to write; or the variable that the template reads instead, if any',
        )
    moment = date if isinstance(date, datetime.datetime) else datetime.datetime(date.year, date.month, date.day)

    def part(match: re.Match[str]) -> str:
        code = match.group(1)
        if code is None:
            raise forbidden(f"the date pattern {pattern[:60]!r}")
        text = moment.strftime("%" + code[-1])
        return (text.lstrip("0") or "0") if code[0] == "-" else text

    return _DATE_PART.sub(part, to_text(pattern)[:1000])
