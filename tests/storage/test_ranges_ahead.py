"""Ranges that were requested ahead: who gets them, when they are dropped, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from penstock.storage.ranges_ahead import Ranges, RangesAhead


def keys(first: int, count: int) -> Ranges:
    return np.array([(0, 8 * n, 8 * n + 8) for n in range(first, first + count)])


def read(wanted: Ranges) -> list[bytes]:
    return [f"{start:08}".encode() for _, start, _ in wanted.tolist()]


def test_a_range_of_several_steps_is_read_once_and_stays_until_the_last_has_it():
    ranges, asked = RangesAhead(), []
    for step in (1, 2, 2):
        ranges.claim(keys(0, 2), step, lambda wanted: asked.extend(wanted.tolist()) or read(wanted))()
    assert asked == keys(0, 2).tolist() and ranges.size == 16
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


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Counts the lines of `ranges_ahead` that run inside."""
    found = [0]

    def count(frame: FrameType, event: str, _: Any) -> Any:
        found[0] += event == "line" and frame.f_code.co_filename == sys.modules[RangesAhead.__module__].__file__
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield found
    finally:
        sys.settrace(before)


def test_forgetting_steps_that_are_over_does_not_look_at_what_later_ones_wait_for():
    ranges = RangesAhead()
    ranges.claim(keys(0, 5000), 7, read)()
    with counted_lines() as lines:
        ranges.forget(6)
    assert 0 < lines[0] < 100 and ranges.size == 40_000
    ranges.forget()
    assert ranges.size == 0


def test_ranges_are_looked_up_in_arrays_and_not_one_by_one():
    ranges, wanted, answers = RangesAhead(), keys(0, 5000), read(keys(0, 5000))
    with counted_lines() as lines:
        ranges.claim(wanted, 7, lambda _: answers)()
        assert ranges.take(wanted) == answers
    assert ranges.size == 0
    assert 0 < lines[0] < 10 * len(wanted)  # 8 for each were seen, 18 with a dict


def test_any_claims_and_reads_of_the_same_ranges_deliver_their_bytes_and_leave_nothing():
    """Readers of each step take what was claimed for it, in other pieces and another order, and some take nothing."""
    dice = np.random.default_rng(3)
    for _ in range(30):
        ranges, size = RangesAhead(), int(dice.integers(1, 40))
        every = np.column_stack((dice.integers(0, 3, size), 8 * dice.integers(0, 20, size), np.zeros(size, int)))
        every[:, 2] = every[:, 1] + 8 + every[:, 1] % 16
        steps = [dice.permutation(every)[: dice.integers(1, size + 1)] for _ in range(6)]
        for step, wanted in enumerate(steps, 1):
            ranges.claim(wanted, step, content)()
        for step, wanted in enumerate(steps, 1):
            if dice.random() < 0.8:
                for part in np.array_split(dice.permutation(wanted), dice.integers(1, 4)):
                    assert ranges.take(part) == content(part)
            ranges.forget(step + 1)
        assert ranges.size == 0 and not ranges._held and not ranges._claims


def content(wanted: Ranges) -> list[bytes]:
    return [f"{file} {start} {stop}".ljust(stop - start).encode() for file, start, stop in wanted.tolist()]
