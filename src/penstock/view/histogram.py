"""A histogram of lengths as inline SVG, with bins that double in width."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 250, 8, 42, 22


def bins(lengths: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Returns (from, to, count) of each bin: 0, 1, 2-3, 4-7, 8-15... from the shortest to the longest length.

    >>> bins(np.array([0, 1, 3, 3, 9]))
    [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)]
    """
    if not len(lengths):
        return []
    # The exponent of a float is exact for integers up to 2**53; 0 has exponent 0, 1 has 1.
    _, exponents = np.frexp(lengths.astype(np.float64))
    first, last = int(exponents.min()), int(exponents.max())
    counts = np.bincount(exponents - first, minlength=last - first + 1).tolist()
    found = []
    for exponent, count in zip(range(first, last + 1), counts, strict=True):
        low = 0 if exponent == 0 else 1 << (exponent - 1)
        found.append((low, max(low, (1 << exponent) - 1), int(count)))
    return found


def svg(lengths: NDArray[np.int64], unit: str) -> str:
    """Draws the histogram; every bar has its numbers in a tooltip and above it."""
    found = bins(lengths)
    if not found:
        return ""
    most = max(count for _, _, count in found) or 1
    step = min((WIDTH - 2 * LEFT) / len(found), 110)
    left = (WIDTH - step * len(found)) / 2
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    label = escape(f"number of documents by number of {unit}")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    for at, (low, high, count) in enumerate(found):
        height = max(1.5, room * count / most) if count else 0
        x, middle = left + at * step, left + (at + 0.5) * step
        label = escape(f"{low:,} to {high:,} {unit}: {count:,} documents")
        parts.append(
            f'<g><title>{label}</title><rect class="hit" x="{x:.1f}" y="0" width="{step:.1f}" height="{floor}"/>'
            f'<rect class="bar" x="{x + step * 0.06:.1f}" y="{floor - height:.1f}" width="{step * 0.88:.1f}" '
            f'height="{height:.1f}" rx="2"/>'
            f'<text class="count" x="{middle:.1f}" y="{floor - height - 5:.1f}">{_count(count, len(found))}</text>'
            f'<text class="tick" x="{middle:.1f}" y="{floor + 16}">{_short(low)}</text></g>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{WIDTH - LEFT}" y2="{floor}"/>')
    name = escape(f"{unit} in a document, at least; bins double")
    parts.append(f'<text class="name" x="{WIDTH / 2}" y="{HEIGHT - 3}">{name}</text></svg>')
    return "".join(parts)


def summary(lengths: NDArray[np.int64]) -> list[tuple[str, Any]]:
    """Returns shortest, quartiles, mean, 99th percentile and longest."""
    if not len(lengths):
        return []
    low, first, middle, third, top, high = np.percentile(lengths, [0, 25, 50, 75, 99, 100], method="nearest").tolist()
    names = ("shortest", "25% below", "50% below", "mean", "75% below", "99% below", "longest")
    return list(zip(names, (low, first, middle, round(float(lengths.mean()), 1), third, top, high), strict=True))


def _count(value: int, bars: int) -> str:
    """Formats a count, in full if there are few bars; empty for an empty bin."""
    return "" if not value else f"{value:,}" if bars <= 12 else _short(value)


def _short(value: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return str(value)
