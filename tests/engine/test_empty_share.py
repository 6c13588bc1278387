"""The last, short batch of an epoch may have fewer rows than there are ranks: a rank without rows gets all columns."""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.pipeline import Pipeline


def both(pipeline: Pipeline, other: Pipeline) -> Pipeline:
    return ps.mix([pipeline, other], stop="all").take(5)


STEPS: dict[str, Any] = {
    "plain": lambda p: p,
    "map": lambda p: p.map(lambda record: {"x": record["x"], "pair": [1.0, 2.0]}),
    "map_batches": lambda p: p.map_batches(lambda columns: {**columns, "y": columns["x"] * 0.5}),
    "filter": lambda p: p.filter(lambda record: record["x"] >= 0),
    "skip_errors": lambda p: p.skip_errors(),
    "mix": lambda p: both(p, p),
    "nested mix": lambda p: both(both(p, p), p),
    "mix of maps": lambda p: both(p.map(lambda record: {"x": record["x"]}), p),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_rank_without_rows_gets_all_columns_with_no_rows(steps: str, threads: int) -> None:
    pipeline = STEPS[steps](ps.from_arrays({"x": np.arange(5)})).shard(0, 2).batch(4, remainder="short")
    loader = pipeline.map_batches(lambda columns: {**columns, "z": columns["x"] + 1}).to_numpy(threads=threads)
    first, last = loader
    assert len(first["x"]) == 2
    assert list(first) == list(last)
    assert {k: (v.dtype, v.shape[1:], 0) for k, v in first.items()} == {
        k: (v.dtype, v.shape[1:], len(v)) for k, v in last.items()
    }
    for name, column in loader.batch_at(1).items():
        assert np.array_equal(column, last[name]) and column.dtype == last[name].dtype
