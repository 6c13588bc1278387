"""A flow of boxes from top to bottom as inline SVG: each box with its inputs above it, branches indented.

Positions across are percentages, so the drawing fills any width and its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.markup.html import Html, tag

_GAP, _LINE, _TOP, _INDENT = 22, 17, 20, 5  # pixels, but the last: percent of the width for each level
_CHARACTERS = 50  # of a line that fit at 420 pixels; a tooltip has all of them


@dataclass(frozen=True)
class Box:
    """A box: a title and a figure in its first line, then other lines, then lines that are marked as losses."""

    title: str
    figure: str
    lines: Sequence[str] = ()
    lost: Sequence[str] = ()
    inputs: Sequence[Box] = field(default_factory=tuple)


@dataclass(frozen=True)
class _Placed:
    top: int
    bottom: int
    level: int


def flow(last: Box, title: str) -> Html:
    """Draws `last` and everything above it.

    >>> chart = flow(Box("batch", "2 batches", lost=["2 rows left over"], inputs=[Box("arrays", "10 records")]), "plan")
    >>> chart.count("<rect"), "2 rows left over" in chart
    (2, True)
    """
    parts: list[Html] = []
    end = _place(last, 0, 4, parts)
    return tag("svg", parts, class_="chart flow", role="img", aria_label=title, width="100%", height=end.bottom + 6)


def _place(box: Box, level: int, top: int, parts: list[Html]) -> _Placed:
    """Draws the inputs of a box, then the box below them; a chain is drawn without recursion."""
    chain = [box]
    while len(chain[-1].inputs) == 1:
        chain.append(chain[-1].inputs[0])
    placed: _Placed | None = None
    for each in reversed(chain):
        if len(each.inputs) > 1:
            above = []
            for one in each.inputs:
                above.append(_place(one, level + 1, top, parts))
                top = above[-1].bottom + _GAP
            for end in above:
                _branch(end, top, parts)
        elif placed is not None:
            x = f"{_INDENT * min(level, 8) + 3}%"
            parts.append(tag("line", class_="edge", x1=x, y1=placed.bottom, x2=x, y2=top))
        placed = _box(each, level, top, parts)
        top = placed.bottom + _GAP
    return placed or _Placed(top, top, level)


def _branch(above: _Placed, to: int, parts: list[Html]) -> None:
    """The line from a branch, along its left side, down to the box that combines it with others."""
    side, left = (f"{_INDENT * min(above.level - part, 8) + add}%" for part, add in ((1, 1.5), (0, 0)))
    middle = (above.top + above.bottom) // 2
    parts.append(tag("line", class_="edge", x1=side, y1=middle, x2=left, y2=middle))
    parts.append(tag("line", class_="edge", x1=side, y1=middle, x2=side, y2=to))


def _box(box: Box, level: int, top: int, parts: list[Html]) -> _Placed:
    left = _INDENT * min(level, 8)
    lines = [(line, "") for line in box.lines] + [(line, "lost ") for line in box.lost]
    height = 12 + _LINE * (1 + len(lines))
    x, end = f"{left + 2}%", "98%"
    texts = [
        tag("text", _short(box.title, 24), class_="start strong", x=x, y=top + _TOP),
        tag("text", box.figure, class_="end count", x=end, y=top + _TOP),
    ]
    for number, (line, kind) in enumerate(lines, start=1):
        texts.append(tag("text", _short(line), class_=f"{kind}start", x=x, y=top + _TOP + _LINE * number))
    about = ". ".join([f"{box.title}: {box.figure}", *box.lines, *box.lost])
    rect = tag("rect", class_="box", x=f"{left}%", y=top, width=f"{100 - left}%", height=height, rx=6)
    parts.append(tag("g", tag("title", about), rect, texts))
    return _Placed(top, top + height, level)


def _short(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
