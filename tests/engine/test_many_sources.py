"""Mixtures of many sources are read in longer calls, with the same batches and the same bound in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.batches import INLINE_RANGE_BYTES, MANY_SOURCES, MANY_SOURCES_SECONDS
from penstock.engine.ordered_threads import RANGE_SECONDS
from penstock.testing import assert_elastic


def mixture(sources: int, width: int = 1, *, mapped: int = 0) -> Any:
    parts = [ps.from_arrays({"x": np.full((20, width), i)}) for i in range(sources)]
    parts = [part.map(dict) if i < mapped else part for i, part in enumerate(parts)]
    return ps.mix(parts, weights=[1.0 + i % 7 for i in range(sources)], seed=1)


def test_only_mixtures_of_many_sources_are_read_in_longer_calls() -> None:
    few, many = (mixture(n).batch(4).to_numpy(threads=0) for n in (MANY_SOURCES - 1, MANY_SOURCES))
    nested = ps.concat([mixture(MANY_SOURCES // 2).take(40), mixture(MANY_SOURCES // 2).take(40)]).shuffle(seed=1)
    seconds = [loader._work(single=False).range_seconds for loader in (few, many, nested.batch(4).to_numpy(threads=0))]
    assert seconds == [RANGE_SECONDS, MANY_SOURCES_SECONDS, MANY_SOURCES_SECONDS]


def test_their_batches_do_not_depend_on_threads_ranks_or_where_a_run_resumes() -> None:
    assert_elastic(lambda batch: mixture(300, mapped=30).batch(batch), batch=12, worlds=(1, 3), threads=(0, 2))


def test_bytes_bound_a_call_however_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 512 KiB: a call reads as many as the bound allows, not as many as 20 ms allow."""
    from penstock.engine.batches import Batches

    calls: list[int] = []
    real = Batches.read
    monkeypatch.setattr(Batches, "read", lambda self, lo, hi: calls.append(hi - lo) or real(self, lo, hi))
    monkeypatch.setattr(Batches, "range_seconds", 1e9)
    run = iter(mixture(300, width=2048).batch(32).to_numpy(threads=0))
    for _ in range(60):
        next(run)
    assert 1 < max(calls) <= INLINE_RANGE_BYTES // (32 * 2048 * 8)
