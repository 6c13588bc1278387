"""Buckets in a pipeline: similar lengths together, nothing lost or doubled, each rank its share."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.columns import Ragged
from penstock.order.balance import attention_cost
from tests.order.imbalance import imbalance


def tokens(lengths: list[int]) -> ps.Pipeline:
    """Document i is made of the token i + 1."""
    flat = np.repeat(np.arange(len(lengths)) + 1, lengths).astype(np.uint16)
    return ps.open_tokens(flat, np.concatenate([[0], np.cumsum(lengths)]))


def documents(batch: dict) -> list[int]:
    """Which documents the rows that count are."""
    return (batch["input_ids"][batch["valid"], 0] - 1).tolist()


def check_batch(batch: dict, lengths: list[int]) -> None:
    """Padding, labels and mask of each row, by a plain loop."""
    for ids, mask, labels, valid in zip(
        *(batch[k] for k in ("input_ids", "attention_mask", "labels", "valid")), strict=True
    ):
        n = int(mask.sum())
        assert n == lengths[int(ids[0]) - 1] and (mask[:n] == 1).all() and (ids[n:] == 0).all()
        assert labels.tolist() == [int(ids[0])] * (n - 1) * bool(valid) + [-100] * (len(ids) - (n - 1) * bool(valid))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    boundaries=st.lists(st.integers(1, 39), unique=True, max_size=3).map(sorted),
    size=st.integers(1, 6),
    remainder=st.sampled_from(["short", "pad"]),
    world=st.sampled_from([1, 2, 3]),
    balance=st.booleans(),
)
def test_nothing_is_lost_or_doubled_in_an_epoch(lengths, boundaries, size, remainder, world, balance):
    pipeline = tokens(lengths).shuffle(seed=3).bucket(boundaries, size, remainder=remainder, balance=balance)
    ranks = [list(pipeline.shard(r, world).to_numpy(threads=0)) for r in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen: Counter[int] = Counter()
    widths = [*boundaries, max(lengths)]
    for parts in zip(*ranks, strict=True):
        width = {p["input_ids"].shape[1] for p in parts}
        assert len(width) == 1 and width <= set(widths)
        rows = [int(p["valid"].sum()) for p in parts]
        assert max(rows) - min(rows) <= 1 and sum(rows) <= size
        if remainder == "pad":
            assert {len(p["valid"]) for p in parts} == {-(-size // world)}
        assert sum(int((p["labels"] != -100).sum()) for p in parts) == parts[0]["valid_labels"]
        for part in parts:
            assert len(part["valid"]) >= 1  # also where there are fewer rows than ranks
            check_batch(part, lengths)
            seen.update(documents(part))
            low = max([0, *(b for b in boundaries if b < part["input_ids"].shape[1])])
            assert all(low < lengths[d] for d in documents(part))
    assert seen == Counter(range(len(lengths)))


def test_dropped_remainders_leave_only_full_batches() -> None:
    lengths = (np.arange(70) * 13 % 29 + 1).tolist()
    batches = list(tokens(lengths).shuffle(seed=1).bucket([8, 16], sizes=[8, 4, 2]).to_numpy(threads=0))
    assert {(b["input_ids"].shape, bool(b["valid"].all())) for b in batches} == {
        ((8, 8), True), ((4, 16), True), ((2, 29), True)
    }  # fmt: skip
    seen = Counter(d for b in batches for d in documents(b))
    assert max(seen.values()) == 1


def test_without_a_shuffle_records_come_in_their_own_order() -> None:
    lengths = [3, 20, 4, 30, 5, 2]
    batches = list(tokens(lengths).bucket([8, 32], 2, remainder="short").to_numpy(threads=0))
    assert [documents(b) for b in batches] == [[0, 2], [4, 5], [1, 3]]


def test_balanced_dealing_keeps_the_set_of_a_step_and_evens_the_work() -> None:
    lengths = (np.exp(np.random.default_rng(0).normal(3, 1, 400)).astype(int) + 1).tolist()
    make = lambda balance: tokens(lengths).shuffle(seed=1).bucket([2000], 16, balance=balance)  # noqa: E731
    plain, even = ([list(make(b).shard(r, 4).to_numpy(threads=0)) for r in range(4)] for b in (False, True))
    worst = []
    for ranks in (plain, even):
        loads = []
        for parts in zip(*ranks, strict=True):
            sets = [documents(p) for p in parts]
            costs = attention_cost([lengths[d] for s in sets for d in s])
            edges = np.cumsum([0, *map(len, sets)])
            loads.append(imbalance(costs, [np.arange(a, b) for a, b in pairwise(edges)]))
        worst.append(np.mean(loads))
    for a, b in zip(zip(*plain, strict=True), zip(*even, strict=True), strict=True):
        assert sorted(d for p in a for d in documents(p)) == sorted(d for p in b for d in documents(p))
    assert worst[1] < worst[0]


def test_ragged_arrays_and_their_own_labels() -> None:
    rows = [np.arange(n) + 1 for n in (3, 9, 4, 2, 8, 1)]
    labels = [np.where(r % 2, r, -100) for r in rows]
    pipeline = ps.from_arrays({"input_ids": Ragged.of(rows), "labels": Ragged.of(labels), "n": np.arange(6)})
    ranks = [list(pipeline.bucket([4], 3, remainder="short").shard(r, 2).to_numpy(threads=0)) for r in range(2)]
    seen = []
    for parts in zip(*ranks, strict=True):
        counted = sum(int((p["labels"] != -100).sum()) for p in parts)
        assert {int(p["valid_labels"]) for p in parts} == {counted}
        seen += [n for p in parts for n in p["n"][p["valid"]].tolist()]
    assert sorted(seen) == list(range(6))


WRONG = {
    "sizes": (lambda: tokens([3]).bucket([4]), "either batch_size or sizes in .bucket()"),
    "boundaries": (lambda: tokens([3]).bucket([4, 2], 1), "increasing bucket boundaries"),
    "size": (lambda: tokens([3]).bucket([4], 0), "batch sizes of at least 1"),
    "remainder": (lambda: tokens([3]).bucket([4], 1, remainder="keep"), "remainder: one of drop, pad, short"),
    "none": (lambda: tokens([3]).bucket([4], 5).to_numpy(), "at least one batch in .bucket()"),
    "records": (
        lambda: ps.from_arrays({"x": [1]}).bucket([4], 1).to_numpy(),
        "documents of tokens right before .bucket()",
    ),
    "map": (
        lambda: tokens([3]).map(dict).bucket([4], 1).to_numpy(),
        ".map() and what changes records before .tokenize(); after .bucket() come only .map_batches()",
    ),
    "two": (lambda: tokens([3]).bucket([4], 1).batch(2).to_numpy(), "one .bucket() in a pipeline"),
    "after": (lambda: tokens([3]).bucket([4], 1).shuffle().to_numpy(), ".shuffle() before .bucket()"),
    "blocks": (lambda: tokens([3]).shuffle(block=2).bucket([4], 1).to_numpy(), ".shuffle(seed) without block"),
    "whole": (
        lambda: tokens([3]).bucket([4], 1).map_batches(dict, whole=True).shard(0, 2).to_numpy(),
        "functions of a rank's own rows after .bucket()",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_says_what_to_do(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(ps.UsageError) as caught:
        make()
    assert text in str(caught.value)


class Samples:
    """A source that knows its lengths and has no tokens."""

    dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return 8

    def lengths(self, indices: Any) -> Any:
        return np.asarray(indices) % 4 + 1

    def read(self, indices: Any) -> Any:
        return {"audio": Ragged.of([np.full(i % 4 + 1, i, np.float32) for i in indices.tolist()])}

    def fingerprint(self) -> str:
        return "samples"

    def describe(self) -> dict[str, Any]:
        return {"kind": "samples"}

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": index}


def test_lengths_are_enough_for_buckets() -> None:
    batches = list(ps.Pipeline(Samples()).bucket([2], batch_size=2).to_numpy())
    assert sorted(batch["audio"].shape[1] for batch in batches) == [2, 2, 4, 4]
    assert sorted(int(row[0]) for batch in batches for row in batch["audio"]) == list(range(8))
