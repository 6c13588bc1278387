"""`.shuffle()` over several epochs in one call."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.plan.row_source import RowSource
from penstock.steps import shuffle


@pytest.mark.parametrize("n", [5, 60, 700])
def test_many_epochs_in_one_call_are_as_one_by_one(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = RowSource(ps.from_arrays({"x": np.arange(n)}).shuffle(seed=3).definition).plan.root
    position = np.tile(np.arange(n), 8)
    epoch = np.repeat(np.arange(8), n)
    together = node.pick(position, epoch).record
    monkeypatch.setattr(shuffle, "FEW", 100)
    assert np.array_equal(together, node.pick(position, epoch).record)
    alone = np.concatenate([node.pick(np.arange(n), e).record for e in range(8)])
    assert np.array_equal(together, alone)
    for e in range(8):
        assert sorted(together[e * n : (e + 1) * n]) == list(range(n))
