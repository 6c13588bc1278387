"""The law, on the verbs that combine pipelines, choose rows and choose columns."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from penstock.testing import assert_elastic, assert_exact_resume
from penstock.testing.resume import assert_same_batches, batches

from .calls import calls
from .pipelines import PIPELINES
from .verbs import VERBS


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", VERBS)
def test_resume_worlds_threads_and_batch_sizes(name: str) -> None:
    make = VERBS[name]
    assert_exact_resume(lambda: make(12), most=12)
    assert_elastic(make, batch=24, worlds=(1, 2, 3, 4), threads=(0, 1, 2), most=5)
    assert make(12).fingerprint() == make(24).shard(1, 2).fingerprint()
    assert pickle.loads(pickle.dumps(make(12))) == copy.deepcopy(make(12)) == make(12)
    assert len(repr(make(12)).splitlines()) > 2
    assert make(12).to_numpy(threads=0).why(1, 3)["from"]


def test_fingerprints_differ() -> None:
    prints = [make(12).fingerprint() for make in (*VERBS.values(), *PIPELINES.values())]
    assert len(set(prints)) == len(prints)


def one_of_each_verb() -> list[str]:
    """The fewest pipelines, found greedily, that use every verb of `VERBS`."""
    left = {name: set(calls(make(12))) for name, make in VERBS.items()}
    chosen: list[str] = []
    while any(left.values()):
        chosen.append(max(left, key=lambda name: len(left[name])))
        done = set(left[chosen[-1]])
        left = {name: verbs - done for name, verbs in left.items()}
    return chosen


def test_child_processes_make_the_same_batches() -> None:
    for name in one_of_each_verb():
        make = VERBS[name]
        expected = batches(make(12).to_numpy(threads=0), 4)
        assert_same_batches(expected, batches(make(12).to_numpy(workers=2), 4), name)
