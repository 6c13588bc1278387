"""StepRanges against a plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.plan.step_ranges import StepRange, StepRanges


def walk(size: int, plan: list[tuple[int, int]], keep: bool, steps: int) -> list[StepRange]:
    """Step by step: `plan` lists (batch rows, number of steps) of each stage.

    A tail too short for a batch is dropped by the stage that meets it, not left to a later one.
    """
    out: list[StepRange] = []
    epoch = offset = 0
    stages = iter(plan)
    rows, left = next(stages)
    while len(out) < steps:
        if left == 0:
            if size - offset < (1 if keep else rows):
                epoch, offset = epoch + 1, 0
            rows, left = next(stages)
        if size - offset < (1 if keep else rows):
            epoch, offset = epoch + 1, 0
        take = min(rows, size - offset)
        out.append(StepRange(epoch, offset, take))
        offset += take
        left -= 1
    return out


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=4),
    st.booleans(),
)
def test_stages_cut_as_a_loop_does(size: int, plan: list[tuple[int, int]], keep: bool) -> None:
    plan = [(min(rows, size), steps) for rows, steps in plan]
    total = sum(steps for _, steps in plan)
    ranges = StepRanges.start(size, plan[0][0], keep)
    step = plan[0][1]
    for rows, steps in plan[1:]:
        ranges = ranges.then(step, ranges.row(step), rows)
        step += steps
    assert [ranges.at(i) for i in range(total)] == walk(size, plan, keep, total)
    assert all(ranges.row(i) == c.epoch * size + c.offset for i, c in enumerate(walk(size, plan, keep, total)))


@given(st.integers(1, 60), st.integers(1, 60), st.booleans(), st.integers(0, 200))
def test_epoch_end_is_the_first_step_of_the_next_epoch(size: int, rows: int, keep: bool, step: int) -> None:
    ranges = StepRanges.start(size, min(rows, size), keep)
    end = ranges.epoch_end(step)
    assert end is not None
    assert ranges.at(end) == StepRange(ranges.at(step).epoch + 1, 0, min(rows, size))
    assert ranges.at(end - 1).epoch == ranges.at(step).epoch


def test_endless() -> None:
    ranges = StepRanges.start(None, 4, keep=False)
    assert ranges.at(10**12) == StepRange(0, 4 * 10**12, 4)
    assert ranges.epoch_end(5) is None


def test_a_batch_larger_than_the_epoch_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one batch of 8 rows an epoch") as caught:
        StepRanges.start(5, 8, keep=False)
    assert "5 rows" in str(caught.value)
    assert 'remainder="short"' in str(caught.value)
    assert StepRanges.start(5, 8, keep=True).at(1) == StepRange(1, 0, 5)
