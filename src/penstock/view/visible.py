"""Makes text safe to look at: whatever could move a cursor, hide or reorder letters is shown as an escape.

Data is hostile: an escape sequence in a document must not reach the terminal of someone who looks at it, and a
right-to-left mark must not turn a line around. One pass of a C loop where the text is harmless.
"""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    """The text with every character that is not plainly printable written as an escape; those in `keep` stay.

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


def excerpt(text: str, most: int, keep: str = "") -> str:
    """The beginning of a text, made visible, and how much more there is.

    >>> excerpt("abcdefgh", 4)
    'abcd… (8 characters)'
    """
    if len(text) <= most:
        return visible(text, keep)
    return f"{visible(text[:most], keep)}… ({len(text):,} characters)"
