"""Builds HTML in which every text is escaped unless it is already `Html`.

    tag("p", "a < b", tag("b", 12345), class_="note")    # <p class="note">a &lt; b<b>12,345</b></p>

Characters that hide or reorder text are shown as escapes (`visible`). `Html(...)` takes text as HTML: it is for
constants of our own, never for anything that contains data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from penstock.markup.visible import figure, visible

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source"}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def text(value: Any, keep: str = "") -> Html:
    """Formats a value for people and escapes it; control characters except those in `keep` are shown as escapes.

    >>> text("<b>\\x1b</b>"), text(12345), text(tag("b", "x"))
    ('&lt;b&gt;\\\\x1b&lt;/b&gt;', '12,345', '<b>x</b>')
    """
    return value if isinstance(value, Html) else Html(escape(visible(figure(value), keep), quote=True))


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Joins values, each escaped unless it is Html; `None` is left out.

    >>> join(["a<", None, tag("br")])
    'a&lt;<br>'
    """
    return Html(escape(between).join(text(part) for part in parts if part is not None))


def tag(name: str, /, *children: Any, keep: str = "", **attributes: Any) -> Html:
    """Makes an element. Children are values, Html, or lists of them; `None` is left out.

    Attributes: `class_` is `class`, `data_step` is `data-step`; `True` is an attribute without a value; `None` and
    `False` are left out. `keep` names control characters that stay as they are, such as the newlines of a `pre`.

    >>> tag("a", "x & y", href="?q=\\"", class_="link", hidden=True, title=None)
    '<a href="?q=&quot;" class="link" hidden>x &amp; y</a>'
    >>> tag("ul", [tag("li", n) for n in (1, 2)])
    '<ul><li>1</li><li>2</li></ul>'
    """
    head = name
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(attribute) or attribute.lower().startswith("on"):
            raise ValueError(f"expected the name of an attribute, got {key!r}")
        if value is True:
            head += f" {attribute}"
        elif value is not None and value is not False:
            head += f' {attribute}="{escape(visible(str(value)), quote=True)}"'
    if name in _VOID:
        return Html(f"<{head}>")
    return Html(f"<{head}>{''.join(_child(child, keep) for child in children)}</{name}>")


def _child(child: Any, keep: str) -> str:
    if child is None:
        return ""
    if isinstance(child, list | tuple):
        return "".join(_child(part, keep) for part in child)
    return text(child, keep)


def section(title: str, *body: Any) -> Html:
    """A part of a page with a heading."""
    return tag("section", tag("h2", title), *body)
