"""The law, on every verb and on composed pipelines."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume

from .pipelines import PIPELINES, WHOLE

ALL = PIPELINES | WHOLE
# Padding to the longest and padded or short tails depend on where batches are cut; the rows are compared elsewhere.
CUT_MATTERS = {"documents padded", "padded remainder", "lanes, padded remainder", *WHOLE}


@pytest.mark.parametrize("name", ALL)
def test_every_saved_state_gives_the_whole_remainder(name: str) -> None:
    assert_exact_resume(lambda: ALL[name](12), most=14)


@pytest.mark.parametrize("name", ALL)
def test_global_batches_do_not_depend_on_world_or_threads(name: str) -> None:
    other = None if name in CUT_MATTERS else 12
    assert_elastic(ALL[name], batch=24, other_batch=other, most=7)


@pytest.mark.parametrize("name", PIPELINES)
def test_fingerprints_are_stable_and_ignore_batch_and_world(name: str) -> None:
    make = PIPELINES[name]
    assert make(12).fingerprint() == make(24).shard(1, 2).fingerprint()


def test_fingerprints_differ() -> None:
    prints = {name: make(12).fingerprint() for name, make in ALL.items()}
    alike = {"plain", "short remainder"}  # the same rows in the same order
    assert len({prints[n] for n in prints if n not in alike}) == len([n for n in prints if n not in alike])


def test_the_helpers_can_fail() -> None:
    calls = iter(range(10**9))

    def impure(columns: dict) -> dict:
        return {**columns, "x": columns["x"] + next(calls)}

    make = lambda b=12: ps.from_arrays({"x": range(96)}).map_batches(impure).batch(b)  # noqa: E731
    with pytest.raises(AssertionError, match="values of column 'x' differ"):
        assert_exact_resume(make)
    with pytest.raises(AssertionError, match="values of column 'x' differ"):
        assert_elastic(make)


def test_a_pipeline_too_short_for_the_other_batch_size_is_named() -> None:
    with pytest.raises(AssertionError, match="4 rows are left .* pass other_batch="):
        assert_elastic(lambda b: ps.from_arrays({"x": range(8)}).batch(b, remainder="short"), batch=4, worlds=(1, 2))
