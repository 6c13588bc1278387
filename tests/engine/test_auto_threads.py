"""When batches are worth threads: what single dear batches do, and what all of them together do."""

from __future__ import annotations

import time

import numpy as np
import pytest

import penstock as ps
from penstock.engine.auto_threads import (
    MOST_OF_COST,
    STEADY,
    TRIAL_BATCHES,
    WATCHED_BATCHES,
    AutoThreads,
    CostMonitor,
    ThreadTrial,
)

CHEAP, DEAR, BURST = 50e-6, 500e-6, 50e-3


def moves_at(costs: list[float]) -> int | None:
    """The batch after which threads are taken, if batches cost this much processor time."""
    monitor = CostMonitor()
    for number, cost in enumerate(costs):
        if monitor.watching and monitor.end(cost, time.thread_time() - cost):
            return number
    return None


@pytest.mark.parametrize("burst", [0, 1, 5])
def test_one_dear_batch_among_cheap_ones_is_no_reason(burst: int) -> None:
    """The first opens files; any may work out the order of thousands to come."""
    costs = [CHEAP] * (WATCHED_BATCHES + 1)
    costs[burst] = BURST
    assert moves_at(costs) is None


def test_batches_that_are_all_dear_are() -> None:
    assert moves_at([DEAR] * (WATCHED_BATCHES + 1)) == WATCHED_BATCHES
    assert moves_at([CHEAP] * (WATCHED_BATCHES + 1)) is None


def test_plainly_dear_ones_are_not_watched_for_long() -> None:
    assert moves_at([BURST] * 9) == 2


@pytest.mark.parametrize(
    ("share", "worth"), [(0.0, True), (0.6, True), (MOST_OF_COST - 0.05, True), (MOST_OF_COST + 0.05, False)]
)
def test_threads_are_given_up_when_the_trainer_waits_longer_with_them(share: float, worth: bool) -> None:
    trial = ThreadTrial(1e-3, threads=2)
    said = [trial.end(9e-3 if i < 6 else share * 1e-3) for i in range(6 + TRIAL_BATCHES)]  # they have to catch up first
    assert said[:-1] == [None] * (5 + TRIAL_BATCHES) and said[-1] is worth


def test_a_trainer_whose_own_step_gets_longer_counts_against_threads() -> None:
    for longer, worth in ((0.0, True), (0.02, True), (0.5, True), (0.9, False)):  # of a batch's cost
        trial = ThreadTrial(1e-3, threads=2, step=1e-3)
        answers = [trial.end(0.0, 1e-3 * (STEADY + longer)) for _ in range(6 + TRIAL_BATCHES)]
        assert answers[-1] is worth
        assert trial.lost == pytest.approx(1e-3 * (STEADY - 1 + longer))


def test_the_verdict_names_the_child_process_when_the_trainers_step_gets_longer() -> None:
    auto = AutoThreads(2)
    for _ in range(WATCHED_BATCHES + 1):
        auto.end(DEAR * 10, time.thread_time() - DEAR * 10, 0.0, 1e-3)
    for _ in range(6 + TRIAL_BATCHES):
        auto.end(0.0, 0.0, 0.0, 1.25e-3)
    assert auto.settled == 2
    loader = ps.from_arrays({"x": range(4)}).batch(2).to_numpy()
    assert "isolate" not in loader.stats()["verdict"]
    loader._known.loss = auto.loss
    assert "25% longer beside the loader's threads: isolate=True, threads=1" in loader.stats()["verdict"]


def test_what_a_batch_cost_is_said_without_the_dearest() -> None:
    monitor = CostMonitor()
    for cost in (BURST, *[DEAR] * (WATCHED_BATCHES - 1), BURST):
        monitor.end(cost, time.thread_time() - cost)
    assert monitor.cost == pytest.approx(DEAR)


@pytest.mark.parametrize("after", range(1, 7))
def test_moving_to_threads_neither_loses_nor_adds_a_batch(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is the epoch's last batch that tips the scales."""
    calls = iter(range(1, 100))
    monkeypatch.setattr(CostMonitor, "end", lambda *_: next(calls) == after)
    loader = ps.from_arrays({"x": np.arange(24)}).shuffle(seed=1).batch(4).to_numpy()
    got = [batch["x"].tolist() for batch in loader]
    assert loader.step == len(got) == 6 and sorted(sum(got, [])) == list(range(24))


@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("worth", [True, False])
def test_a_trial_neither_loses_nor_adds_a_batch(after: int, worth: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    moves, trials = iter(range(1, 1000)), iter(range(1, 1000))
    monkeypatch.setattr(CostMonitor, "end", lambda *_: next(moves) == 2)
    monkeypatch.setattr(ThreadTrial, "end", lambda *_: worth if next(trials) == after else None)
    loader = ps.from_arrays({"x": np.arange(24)}).shuffle(seed=1).batch(4).to_numpy()
    plain = ps.from_arrays({"x": np.arange(24)}).shuffle(seed=1).batch(4).to_numpy(threads=0)
    for _ in range(3):  # what was found holds for later epochs
        assert [b["x"].tolist() for b in loader] == [b["x"].tolist() for b in plain]
    assert (loader._settled or 0) > 0 if worth else loader._settled == 0
