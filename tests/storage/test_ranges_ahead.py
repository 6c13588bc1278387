"""Ranges that were requested ahead: who gets them, when they are dropped, and what that costs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from penstock.storage.ranges_ahead import Key, RangesAhead


def keys(first: int, count: int) -> list[Key]:
    return [(0, 8 * n, 8 * n + 8) for n in range(first, first + count)]


def read(wanted: list[Key]) -> list[bytes]:
    return [f"{start:08}".encode() for _, start, _ in wanted]


def test_a_range_of_several_steps_is_read_once_and_stays_until_the_last_has_it():
    ranges, asked = RangesAhead(), []
    for step in (1, 2, 2):
        ranges.claim(keys(0, 2), step, lambda wanted: asked.extend(wanted) or read(wanted))()
    assert asked == keys(0, 2) and ranges.size == 16
    assert ranges.take(keys(0, 1)) == [b"00000000"]
    ranges.forget(2)  # the second range of step 1 was not taken; it is wanted by step 2 twice
    assert ranges.size == 16
    assert ranges.take(keys(0, 2)) == ranges.take(keys(0, 2)) == read(keys(0, 2))
    assert ranges.size == 0 and ranges.take(keys(0, 2)) == [None, None]


def test_what_is_on_its_way_is_forgotten_once_it_is_there():
    ranges = RangesAhead()
    fetch = ranges.claim(keys(0, 3), 1, read)
    ranges.forget(5)
    assert fetch() == 24 and ranges.size == 24
    ranges.forget(5)
    assert ranges.size == 0 and ranges.take(keys(0, 3)) == [None] * 3


def test_forgetting_steps_that_are_over_does_not_look_at_what_later_ones_wait_for():
    ranges, lines = RangesAhead(), 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line" and frame.f_code.co_filename == sys.modules[RangesAhead.__module__].__file__
        return count

    ranges.claim(keys(0, 5000), 7, read)()
    before = sys.gettrace()
    sys.settrace(count)
    try:
        ranges.forget(6)
    finally:
        sys.settrace(before)
    assert 0 < lines < 100 and ranges.size == 40_000
    ranges.forget()
    assert ranges.size == 0
