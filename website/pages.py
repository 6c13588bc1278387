"""Where the pages of this repository are, and how to read their links."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```\s*?$", re.M | re.S)


def change_links(text: str, change: Callable[[str], str]) -> str:
    """Replaces the targets of Markdown links outside of code blocks."""
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_changed(text[at : fence.start()], change), fence[0]]
        at = fence.end()
    return "".join([*parts, _changed(text[at:], change)])


def _changed(text: str, change: Callable[[str], str]) -> str:
    return _LINK.sub(lambda found: f"{found[1]}({change(found[2])})", text)


def title_of(text: str) -> str:
    """The first heading of a page."""
    found = re.search(r"^# +(.+?)\s*$", text, re.M)
    if found is None:
        raise ValueError("a page begins with a heading: # Title")
    return found[1]
