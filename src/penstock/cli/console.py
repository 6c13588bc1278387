"""Prints the commands' output: data on stdout, notes and errors on stderr, with control characters escaped.

No other module of the command line prints, so that no byte of data reaches a terminal unescaped. No colours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.core.errors import PenstockError
from penstock.view.visible import figure, visible


def out(line: str = "") -> None:
    """Prints one line of the result."""
    print(visible(line))


def as_json(value: Any) -> None:
    """Prints the result as one JSON value on one line, in printable ASCII."""
    print(json.dumps(value, ensure_ascii=True, default=_plain))


def result(args: Any, facts: dict[str, Any], show: Callable[[dict[str, Any]], None], code: int = 0) -> int:
    """Prints the result of a command, with `--json` as JSON, else by `show`; returns the exit code."""
    (as_json if args.json else show)(facts)
    return code


def note(line: str) -> None:
    """Prints a note on stderr."""
    print(visible(f"penstock: {line}"), file=sys.stderr, flush=True)


def error(problem: PenstockError) -> None:
    """Prints the four parts of an error on stderr."""
    print(visible(f"penstock: {problem}", keep="\n"), file=sys.stderr, flush=True)


def table(rows: Iterable[tuple[str, Any]], indent: str = "") -> None:
    """Prints names and values, one pair per line, values aligned."""
    pairs = [(name, figure(value)) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        out(f"{indent}{name:<{width}}  {value}")


def size(count: float) -> str:
    """Formats a number of bytes for people.

    >>> size(999), size(12_345_678)
    ('999 B', '12.3 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    place = 1 + (count >= 1e6) + (count >= 1e9) + (count >= 1e12)
    return f"{count / 1000**place:.1f} {('kB', 'MB', 'GB', 'TB')[place - 1]}"


def count(number: int, what: str) -> str:
    """Formats a number of things.

    >>> count(1, "shard"), count(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def ids(values: Sequence[int], most: int = 12) -> str:
    """Formats token ids, leaving out the middle if there are many.

    >>> ids(range(20), most=6)
    '[0, 1, 2, 3, … 18, 19] (20)'
    """
    numbers = [int(v) for v in values]
    if len(numbers) <= most:
        return f"[{', '.join(map(str, numbers))}]"
    head, tail = ", ".join(map(str, numbers[: most - 2])), ", ".join(map(str, numbers[-2:]))
    return f"[{head}, … {tail}] ({len(numbers):,})"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
