"""Makes text safe to display: characters that move a cursor, hide or reorder text are shown as escapes.

Data is hostile: an escape sequence or a right-to-left mark in a document must not reach a terminal. Costs one check in
C if the text is harmless.
"""

from __future__ import annotations

from typing import Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    """Escapes every character that is not printable, except those in `keep`.

    >>> visible("red \\x1b[31m, turned \\u202e, two\\nlines")
    'red \\\\x1b[31m, turned \\\\u202e, two\\\\nlines'
    >>> visible("a\\nb", keep="\\n") == "a\\nb"
    True
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def excerpt(text: str, most: int) -> str:
    """Returns the beginning of a text, escaped, and its length if it is longer.

    >>> excerpt("abcdefgh", 4)
    'abcd… (8 characters)'
    """
    if len(text) <= most:
        return visible(text)
    return f"{visible(text[:most])}… ({len(text):,} characters)"


def figure(value: Any) -> str:
    """Formats a value for people.

    >>> figure(1234567), figure(1234567.8), figure(0.25), figure(True), figure(None), figure(["a", "b"])
    ('1,234,567', '1,234,568', '0.25', 'yes', 'unknown', 'a, b')
    """
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(figure(v) for v in value)
    return str(value)


def short(value: float) -> str:
    """Formats a number in few characters.

    >>> short(1234), short(999), short(2_500_000), short(0.125), short(3.0)
    ('1.23k', '999', '2.5M', '0.125', '3')
    """
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def number_of(number: int, what: str) -> str:
    """A number of things, in the singular for one.

    >>> number_of(1, "shard"), number_of(2_000, "shard"), number_of(0, "batch")
    ('1 shard', '2,000 shards', '0 batches')
    """
    ending = "es" if what.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {what}{ending if number != 1 else ''}"


def measure(length: float, unit: str) -> str:
    """A length with its unit, in the singular for one.

    >>> measure(1, "characters"), measure(1_000_000, "tokens"), measure(0.52, "seconds")
    ('1 character', '1,000,000 tokens', '0.52 seconds')
    """
    first, _, rest = unit.partition(" ")
    shown = f"{length:,}" if length == int(length) else f"{length:,.6g}"
    return f"{shown.removesuffix('.0')} {first[: -1 if length == 1 else None]}{' ' if rest else ''}{rest}"
