"""Weights of a mixture that change in the middle of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same_batches


def make(batch: int = 10) -> ps.Pipeline:
    one = ps.from_arrays({"x": np.arange(300), "source": np.zeros(300, np.int64)}).shuffle(seed=1)
    two = ps.from_arrays({"x": np.arange(500), "source": np.ones(500, np.int64)}).shuffle(seed=2)
    return ps.mix([one, two], [0.5, 0.5]).batch(batch)


def take(loader, count: int) -> list:
    run = iter(loader)
    out = [next(run) for _ in range(count)]
    run.close()
    return out


def test_a_change_begins_exactly_there_and_changes_nothing_before() -> None:
    plain = take(make().to_numpy(threads=0), 40)
    loader = make().to_numpy(threads=2)
    first = take(loader, 20)
    loader.set_weights([0.1, 0.9])
    rest = take(loader, 80)
    assert_same_batches(plain[:20], first)
    share = np.concatenate([b["source"] for b in rest]).mean()
    assert abs(share - 0.9) < 0.01
    assert_same_batches(first, [loader.batch_at(i) for i in range(20)])
    seen = np.concatenate([b["x"][b["source"] == 0] for b in first + rest])
    assert len(np.unique(seen)) == len(seen), "a source goes on where it was"


def test_changes_are_in_the_state_and_replay_exactly() -> None:
    loader = make().to_numpy(threads=0)
    take(loader, 5)
    loader.set_weights([0.2, 0.8])
    take(loader, 5)
    loader.set_weights([0.9, 0.1])
    take(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    assert [start for start, _ in state["mix"]] == [50, 100]
    assert len(json.dumps(state)) < 1024
    fresh = make().to_numpy(threads=2)
    fresh.load_state_dict(state)
    assert_same_batches(take(loader, 20), take(fresh, 20))
    assert_same_batches([loader.batch_at(i) for i in range(13)], [fresh.batch_at(i) for i in range(13)])
    assert fresh.state_dict() == loader.state_dict()


def test_what_cannot_change_is_refused() -> None:
    single = ps.from_arrays({"x": range(20)}).batch(2).to_numpy()
    with pytest.raises(ps.StateError, match="a mixture, whose weights can change"):
        single.set_weights([1.0])
    with pytest.raises(ps.StateError, match="2 weights, one per source"):
        make().to_numpy().set_weights([1.0])
    shuffled = ps.mix([ps.from_arrays({"x": range(20)})] * 2, stop="first").shuffle().batch(2).to_numpy()
    with pytest.raises(ps.StateError, match="whose rows come in its own order"):
        shuffled.set_weights([1, 1])
