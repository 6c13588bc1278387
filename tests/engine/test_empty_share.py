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


DOCUMENTS = np.array([0, 9, 30, 31, 55, 80, 100])
TOKENS: dict[str, Any] = {
    "windows": lambda p: p.windows(8),
    "packs": lambda p: p.pack(16),
    "packs of the stream": lambda p: p.pack(16, strategy="concat"),
    "packs with labels in place": lambda p: p.pack(16, labels="same"),
    "packs without labels": lambda p: p.pack(16, labels=None),
    "packs of fixed shapes": lambda p: p.pack(16, static=True, max_docs=6),
}


@pytest.mark.parametrize("steps", TOKENS)
@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
def test_a_rank_without_rows_of_tokens(steps: str, output: str) -> None:
    pipeline = TOKENS[steps](ps.open_tokens(np.arange(100), DOCUMENTS, 100)).take(5)
    loader = getattr(pipeline.shard(0, 2).batch(4, remainder="short"), output)(threads=0)
    first, last = loader
    assert list(first) == list(last)
    assert last["input_ids"].shape == (0, *first["input_ids"].shape[1:])
    assert [column.dtype for column in first.values()] == [column.dtype for column in last.values()]
