"""When batches are worth threads: what single dear batches do, and what all of them together do."""

from __future__ import annotations

import time

import numpy as np
import pytest

import penstock as ps
from penstock.engine.pace import WATCHED, Pace

CHEAP, DEAR, BURST = 50e-6, 500e-6, 50e-3


def moves_at(costs: list[float]) -> int | None:
    """The batch after which threads are taken, if batches cost this much processor time."""
    pace = Pace()
    for number, cost in enumerate(costs):
        if pace.watching and pace.end(cost, time.thread_time() - cost):
            return number
    return None


@pytest.mark.parametrize("burst", [0, 1, 5])
def test_one_dear_batch_among_cheap_ones_is_no_reason(burst: int) -> None:
    """The first opens files; any may work out the order of thousands to come."""
    costs = [CHEAP] * (WATCHED + 1)
    costs[burst] = BURST
    assert moves_at(costs) is None


def test_batches_that_are_all_dear_are() -> None:
    assert moves_at([DEAR] * (WATCHED + 1)) == WATCHED
    assert moves_at([CHEAP] * (WATCHED + 1)) is None


def test_plainly_dear_ones_are_not_watched_for_long() -> None:
    assert moves_at([BURST] * 9) == 2


@pytest.mark.parametrize("after", range(1, 7))
def test_moving_to_threads_neither_loses_nor_adds_a_batch(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is the epoch's last batch that tips the scales."""
    calls = iter(range(1, 100))
    monkeypatch.setattr(Pace, "end", lambda *_: next(calls) == after)
    loader = ps.from_arrays({"x": np.arange(24)}).shuffle(seed=1).batch(4).to_numpy()
    got = [batch["x"].tolist() for batch in loader]
    assert loader.step == len(got) == 6 and sorted(sum(got, [])) == list(range(24))
