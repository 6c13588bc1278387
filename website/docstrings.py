"""Reads a docstring: what it says, its arguments, its example."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field


@dataclass
class Docstring:
    """`about` is Markdown without the arguments and the examples."""

    about: str = ""
    arguments: list[tuple[str, str]] = field(default_factory=list)  # names as written, and the text
    example: str = ""

    @property
    def first(self) -> str:
        """The first sentence."""
        paragraph = " ".join(self.about.partition("\n\n")[0].split())
        return re.split(r"(?<=[.:])\s+(?=[A-Z])", paragraph, maxsplit=1)[0]


def read(value: object) -> Docstring:
    """Paragraphs, an `Args:` section and doctests, in any order."""
    made = Docstring()
    about: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", inspect.getdoc(value) or ""):
        if paragraph.lstrip().startswith(">>>"):
            made.example += ("\n\n" if made.example else "") + _examples_only(paragraph)
        elif paragraph.startswith("Args:"):
            made.arguments += _arguments(paragraph)
        elif paragraph.strip():
            text, mark, example = paragraph.partition("\n>>>")
            about.append(_indented_as_code(text))
            made.example += mark.strip("\n") + example
    made.about = "\n\n".join(about)
    return made


def _examples_only(paragraph: str) -> str:
    """Without the marks for doctest, which say nothing to a reader."""
    return inspect.cleandoc(re.sub(r"[ \t]*# doctest:.*$", "", paragraph, flags=re.M))


def _arguments(section: str) -> list[tuple[str, str]]:
    """`name: text` lines; lines that are indented further continue the text."""
    found: list[tuple[str, str]] = []
    for line in section.splitlines()[1:]:
        start = re.match(r"    ([\w*][\w*, ]*): (.*)", line)
        if start:
            found.append((start[1], start[2]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def _indented_as_code(text: str) -> str:
    """A paragraph that is indented as a block is shown as it is."""
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + inspect.cleandoc("\n" + text) + "\n```"
    return text
