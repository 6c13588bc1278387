"""Pictures as SVG, text and shapes only, for light and dark pages.

`curves`: cost over n, both logarithmic, one small chart each. `bars`: a few numbers beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, PER_ROW = 300, 170, 3
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 40, 14, 30


def curves(found: Sequence[dict[str, Any]], runs: str, data: str = "") -> str:
    """All curves in one picture, which keeps data as text."""
    rows = -(-len(found) // PER_ROW)
    width, height = WIDTH * min(PER_ROW, len(found)), HEIGHT * rows + 24
    style = "text{font:10px sans-serif;fill:#777}.t{font-weight:bold}path{fill:none;stroke:#2a78b8;stroke-width:2}"
    style += "circle{fill:#2a78b8}line{stroke:#999;stroke-width:.6}"
    charts = [_chart(one, i % PER_ROW * WIDTH, i // PER_ROW * HEIGHT) for i, one in enumerate(found)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>Cost over size, with the exponent of growth</title>\n<metadata>{escape(data)}</metadata>\n"
        f"<style>{style}</style>\n"
        + "\n".join(charts)
        + f'\n<text x="4" y="{height - 8}">{escape(runs)}</text>\n</svg>\n'
    )


def bars(values: Sequence[tuple[str, float]], title: str, ours: str) -> str:
    """A bar for each value, from 0; those whose name begins with `ours` are coloured."""
    width, line, left, right = 640, 26, 200, 60
    most = max(value for _, value in values)
    style = "text{font:13px sans-serif;fill:#777}.t{font-weight:bold}rect{fill:#999}.o{fill:#2a78b8}"
    parts = [f'<text class="t" x="{left}" y="18">{escape(title)}</text>']
    for i, (name, value) in enumerate(values):
        y, long = 30 + i * line, max(1.0, value / most * (width - left - right))
        kind = ' class="o"' if name.startswith(ours) else ""
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect{kind} x="{left}" y="{y}" width="{long:.1f}" height="{line - 8}" rx="2"/>')
        parts.append(f'<text x="{left + long + 6:.1f}" y="{y + 14}">{value:,.0f}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {38 + len(values) * line}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _chart(one: dict[str, Any], x: int, y: int) -> str:
    points = [(float(n), float(cost)) for n, cost in one["points"]]
    lowest, highest = _decades([cost for _, cost in points])
    first, last = math.log10(points[0][0]), math.log10(points[-1][0])

    def place(n: float, cost: float) -> tuple[float, float]:
        across = (math.log10(n) - first) / max(1e-9, last - first)
        up = (math.log10(max(cost, 1e-12)) - lowest) / (highest - lowest)
        return (
            x + _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            y + HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )

    at = [place(*point) for point in points]
    goal = f", goal: {one['goal']}" if one.get("goal") else ""
    parts = [
        f'<text class="t" x="{x + 4}" y="{y + 14}">{escape(one["title"])}</text>',
        f'<text x="{x + 4}" y="{y + 28}">{escape(one["unit"])}, grows as n^{one["exponent"]:.2f}{escape(goal)}</text>',
    ]
    for power in range(lowest, highest + 1):
        height = place(points[0][0], 10.0**power)[1]
        parts.append(f'<line x1="{x + _LEFT}" x2="{x + WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text x="{x + _LEFT - 6}" y="{height + 3:.1f}" text-anchor="end">{_number(10.0**power)}</text>')
    parts.append('<path d="M' + " L".join(f"{a:.1f} {b:.1f}" for a, b in at) + '"/>')
    for (n, _), (a, b) in zip(points, at, strict=True):
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>')
        parts.append(f'<text x="{a:.1f}" y="{y + HEIGHT - _BOTTOM + 14}" text-anchor="middle">{_number(n)}</text>')
    return "\n".join(parts)


def _decades(costs: Sequence[float]) -> tuple[int, int]:
    lowest = math.floor(math.log10(max(min(costs), 1e-12)))
    return lowest, max(lowest + 1, math.ceil(math.log10(max(*costs, 1e-12))))


def _number(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"10^{math.log10(value):.3g}"
