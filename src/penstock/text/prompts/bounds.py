"""What a template may compute, each with the size of its result bounded before it is computed, and the clock they read.

Limits: 64 KB of template; per rendering 1 s, 4 M characters in one value and 128 M in all values it ever makes, so
that memory is bounded too.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock._errors import LimitError, RecordError
from penstock._optional import need

TEMPLATE_BYTES = 64 << 10
RENDER_SECONDS = 1.0
RENDER_CHARS = 4 << 20
RENDER_TOTAL = 128 << 20
MAX_NODES = 200_000
MAX_RANGE = 10_000
MAX_BITS = 4096

_DATE_PART = re.compile(r"%(-?[aAbBdHIjmMpSuwyY%])|%")


class _Clock(threading.local):
    deadline = 0.0
    spent = 0

    def start(self, seconds: float) -> None:
        self.deadline, self.spent = time.monotonic() + seconds, 0

    def spend(self, size: int) -> None:
        self.spent += size
        if self.spent > RENDER_TOTAL:
            raise too_much(f"a template that makes at most {RENDER_TOTAL} characters in all", "it makes more")

    def tick(self) -> bool:
        if time.monotonic() > self.deadline:
            raise too_much(f"a template that renders within {RENDER_SECONDS:g} s", "it runs longer")
        return True


clock = _Clock()


def too_much(expected: str, got: str) -> LimitError:
    return LimitError(expected, got=got, fix="use a template you trust; no chat template needs more")


def check_record(values: Any) -> None:
    """Refuses a record larger than anything a template may write."""
    try:
        measure(values)
    except LimitError as error:
        raise LimitError(
            f"a record of at most {RENDER_CHARS} characters and {MAX_NODES} parts for a chat template",
            got="a larger one",
            fix="cut the record into shorter ones, or drop it",
        ) from error


def measure(value: Any) -> int:
    """Size of a value written out as text, an upper bound; stops at the limit, so a nest of shared lists is cheap too.

    >>> measure(["ab", {"c": 1}]) < 200
    True
    """
    total, nodes, stack = 0, 0, [value]
    while stack:
        item = stack.pop()
        nodes += 1
        if isinstance(item, str):
            total += len(item) + 8
        elif isinstance(item, Mapping):
            total += 8 * len(item)
            if len(item) <= MAX_NODES:
                stack.extend(item.keys())
                stack.extend(item.values())
        elif isinstance(item, list | tuple):
            total += 4 * len(item)
            if len(item) <= MAX_NODES:
                stack.extend(item)
        else:
            total += 24
        if total > RENDER_CHARS or nodes + len(stack) > MAX_NODES:
            raise too_much(f"values of at most {RENDER_CHARS} characters and {MAX_NODES} parts", "a larger one")
    return total


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else measure(value)


def _fits(length: int) -> None:
    if length > RENDER_CHARS:
        raise too_much(f"text of at most {RENDER_CHARS} characters", f"{length} characters")
    clock.spend(length)


def spent(value: Any) -> Any:
    """`value`, its size counted."""
    if isinstance(value, str):
        clock.spend(len(value))
    elif isinstance(value, list | tuple | dict):
        clock.spend(8 * len(value))
    return value


def split(method: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    """One of text's split methods, for texts that cannot fall into too many pieces."""
    text: str = getattr(method, "__self__", "")
    if len(text) > MAX_NODES:
        sep = args[0] if args else kwargs.get("sep")
        marks = [sep] if isinstance(sep, str) and sep else [" ", "\n", "\t", "\r"]
        if sum(text.count(mark) for mark in marks) > MAX_NODES:
            raise too_much(f"text split in at most {MAX_NODES} pieces", "more")
    return method(*args, **kwargs)


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
        if total > RENDER_CHARS:
            _fits(total)
    _fits(total)
    return glue.join(texts)


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


def forbidden(what: str) -> RecordError:
    return RecordError("a template that only formats messages", got=what, fix="use a template you trust")


def replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = to_text(text), to_text(old), to_text(new)
    times = text.count(old) if count is None or count < 0 else min(int(count), text.count(old))
    _fits(len(text) + times * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else int(count))


def join(value: Iterable[Any], glue: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = [item[attribute] for item in value if isinstance(item, Mapping)]
    return join_text(value, to_text(glue))


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), 65)
    if len(pad) > 64:
        raise too_much("an indent of at most 64 characters", "a wider one")
    lines = to_text(text).split("\n")
    _fits(len(text) + len(lines) * len(pad))
    body = [pad + line if (line or blank) and (i or first) else line for i, line in enumerate(lines)]
    return "\n".join(body)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    measure(value)
    if indent is not None and not 0 <= int(indent) <= 16:
        raise too_much("a JSON indent of 0 to 16", repr(indent))
    pair = tuple(separators) if separators is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


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
        raise forbidden("formatting text with %")
    if isinstance(left, sized) or isinstance(right, sized):
        if operator == "*":
            thing, times = (left, right) if isinstance(left, sized) else (right, left)
            if isinstance(times, int) and times > 0:
                _fits(_size(thing) * times)
        elif operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            _fits(_size(left) + _size(right))
    elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise too_much(f"whole numbers of at most {MAX_BITS} bits", "a larger one")
    return plain(left, right)


def date_text(date: datetime.date, pattern: str) -> str:
    """`date.strftime(pattern)` for the usual parts only: widths, which could ask for gigabytes, are refused.

    >>> date_text(datetime.date(2024, 7, 26), "%d %b %Y")
    '26 Jul 2024'
    """
    moment = datetime.datetime(date.year, date.month, date.day)

    def part(match: re.Match[str]) -> str:
        code = match.group(1)
        if code is None:
            raise forbidden(f"the date pattern {pattern[:60]!r}")
        text = moment.strftime("%" + code[-1])
        return (text.lstrip("0") or "0") if code[0] == "-" else text

    return _DATE_PART.sub(part, to_text(pattern)[:1000])
