"""Reads the pages: their code blocks, links, headings and shell commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docs" / "llms.txt"])

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```\s*$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # pictures too


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the words after it, its line in the page and its text."""

    language: str
    marks: tuple[str, ...]
    line: int
    text: str

    @property
    def runs(self) -> bool:
        """Python runs unless it is called a fragment; a console runs only when asked."""
        if self.language == "python":
            return "fragment" not in self.marks
        return self.language == "console" and "run" in self.marks

    @property
    def shows_output(self) -> bool:
        """Whether this is what the block before it prints."""
        return self.language == "text" and "output" in self.marks

    def commands(self) -> list[str]:
        """The lines a reader types, continuation lines joined."""
        text = self.text.replace("\\\n", " ")
        return [line.removeprefix("$ ").strip() for line in text.splitlines() if line.startswith("$ ")]


def blocks(text: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(text):
        words = match[1].split()
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(words[0] if words else "", tuple(words[1:]), line, match[2]))
    return found


def links(text: str) -> list[str]:
    return [
        link for link in _LINK.findall(_FENCE.sub("", text)) if "://" not in link and not link.startswith("mailto:")
    ]


def anchors(text: str) -> set[str]:
    """The names that headings can be linked by."""
    headings = re.findall(r"^#+ +(.+?)\s*$", _FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
