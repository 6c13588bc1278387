"""When a loader moves to a child process and back: from recorded steps alone, without clocks or processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.engine.moving import (
    ChildLost,
    Course,
    Experience,
    Loss,
    Move,
    Rules,
    Taken,
    better,
    child_threads,
    pays,
)

RULES = Rules(turn=8, settling=2, again_after=30, watched=8)
WORTH = Loss(step=14e-3, cost=8e-3, lost=2e-3, threads=2)


class Recorded:
    """A child that notes what it is asked for; it is ready after some questions."""

    def __init__(self, ready_after: int = 3) -> None:
        self.asked: list[tuple[int, int | None]] = []
        self.left, self.closed = ready_after, False

    def is_ready(self) -> bool:
        self.left -= 1
        return self.left < 0

    def begin(self, start: int, stop: int | None) -> None:
        self.asked.append((start, stop))

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        self.closed = True


class Run:
    """A `for` in which each batch comes from whom the course says; `seconds` of a step by who computes it."""

    def __init__(
        self,
        known: Experience,
        seconds: Callable[[int, str], tuple[float, float]],
        stop: int | None = None,
        ahead: int = 3,
        ready_after: int = 3,
    ) -> None:
        self.children: list[Recorded] = []
        self.by, self.where, self.known, self.now = [], "threads", known, 0.0
        self.seconds, self.stop, self.ahead, self.end = seconds, stop, ahead, stop

        def start(_: Loss) -> Recorded:
            self.children.append(Recorded(ready_after))
            return self.children[-1]

        self.course = Course(known, stop, start, lambda: self.now)

    def end_at(self, step: int) -> int:
        self.end = max(step, len(self.by) + self.ahead)
        return self.end

    def take(self, batches: int) -> None:
        for _ in range(batches):
            if self.stop is not None and len(self.by) >= self.stop:
                return
            if self.where == "threads":
                assert self.end is None or len(self.by) < self.end, "threads were ended, and nobody else goes on"
            else:
                assert any(a <= len(self.by) and (b is None or len(self.by) < b) for a, b in self.children[-1].asked)
            wait, step = self.seconds(len(self.by), self.where)
            self.by.append(self.where)
            self.now += wait + step
            if self.course.over:
                continue
            move = self.course.took(Taken(len(self.by), wait, step, self.end_at))
            if move is not None:
                self.where, self.end = ("child", None) if move.to_child else ("threads", move.stop)


def steps(threads: float, child: float, wait: float = 0.0) -> Callable[[int, str], tuple[float, float]]:
    return lambda at, by: (wait if by == "child" else 0.0, threads if by == "threads" else child)


def test_it_moves_when_the_child_is_faster_and_stays() -> None:
    known = Experience(RULES, WORTH)
    run = Run(known, steps(16e-3, 14e-3))
    run.take(400)
    assert known.won and known.trials == 1 and known.moved
    assert set(run.by[-300:]) == {"child"}
    assert "".join(by[0] for by in run.by[:50]).lstrip("t").startswith("c" * 10 + "t" * 10 + "c" * 10)
    assert run.children[0].asked[-1][1] is None and len(run.children) == 1
    assert "a child process computes the batches" in known.verdict


@pytest.mark.parametrize("child", [16e-3, 15.9e-3, 18e-3])
def test_it_stays_with_threads_when_the_child_does_not_pay_and_tries_a_bounded_number_of_times(child: float) -> None:
    known = Experience(RULES, WORTH)
    run = Run(known, steps(16e-3, child))
    run.take(3000)
    assert not known.won and known.trials == RULES.trials == len(run.children)
    assert run.by.count("child") <= RULES.trials * (2 * (RULES.turn + RULES.settling) + RULES.settling)
    assert all(one.closed for one in run.children) and run.course.over and run.where == "threads"
    assert "tried, and is no faster" in known.verdict


def test_a_trainer_that_gets_faster_or_slower_by_itself_is_no_reason() -> None:
    for drift in (-0.004, 0.004):
        known = Experience(RULES, WORTH)
        Run(known, lambda at, by, drift=drift: (0.0, 16e-3 * (1 + drift) ** at)).take(150)
        assert not known.won


def test_noise_is_no_reason() -> None:
    """Equal steps with 10 % noise: hardly ever a move, over 300 runs."""
    moved = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        turns = 16e-3 * (1 + 0.1 * rng.standard_normal((4, 16)))
        moved += better(turns.tolist(), Rules())
    assert moved < 30


def test_a_clear_gain_is_found_in_noise() -> None:
    found = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        turns = np.array([[16.0], [14.0], [16.0], [14.0]]) * (1 + 0.05 * rng.standard_normal((4, 16)))
        found += better(turns.tolist(), Rules())
    assert found > 285


@pytest.mark.parametrize("ahead", [0, 3, 40])
@pytest.mark.parametrize("stop", [45, 60, 90, 120, 170, 400])
@pytest.mark.parametrize("gain", [0.8, 1.2])
def test_every_batch_has_somebody_who_computes_it(ahead: int, stop: int, gain: float) -> None:
    """Also where the epoch ends within a trial, and where threads are far ahead of the trainer (`Run.take` asserts)."""
    known = Experience(Rules(turn=8, settling=2, again_after=30, watched=8, payback=0.0), WORTH)
    run = Run(known, steps(16e-3, 16e-3 * gain), stop, ahead)
    run.take(10_000)
    assert len(run.by) == stop


def test_what_was_found_holds_for_later_epochs() -> None:
    known = Experience(RULES, WORTH)
    Run(known, steps(16e-3, 14e-3)).take(100)
    assert known.won
    later = Run(known, steps(16e-3, 14e-3), stop=20_000)
    later.take(40)
    assert known.trials == 1 and later.children[0].asked == [(len(later.by) - later.by.count("child"), 20_000)]
    assert not known.worth(100), "too short an epoch"


def test_a_child_that_the_trainer_waits_for_is_given_up() -> None:
    known = Experience(RULES, WORTH)
    run = Run(known, lambda at, by: (0.0, 16e-3) if by == "threads" else (0.0 if at < 150 else 8e-3, 14e-3))
    run.take(180)
    assert run.where == "threads" and run.children[0].closed and not known.won
    assert not known.worth(None), "two trials"


def test_waiting_is_no_reason_while_it_is_still_faster() -> None:
    known = Experience(RULES, Loss(step=1e-3, cost=8e-3, lost=8e-3, threads=0))
    run = Run(known, steps(9e-3, 1e-3, wait=6e-3))
    run.take(400)
    assert run.where == "child"


def test_a_child_that_fails_is_not_started_again() -> None:
    known = Experience(RULES, WORTH)
    run = Run(known, steps(16e-3, 14e-3))
    run.take(20)
    assert run.course.lost(ChildLost(RuntimeError("gone"))) == Move(False, None)
    assert run.children[0].closed and run.course.over
    assert not known.worth(None) and "the loader does not by itself: gone" in known.verdict


def test_a_child_that_does_not_start_is_given_up() -> None:
    known = Experience(RULES, WORTH)
    run = Run(known, steps(16e-3, 14e-3), ready_after=10**9)
    run.take(10_000)
    assert set(run.by) == {"threads"} and run.children[0].closed and len(run.children) == 1
    assert "had not started after 30 seconds" in known.verdict


@pytest.mark.parametrize(
    ("loss", "left", "worth"),
    [
        (WORTH, None, True),
        (WORTH, 10_000, True),
        (WORTH, 1_000, False),  # 2 seconds for a start of 1
        (WORTH, 100, False),
        (Loss(step=14e-3, cost=8e-3, lost=0.0), None, False),
        (Loss(step=14e-3, cost=0.3e-3, lost=0.3e-3, threads=0), None, False),  # near the threshold of threads
        (Loss(step=0.0, cost=8e-3, lost=1e-3), None, False),  # nothing but batches
    ],
)
def test_a_child_is_tried_where_the_trainer_loses_and_the_run_is_long(
    loss: Loss, left: int | None, worth: bool
) -> None:
    assert pays(loss, left, 1.0) is worth
    assert Experience(loss=loss).worth(left) is worth


def test_nothing_is_tried_before_something_was_measured() -> None:
    assert not Experience().worth(None) and Experience().verdict == ""


def test_the_child_has_one_thread_where_that_keeps_up() -> None:
    assert child_threads(WORTH, 8) == 1
    assert child_threads(Loss(step=1e-3, cost=8e-3, lost=1e-3), 8) == 8
