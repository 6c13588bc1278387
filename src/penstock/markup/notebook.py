"""HTML for a cell of a notebook: with our style, which reaches nothing outside the cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.markup.html import Html, tag
from penstock.markup.style import STYLE
from penstock.markup.visible import excerpt, figure

_MOST_TEXT = 400
# Notebooks have a ground of their own: ours is the card, whatever their theme is.
_INSIDE = "padding: 10px 12px; border: 1px solid var(--line); border-radius: 8px; background: var(--card)"


def cell(content: Html) -> str:
    """The content in a `div` with the style nested in it.

    >>> made = cell(tag("p", "<b>"))
    >>> made.startswith('<div class="penstock">') and "<p>&lt;b&gt;</p>" in made
    True
    """
    inner = re.sub(r"(^|[\s{])(:root|body)\b", r"\1&", STYLE)
    style = f".penstock {{{inner} & {{ {_INSIDE} }} td, th {{ text-align: left }} }}"
    return tag("div", Html(f"<style>{style}</style>"), content, class_="penstock")


def facts_html(facts: Mapping[str, Any]) -> str:
    """A table of names and values; values that are mappings are tables inside it."""
    return cell(_table(facts, 0))


def _table(facts: Mapping[str, Any], depth: int) -> Html:
    rows = [
        tag("tr", tag("th", str(name).replace("_", " "), scope="row"), tag("td", _value(value, depth)))
        for name, value in facts.items()
    ]
    return tag("table", rows)


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping) and depth < 4:
        return _table(value, depth + 1) if value else "none"
    return excerpt(figure(value), _MOST_TEXT)


class Facts(dict[str, Any]):
    """A dict that a notebook shows as a table.

    >>> Facts(rows=3) == {"rows": 3}, "<td>3</td>" in Facts(rows=3)._repr_html_()
    (True, True)
    """

    def _repr_html_(self) -> str:
        return facts_html(self)
