"""Prints the commands' output: data on stdout, notes and errors on stderr, with control characters escaped.

No other module of the command line prints, so that no byte of data reaches a terminal unescaped. Names of tables and
the beginning of notes are coloured on a terminal, unless NO_COLOR is set or TERM is "dumb".
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from penstock.core.errors import PenstockError
from penstock.core.sizes import size
from penstock.markup.visible import figure, visible
from penstock.markup.visible import number_of as count

__all__ = [
    "as_json", "count", "error", "ids", "json_error", "lines", "note", "out", "result", "script", "size",
    "table", "usage",
]  # fmt: skip
_BOLD, _RED, _YELLOW = "1", "1;31", "33"


def out(line: str = "") -> None:
    """Prints one line of the result."""
    print(visible(line))


def lines(text: str) -> None:
    """Prints several lines of the result."""
    for line in text.split("\n"):
        out(line)


def as_json(value: Any) -> None:
    """Prints the result as one JSON value on one line, in printable ASCII."""
    print(json.dumps(value, ensure_ascii=True, default=_plain))


def result(args: Any, facts: dict[str, Any], show: Callable[[dict[str, Any]], None], code: int = 0) -> int:
    """Prints the result of a command, with `--json` as JSON, else by `show`; returns the exit code."""
    (as_json if args.json else show)(facts)
    return code


def note(line: str) -> None:
    """Prints a note on stderr."""
    print(_coloured("penstock:", _YELLOW, sys.stderr), visible(line), file=sys.stderr, flush=True)


def error(problem: PenstockError, in_json: bool = False) -> None:
    """Prints the four parts of an error on stderr."""
    if in_json:
        json_error(type(problem).__name__, problem.expected, got=problem.got, where=problem.where, fix=problem.fix)
        return
    print(_coloured("penstock:", _RED, sys.stderr), visible(str(problem), keep="\n"), file=sys.stderr, flush=True)


def json_error(kind: str, expected: str, **parts: str) -> None:
    """Prints an error as one JSON object on one line of stderr."""
    print(json.dumps({"error": {"kind": kind, "expected": expected} | parts}), file=sys.stderr, flush=True)


def usage(how: str, what: str) -> None:
    """Prints how a command is used, and what was wrong."""
    print(visible(how, keep="\n") + visible(what), file=sys.stderr, flush=True)


def script(text: str) -> None:
    """Prints a program of this package's own for another program to run: nothing is escaped."""
    print(text, end="")


def _coloured(text: str, colour: str, stream: TextIO) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{colour}m{text}\x1b[0m"


def table(rows: Iterable[tuple[str, Any]], indent: str = "") -> None:
    """Prints names and values, one pair per line, values aligned."""
    pairs = [(name, figure(value)) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(indent + _coloured(visible(name.ljust(width)), _BOLD, sys.stdout) + "  " + visible(value))


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
