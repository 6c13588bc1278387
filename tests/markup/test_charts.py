"""Charts: every value is in a bin, the cut line is where it says, and nothing of the data becomes markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from penstock.markup import charts

HOSTILE = "</svg><script>alert(1)</script>\"'\x1b\u202e"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_bins_hold_every_value_once() -> None:
    draw = np.random.default_rng(7)
    for size in (1, 2, 7, 500):
        for high in (1, 5, 100, 10**6):
            lengths = draw.integers(0, high, size)
            for bins in (charts.log_bins(lengths), charts.linear_bins(lengths)):
                assert sum(count for _, _, count in bins) == size
                for low, top, count in bins:
                    assert count == ((lengths >= low) & (lengths <= top)).sum()
            assert len(charts.linear_bins(lengths)) <= 25
        seconds = draw.random(size) * 3
        assert sum(count for _, _, count in charts.linear_bins(seconds)) == size


@pytest.mark.parametrize("log", [True, False])
def test_the_cut_line_separates_what_is_longer(log: bool) -> None:
    lengths = np.arange(41, 102)
    for cut in (1, 41, 63.5, 64, 101, 5000):
        svg = charts.histogram(lengths, "tokens", log=log, cut=cut)
        assert f"{(lengths > cut).sum()} documents are longer" in svg
        (line,) = [e for e in parsed(svg).iter("line") if e.get("class") == "cut"]
        at = float(line.attrib["x1"].rstrip("%"))
        bins = charts.log_bins(lengths) if log else charts.linear_bins(lengths)
        number = sum(low <= cut for low, _, _ in bins) - 1
        if cut == 5000:
            assert at == 100
        else:
            assert max(0, number) * 100 / len(bins) - 0.01 <= at <= (number + 1) * 100 / len(bins) + 0.01


def test_charts_fill_any_width_and_hold_no_script_or_style() -> None:
    numbers = np.arange(9)
    drawn = [
        charts.histogram(numbers, HOSTILE, what=HOSTILE, cut=3),
        charts.bars([(HOSTILE, 3), ("b", 0)], HOSTILE),
        charts.lines({HOSTILE: [(0, 1), (5, 0.25)], "b": [(0, 0), (5, 2)]}, HOSTILE, HOSTILE),
    ]
    for svg in drawn:
        root = parsed(svg)
        known = {"figure", "figcaption", "span", "svg", "g", "title", "rect", "text", "line", "polyline"}
        assert {e.tag for e in root.iter()} <= known
        assert not [e for e in root.iter() if "style" in e.attrib or any(name.startswith("on") for name in e.attrib)]
        (chart,) = [e for e in root.iter("svg") if e.get("class") == "chart"]
        assert chart.attrib["width"] == "100%" and "viewBox" not in chart.attrib
        assert "\x1b" not in svg and "\u202e" not in svg
        for e in root.iter("rect"):
            assert float(e.attrib["x"].rstrip("%")) + float(e.attrib["width"].rstrip("%")) <= 100.01


def test_empty_and_single_values() -> None:
    assert charts.histogram(np.array([], np.int64), "tokens") == "" == charts.bars([]) == charts.lines({}, "x", "y")
    for log in (True, False):
        assert 'class="bar"' in charts.histogram(np.array([5]), "tokens", log=log)
        assert 'class="bar"' in charts.histogram(np.array([2.5, 2.5]), "seconds", log=log)
    assert "polyline" in charts.lines({"a": [(3, 3)]}, "x", "y")
    many = charts.bars([(str(i), 1) for i in range(100)], "images", most=10)
    assert "90 others: 90 images" in many and len(re.findall('class="bar"', many)) == 11
