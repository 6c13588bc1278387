"""Merging byte ranges into requests: each rule against a loop that merges one range at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.storage.coalesce import coalesce, pages

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=40)


def merged_one_by_one(ranges: list[tuple[int, int]], gap: int, largest: int) -> tuple[list[list[int]], list[int]]:
    """The rule in plain words: join if the gap is small and the request stays short enough, or holds it already."""
    made: list[list[int]] = []
    index: list[int] = []
    for start, stop in ranges:
        held = [i for i, (_, end) in enumerate(made) if stop <= end]
        if held:
            index.append(held[-1])
        elif made and start - made[-1][1] <= gap and stop - made[-1][0] <= largest:
            made[-1][1] = stop
            index.append(len(made) - 1)
        else:
            made.append([start, stop])
            index.append(len(made) - 1)
    return made, index


@settings(max_examples=300, deadline=None)
@given(RANGES, st.integers(0, 30), st.integers(1, 120))
def test_merges_as_a_loop_does(ranges: list[tuple[int, int]], gap: int, largest: int) -> None:
    sorted_ranges = sorted((start, start + length) for start, length in ranges)
    starts, stops = (np.array([r[i] for r in sorted_ranges], np.int64) for i in (0, 1))
    made = coalesce(starts, stops, gap, largest)
    expected, index = merged_one_by_one(sorted_ranges, gap, largest)
    assert [list(r) for r in zip(made.starts.tolist(), made.stops.tolist(), strict=True)] == expected
    assert made.index.tolist() == index
    assert (made.starts[made.index] <= starts).all()
    assert (stops <= made.stops[made.index]).all()


@settings(max_examples=200, deadline=None)
@given(RANGES, st.integers(1, 70), st.integers(0, 100), st.integers(1, 300))
def test_requests_fetch_the_pages_of_every_byte(reads: list[tuple[int, int]], page: int, gap: int, most: int) -> None:
    offsets, lengths = (np.array([r[i] for r in reads], np.int64) for i in (0, 1))
    needed = sorted({byte // page for start, length in reads for byte in range(start, start + length)})
    found = pages(offsets, lengths, page)
    assert found.tolist() == needed
    made = coalesce(found * page, (found + 1) * page, gap, most)
    expected, _ = merged_one_by_one([(p * page, (p + 1) * page) for p in needed], gap, most)
    assert [list(r) for r in zip(made.starts.tolist(), made.stops.tolist(), strict=True)] == expected
    assert made.bytes == sum(b - a for a, b in expected)


def test_a_range_longer_than_the_longest_request_stays_in_one() -> None:
    made = coalesce(np.array([0, 0, 5]), np.array([1, 100, 6]), gap=10, largest=8)
    assert made.stops.tolist() == [1, 100]
    assert made.index.tolist() == [0, 1, 1]


def test_one_million_pages_are_quick() -> None:
    page = np.arange(1_000_000, dtype=np.int64) * 3
    made = coalesce(page << 16, (page + 1) << 16, gap=0)
    assert len(made) == 1_000_000
    assert len(coalesce(page << 16, (page + 1) << 16, gap=2 << 16)) == -(-1_000_000 // 43)  # 127 pages hold 43 used


def test_wrong_ranges_are_refused() -> None:
    for starts, stops in (([5, 1], [6, 2]), ([3], [2]), ([1], [2, 3])):
        with pytest.raises(UsageError, match="sorted by start"):
            coalesce(np.array(starts), np.array(stops))
    with pytest.raises(UsageError, match="gap of at least 0"):
        coalesce(np.array([1]), np.array([2]), gap=-1)
