"""The charts of a page as PNG files, drawn by resvg (a small Rust library with wheels; the extra `png`)."""

from __future__ import annotations

import re

from penstock.core.errors import DataError
from penstock.core.optional import need
from penstock.markup.html import Html
from penstock.markup.style import STYLE

WIDTH = 860  # pixels of a chart; drawn at twice that
_SIZE = re.compile(r'width="100%" height="(\d+)"')
_INNER = re.compile(
    r'<svg x="([\d.]+)%" y="([\d.]+)" width="([\d.]+)%" height="([\d.]+)" viewBox[^>]*>(.*?)</svg>', re.S
)
_POINTS = re.compile(r'points="([^"]*)"')
_NAME = re.compile(r'aria-label="([^"]*)"')


def charts_of(html: str) -> list[tuple[str, str]]:
    """The charts of a page that we wrote: a short name, and the SVG as a file of its own."""
    found: list[tuple[str, str]] = []
    for number, svg in enumerate(_svgs(html), start=1):
        size, label = _SIZE.search(svg), _NAME.search(svg)
        if size is None:
            continue
        height = int(size.group(1))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {WIDTH + 16} {height + 16}"'
        word = re.sub(r"[^a-z0-9]+", "-", (label.group(1) if label else "chart").lower()).strip("-")[:40]
        body = _INNER.sub(_flat, svg.replace(size.group(0), f'width="{WIDTH}" height="{height}"', 1))
        found.append((f"{number:02}-{word}", f"{head}>{body}</svg>"))
    return found


def _flat(inner: re.Match[str]) -> str:
    """Lines of a stretched drawing in pixels: resvg would stretch their width too."""
    x, y, width, height = (float(value) for value in inner.groups()[:4])

    def moved(points: re.Match[str]) -> str:
        pairs = (pair.split(",") for pair in points.group(1).split())
        drawn = (
            f"{(x + width * float(a) / 1000) * WIDTH / 100:.1f},{y + height * float(b) / 1000:.1f}" for a, b in pairs
        )
        return f'points="{" ".join(drawn)}"'

    return f"<g>{_POINTS.sub(moved, inner.group(5))}</g>"


def _svgs(html: str) -> list[str]:
    """Every outermost chart; charts hold nested `svg` elements."""
    found, at = [], 0
    while (start := html.find('<svg class="chart', at)) >= 0:
        depth, end = 0, start
        for mark in re.compile(r"<svg\b|</svg>").finditer(html, start):
            depth += 1 if mark.group() == "<svg" else -1
            if not depth:
                end = mark.end()
                break
        if end == start:
            break
        found.append(html[start:end])
        at = end
    return found


def png_of(svg: str) -> bytes:
    """Draws one chart, in the colours of the light scheme."""
    resvg = need("resvg_py", extra="png", purpose="for --png")
    try:
        data: bytes = bytes(
            resvg.svg_to_bytes(
                svg_string=svg,
                style_sheet=_plain_style(),
                background="#ffffff",
                zoom=2,
                sans_serif_family="DejaVu Sans",
            )
        )
    except ValueError as error:
        raise DataError("a chart that resvg can draw", got=str(error)[:200]) from error
    return data


def _plain_style() -> Html:
    """The style without variables, which resvg does not know."""
    light = STYLE.partition("@media")[0]
    names = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", light))
    text = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^}]*\})*[^}]*\}", "", STYLE)
    text = re.sub(r"var\((--[\w-]+)\)", lambda m: names.get(m.group(1), "#000"), text)
    return Html(text.replace("system-ui, sans-serif", "sans-serif"))
