"""Static shapes: a jitted step is traced once, or once for each declared shape."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from tests.steps.test_bucket import tokens

LENGTHS = (np.arange(300) * 7 % 61 + 1).tolist()
CASES: dict[str, tuple[Any, int]] = {
    "pack": (lambda: tokens(LENGTHS).pack(64, static=True, max_docs=8).shuffle(seed=1).batch(4), 1),
    "pack, without cu_seqlens": (lambda: tokens(LENGTHS).pack(64).shuffle(seed=1).batch(4), 1),
    "pack, filled up": (
        lambda: tokens(LENGTHS).pack(64, static=True, max_docs=8).shuffle(seed=1).batch(4, remainder="pad"),
        1,
    ),
    "batch_tokens": (lambda: tokens(LENGTHS).shuffle(seed=1).batch_tokens(256, shapes=[16, 64], static=True), 2),
    "bucket": (lambda: tokens(LENGTHS).shuffle(seed=1).bucket([16, 32, 64], 8), 3),
    "bucket, filled up": (lambda: tokens(LENGTHS).shuffle(seed=1).bucket([16, 32, 64], 8, remainder="pad"), 3),
}


def traces(pipeline: ps.Pipeline, epochs: int = 2) -> int:
    """How often a jitted step is compiled for the batches of some epochs."""
    count = 0

    @jax.jit
    def step(batch: dict[str, jax.Array]) -> jax.Array:
        nonlocal count
        count += 1
        return sum(v.sum() for v in batch.values())

    loader = pipeline.to_jax(threads=0)
    for _ in range(epochs):
        for batch in loader:
            step(batch).block_until_ready()
    return count


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_traced_once_for_each_shape(name: str, world: int) -> None:
    make, shapes = CASES[name]
    assert traces(make().shard(world - 1, world)) == shapes


def test_without_static_there_are_more() -> None:
    """The count can tell."""
    assert traces(tokens(LENGTHS).shuffle(seed=1).batch_tokens(256), epochs=1) > 2
