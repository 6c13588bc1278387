"""Charts as inline SVG: histograms, bars and lines. No scripts, no style attributes; colours are classes of `style.py`.

Positions across are percentages, so a chart fills any width and its text keeps its size: readable at 420 pixels. Every
bar and line has its numbers in a tooltip (`title`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.markup.html import Html, tag
from penstock.markup.visible import measure, short

HEIGHT, BOTTOM, TOP = 220, 42, 34  # pixels; the axis and its labels are below, counts and the cut's label above
_TICKS = 6  # labels that fit below a chart of 420 pixels
_COUNTS = 8  # bars that have room for their counts
_LEFT = 12  # percent of the width for the labels of a line chart
Bin = tuple[float, float, int]  # from, to (both included), count


def log_bins(values: NDArray[Any]) -> list[Bin]:
    """Returns (from, to, count) of each bin: 0, 1, 2-3, 4-7, 8-15... from the shortest to the longest length.

    >>> log_bins(np.array([0, 1, 3, 3, 9]))
    [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)]
    """
    if not len(values):
        return []
    # The exponent of a float is exact for integers up to 2**53; 0 has exponent 0, 1 has 1.
    _, exponents = np.frexp(np.floor(np.maximum(values, 0)).astype(np.float64))
    first, last = int(exponents.min()), int(exponents.max())
    counts = np.bincount(exponents - first, minlength=last - first + 1).tolist()
    found: list[Bin] = []
    for exponent, count in zip(range(first, last + 1), counts, strict=True):
        low = 0 if exponent == 0 else 1 << (exponent - 1)
        found.append((low, max(low, (1 << exponent) - 1), int(count)))
    return found


def linear_bins(values: NDArray[Any], most: int = 24) -> list[Bin]:
    """Returns (from, to, count) of at most `most` bins of one width, which is 1, 2 or 5 times a power of ten.

    >>> linear_bins(np.array([41, 60, 60, 101]), most=8)
    [(40, 49, 1), (50, 59, 0), (60, 69, 2), (70, 79, 0), (80, 89, 0), (90, 99, 0), (100, 109, 1)]
    """
    if not len(values):
        return []
    low, high = float(values.min()), float(values.max())
    integers = bool(np.issubdtype(np.asarray(values).dtype, np.integer))
    width = _nice((high - low + integers) / most) if high > low else 1.0
    width = max(width, 1.0) if integers else width
    first = int(np.floor(low / width))
    numbers = np.floor(np.asarray(values, np.float64) / width).astype(np.int64) - first
    counts = np.bincount(numbers).tolist()
    edges = [(first + i) * width for i in range(len(counts) + 1)]
    if integers:
        return [(int(a), int(b) - 1, n) for a, b, n in zip(edges, edges[1:], counts, strict=False)]
    return [(round(a, 9), round(b, 9), n) for a, b, n in zip(edges, edges[1:], counts, strict=False)]


def _nice(width: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... (and 0.5, 0.2, ...) that is at least `width`."""
    power = 10.0 ** np.floor(np.log10(width))
    return float(next(power * step for step in (1, 2, 5, 10) if power * step >= width * (1 - 1e-9)))


def histogram(
    values: NDArray[Any], unit: str, *, what: str = "documents", log: bool = True, cut: float | None = None
) -> Html:
    """Draws how many of `what` have how many of `unit`; empty without values.

    Args:
        values: one number per thing.
        unit: what the numbers count, in the labels: "tokens", "seconds".
        what: the things, in the plural.
        log: bins that double in width, or else bins of one width.
        cut: draws a vertical line at this value, such as the length of a window.

    >>> chart = histogram(np.array([1, 5, 9]), "tokens", cut=4)
    >>> "cut at 4 tokens: 2 documents are longer" in chart
    True
    """
    found = log_bins(values) if log else linear_bins(values)
    if not found:
        return Html("")
    most = max(count for _, _, count in found) or 1
    step = 100 / len(found)
    floor = HEIGHT - BOTTOM
    every = -(-len(found) // _TICKS)
    parts = []
    for at, (low, high, count) in enumerate(found):
        height = max(1.5, (floor - TOP) * count / most) if count else 0.0
        middle = f"{(at + 0.5) * step:.3f}%"
        name = f"{low:,} to {high:,} {unit}" if low != high else measure(low, unit)
        shown = len(found) <= _COUNTS and count
        parts.append(
            tag(
                "g",
                tag("title", f"{name}: {measure(count, what)}"),
                _rect("hit", at * step, 0, step, floor),
                _rect("bar", (at + 0.06) * step, floor - height, step * 0.88, height),
                tag("text", short(count), class_="count", x=middle, y=f"{floor - height - 5:.1f}") if shown else None,
                tag("text", short(low), class_="tick", x=middle, y=floor + 16) if at % every == 0 else None,
            )
        )
    if cut is not None:
        longer = _above(values, cut)
        said = f"{measure(longer, what)} {'is' if longer == 1 else 'are'} longer"
        parts.append(_cut(found, cut, f"cut at {short(cut)} {unit}: {said}"))
    parts.append(tag("line", class_="axis", x1="0%", y1=floor, x2="100%", y2=floor))
    about = f"{unit} in each, at least; bins double in width" if log else f"{unit} in each, at least"
    parts.append(tag("text", about, class_="name", x="50%", y=HEIGHT - 5))
    return _svg(f"number of {what} by number of {unit}", HEIGHT, parts)


def _above(values: NDArray[Any], cut: float) -> int:
    return int((values > cut).sum())


def _cut(bins: Sequence[Bin], cut: float, label: str) -> Html:
    """The vertical line at `cut`, at its place within its bin; at an end of the chart if it lies outside."""
    at = float(len(bins))
    for number, (low, high, _) in enumerate(bins):
        after = bins[number + 1][0] if number + 1 < len(bins) else high + (high - low or 1)
        if cut < after:
            at = number + max(0.0, (cut - low) / (after - low))
            break
    x = f"{100 * at / len(bins):.3f}%"
    side = "end" if at > len(bins) / 2 else "start"
    line = tag("line", class_="cut", x1=x, y1=18, x2=x, y2=HEIGHT - BOTTOM)
    return tag("g", tag("title", label), line, tag("text", label, class_=f"cut-label {side}", x=x, y=12))


def bars(items: Sequence[tuple[Any, float]], unit: str = "", *, title: str = "", most: int = 40) -> Html:
    """Draws one horizontal bar per name with its number; names beyond `most` are summed up in a last bar.

    >>> "cat: 3 images" in bars([("cat", 3), ("dog", 1)], "images")
    True
    """
    shown = list(items[:most])
    if len(items) > most:
        shown.append((f"{len(items) - most:,} others", sum(value for _, value in items[most:])))
    if not shown:
        return Html("")
    top = max(value for _, value in shown) or 1
    parts = []
    for at, (name, value) in enumerate(shown):
        y, number = at * 34, short(value)
        label = name if len(str(name)) <= 60 else f"{str(name)[:60]}…"
        width = max(0.3, 100 * value / top) if value else 0.0
        parts.append(
            tag(
                "g",
                tag("title", f"{name}: {number} {unit}".rstrip()),
                _rect("hit", 0, y, 100, 34),
                tag("text", label, class_="start", x="0%", y=y + 13),
                tag("text", number, class_="count end", x="100%", y=y + 13),
                _rect("track", 0, y + 18, 100, 8),
                _rect("bar", 0, y + 18, width, 8),
            )
        )
    return _svg(title or f"{unit} by name", len(shown) * 34, parts)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_unit: str, y_unit: str, *, title: str = "") -> Html:
    """Draws one line per name through its (x, y) points, with a legend; empty without points.

    >>> chart = lines({"web": [(0, 0.5), (100, 0.25)]}, "step", "share")
    >>> "web" in chart and "polyline" in chart
    True
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return Html("")
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    low, high = min(0.0, *ys) if len(ys) > 1 else min(0.0, ys[0]), max(ys)
    first, last = min(xs), max(xs)
    high, last = (high if high > low else low + 1), (last if last > first else first + 1)
    floor = HEIGHT - BOTTOM
    room = floor - TOP
    curves, legend = [], []
    for number, (name, line) in enumerate(series.items()):
        drawn = " ".join(
            f"{1000 * (x - first) / (last - first):.1f},{1000 * (high - y) / (high - low):.1f}" for x, y in line
        )
        kind = f"line-{number % 6}"
        curves.append(tag("polyline", tag("title", name), class_=kind, points=drawn))
        legend.append(tag("span", tag("svg", _rect(f"{kind} key", 0, 4, 100, 4), width=14, height=12), name))
    inner = tag(
        "svg", curves, x=f"{_LEFT}%", y=TOP, width=f"{100 - _LEFT - 2}%", height=room,
        viewBox="0 0 1000 1000", preserveAspectRatio="none", overflow="visible",
    )  # fmt: skip
    marks = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + room * (1 - share)
        marks.append(tag("line", class_="axis", x1=f"{_LEFT}%", y1=f"{y:.1f}", x2="98%", y2=f"{y:.1f}"))
        marks.append(tag("text", short(low + share * (high - low)), class_="end", x=f"{_LEFT - 1}%", y=f"{y + 4:.1f}"))
        side = "start" if share == 0 else "end" if share == 1 else "middle"
        x = f"{_LEFT + share * (98 - _LEFT):.2f}%"
        marks.append(tag("text", short(first + share * (last - first)), class_=side, x=x, y=floor + 16))
    names = [tag("text", x_unit, class_="name", x="50%", y=HEIGHT - 5), tag("text", y_unit, class_="start", x=0, y=14)]
    drawing = _svg(title or f"{y_unit} by {x_unit}", HEIGHT, [*marks, inner, *names])
    return tag("figure", drawing, tag("figcaption", legend, class_="legend") if len(series) > 1 else None)


def summary(values: NDArray[Any]) -> list[tuple[str, Any]]:
    """Returns shortest, quartiles, mean, 99th percentile and longest."""
    if not len(values):
        return []
    low, first, middle, third, top, high = np.percentile(values, [0, 25, 50, 75, 99, 100], method="nearest").tolist()
    names = ("shortest", "25% below", "50% below", "mean", "75% below", "99% below", "longest")
    return list(zip(names, (low, first, middle, round(float(values.mean()), 1), third, top, high), strict=True))


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Html:
    return tag("rect", class_=kind, x=f"{x:.3f}%", y=f"{y:.1f}", width=f"{width:.3f}%", height=f"{height:.1f}")


def _svg(label: str, height: int, parts: Sequence[Html]) -> Html:
    return tag("svg", parts, class_="chart", role="img", aria_label=label, width="100%", height=height)
