"""`valid_labels` after functions behind the batch: what is really in the step, on all ranks together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.steps.test_bucket import tokens

LENGTHS = (np.arange(90) * 7 % 31 + 1).tolist()
WAYS: dict[str, Any] = {
    "pack": lambda: tokens(LENGTHS).pack(32).shuffle(seed=1).batch(12),
    "pack, filled up": lambda: tokens(LENGTHS).pack(32).shuffle(seed=1).batch(12, remainder="pad"),
    "batch_tokens": lambda: tokens(LENGTHS).shuffle(seed=1).batch_tokens(128),
    "bucket": lambda: tokens(LENGTHS).shuffle(seed=1).bucket([16], 6, remainder="pad"),
}


def none(columns: dict) -> dict:
    return {**columns, "labels": np.full_like(columns["labels"], -100)}


def odd(columns: dict) -> dict:
    """Learns rows whose first token is odd."""
    odd = columns["input_ids"][:, :1] % 2 == 1
    return {**columns, "labels": np.where(odd, columns["labels"], -100)}


def dropped(columns: dict) -> dict:
    return {k: v for k, v in columns.items() if k != "labels"}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("function", [none, odd])
@pytest.mark.parametrize("way", WAYS)
def test_labels_are_counted_after_the_function(way: str, function: Any, world: int) -> None:
    pipeline = WAYS[way]().map_batches(function)
    ranks = [list(pipeline.shard(r, world).to_numpy(threads=0)) for r in range(world)]
    plain = list(WAYS[way]().to_numpy(threads=0))
    fewer = 0
    for want, parts in zip(plain, zip(*ranks, strict=True), strict=True):
        count = sum(int((p["labels"] != -100).sum()) for p in parts)
        assert {int(p["valid_labels"]) for p in parts} == {count}
        fewer += count < int(want["valid_labels"])
    assert fewer


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_without_labels_there_is_no_count(way: str, world: int) -> None:
    batch = WAYS[way]().map_batches(dropped).shard(0, world).to_numpy(threads=0).batch_at(0)
    assert "labels" not in batch and "valid_labels" not in batch


@pytest.mark.parametrize("way", WAYS)
def test_rows_and_states_are_those_without_the_function(way: str) -> None:
    same = WAYS[way]().map_batches(dict)
    for world in (1, 2):
        for rank in range(world):
            a = WAYS[way]().shard(rank, world).to_numpy(threads=0)
            b = same.shard(rank, world).to_numpy(threads=2)
            for x, y in zip(a, b, strict=True):
                assert all(np.array_equal(x[k], y[k]) for k in x) and x.keys() == y.keys()
