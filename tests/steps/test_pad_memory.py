"""Padded batches lie in memory that serves again; a batch that is kept is never written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_rows_are_padded_alike_in_used_memory(side: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2000, 4000, 40)
    flat = rng.integers(1, 60_000, int(lengths.sum())).astype(np.uint16)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    pipeline = ps.open_tokens(flat, edges).shuffle(seed=1).batch(4).pad(to=4000, pad_id=7, side=side, labels=False)
    kept = list(pipeline.to_numpy(threads=0))
    for _ in range(3):
        for batch in pipeline.to_numpy(threads=0):
            batch["input_ids"][:] = 1  # as a trainer may; the memory then serves the next batch
    for a, b in zip(kept, pipeline.to_numpy(threads=0), strict=True):
        assert np.array_equal(a["input_ids"], b["input_ids"])
        held = a["attention_mask"].astype(bool)
        assert (a["input_ids"][~held] == 7).all() and 0 < held.sum() < held.size
