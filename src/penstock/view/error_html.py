"""An error as HTML: what was expected, what came, where, and what to do."""

from __future__ import annotations

from penstock.core.errors import PenstockError
from penstock.markup.html import Html, tag


def error_table(error: PenstockError) -> Html:
    """The four parts of an error, those that it has.

    >>> "expected</th><td>a number" in error_table(PenstockError("a number", got="'x'"))
    True
    """
    parts = [("expected", error.expected), ("got", error.got), ("where", error.where), ("fix", error.fix)]
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in parts if value]
    return tag("table", rows)
