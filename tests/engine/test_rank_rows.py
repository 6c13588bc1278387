"""Rows that are assigned to ranks by lane: every row once, equal shares, in the order of lanes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine import batches
from penstock.engine.rank_rows import positions_of, rows_by_lane


@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(0, 80), st.integers(1, 9), st.sampled_from(["", "pad", "even"])
)
@settings(max_examples=200, deadline=None)
def test_all_ranks_together_have_every_row(world: int, each: int, rows: int, lanes: int, kind: str) -> None:
    full, lane = world * each, (np.arange(rows) * 7 % lanes).astype(np.uint16)
    ranks = [rows_by_lane(lane, full, rank, world, kind == "pad", kind == "even") for rank in range(world)]
    steps = -(-rows // full)
    for step in range(steps):
        count = min(full, rows - step * full)
        mine = [rank[step] for rank in ranks]
        together = np.concatenate(mine)
        assert set(together[together < count].tolist()) == set(range(count))
        assert all((np.diff(part) >= 0).all() for part in mine)
        sizes = {len(part) for part in mine}
        if kind == "pad" or count == full:
            assert sizes == {each}
            assert len(together) == len(set(together.tolist()))
        elif kind == "even":
            assert len(sizes) == 1
        else:
            assert len(together) == count
        if count == full:
            here = lane[step * full : (step + 1) * full]
            ends = [(here[part].min(), here[part].max()) for part in mine]
            assert all(a[1] <= b[0] for a, b in pairwise(ends))
    if rows:
        found = [positions_of(np.arange(steps) * full, rank, rows - (steps - 1) * full) for rank in ranks]
        assert sum(int(f.real.sum()) for f in found) >= rows


def test_assigning_few_rows_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = (
        ps.from_arrays({"x": range(500)}).shuffle(seed=1, lanes=6, block=4).batch(20, remainder="short").shard(1, 4)
    )
    want = [b["x"].tolist() for b in loader.to_numpy(threads=0)]
    monkeypatch.setattr(batches, "LANE_ROWS", 50)
    assert [b["x"].tolist() for b in loader.to_numpy(threads=0)] == want
