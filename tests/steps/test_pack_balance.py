"""Packs dealt to ranks by the work of their attention: the same set of rows a step, more even work."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.order.balance import attention_cost
from tests.order.imbalance import imbalance
from tests.steps.test_pack import tokens

LENGTHS = np.minimum(np.exp(np.random.default_rng(3).normal(3, 1.2, 1500)).astype(int) + 1, 400).tolist()
KINDS: dict[str, Any] = {
    "plain": lambda p: p,
    "mixed": lambda p: ps.mix([p, p.skip(5)], [1, 1], stop="all"),
    "mapped": lambda p: p.map_batches(dict),  # every rank makes the whole step, to count its labels
}


def packs(kind: str, balance: bool, rows: int = 12, remainder: str = "drop", after: Any = None) -> ps.Pipeline:
    made = KINDS[kind](tokens(LENGTHS).pack(256).shuffle(seed=2)).batch(rows, remainder=remainder, balance=balance)
    return made if after is None else made.map_batches(after)


def on(world: int, pipeline: ps.Pipeline, state: Any = None, threads: int = 0) -> list[tuple[dict, ...]]:
    ranks = []
    for rank in range(world):
        loader = pipeline.shard(rank, world).to_numpy(threads=threads)
        if state is not None:
            loader.load_state_dict(state)
        ranks.append(list(loader))
    return list(zip(*ranks, strict=True))


def rows(parts: tuple[dict, ...]) -> Counter[tuple[int, ...]]:
    real = (
        r for p in parts for r, v in zip(p["input_ids"], p.get("valid", p["input_ids"][:, 0] >= 0), strict=True) if v
    )
    return Counter(tuple(row.tolist()) for row in real)


def spread(parts: tuple[dict, ...]) -> float:
    """Work of the busiest rank over the mean."""
    costs = [int(attention_cost(np.diff(p["cu_seqlens"])).sum()) for p in parts]
    return imbalance(costs, [np.array([r]) for r in range(len(parts))])


@pytest.mark.parametrize("kind", KINDS)
def test_the_spread_shrinks_and_the_rows_of_a_step_stay(kind: str) -> None:
    plain, even = on(4, packs(kind, False)), on(4, packs(kind, True))
    assert len(plain) == len(even) > 5
    for a, b in zip(plain, even, strict=True):
        assert rows(a) == rows(b)
        assert {len(p["input_ids"]) for p in b} == {3}
        labels = sum(int((p["labels"] != -100).sum()) for p in b)
        assert {int(p["valid_labels"]) for p in b} == {labels}
    before, after = (np.mean([spread(parts) for parts in run]) - 1 for run in (plain, even))
    assert after < before / 2


@pytest.mark.parametrize("remainder", ["short", "pad"])
@pytest.mark.parametrize("kind", ["plain", "mapped"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_nothing_is_lost_or_doubled_at_an_epochs_end(kind: str, world: int, remainder: str) -> None:
    whole = tokens(LENGTHS).pack(256).shuffle(seed=2).rows()
    want = Counter(tuple(r.tolist()) for r in whole.read(np.arange(len(whole)))["input_ids"])
    assert len(whole) % 12
    steps = on(world, packs(kind, True, remainder=remainder))
    assert sum((rows(parts) for parts in steps), Counter()) == want
    counts = [[len(p["input_ids"]) for p in parts] for parts in steps]
    if remainder == "pad":
        assert {n for step in counts for n in step} == {12 // world}
        assert all((p["labels"][~p["valid"]] == -100).all() for parts in steps for p in parts)
    assert all(max(step) - min(step) <= 1 for step in counts)


@pytest.mark.parametrize("kind", KINDS)
def test_another_world_goes_on_with_the_same_steps(kind: str) -> None:
    want = on(1, packs(kind, False))
    loader = packs(kind, True).shard(1, 4).to_numpy(threads=0)
    for _ in zip(range(3), loader, strict=False):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    assert packs(kind, True).fingerprint() == packs(kind, False).fingerprint()
    for world, threads in ((1, 0), (2, 0), (4, 2), (3, 0)):
        got = on(world, packs(kind, True), state, threads)
        assert [rows(p) for p in got] == [rows(p) for p in want[3:]]


def test_a_function_of_the_whole_batch_sees_it_in_its_own_order() -> None:
    def number(columns: dict) -> dict:
        return {**columns, "place": np.arange(len(columns["input_ids"]))}

    make = lambda balance: packs("plain", balance).map_batches(number, whole=True)  # noqa: E731
    for (one,), parts in zip(on(1, make(False)), on(4, make(True)), strict=True):
        for part in parts:
            assert np.array_equal(one["input_ids"][part["place"]], part["input_ids"])
        assert sorted(n for p in parts for n in p["place"].tolist()) == list(range(12))


def test_rows_of_unknown_work_are_refused() -> None:
    for pipeline in (tokens(LENGTHS).windows(8), ps.from_arrays({"x": range(9)})):
        with pytest.raises(ps.UsageError) as caught:
            pipeline.batch(2, balance=True).to_numpy()
        assert ".pack(n) before .batch(balance=True)" in str(caught.value)


def test_the_pieces_of_a_pack_are_its_work() -> None:
    node = tokens([3, 4, 6]).pack(8).rows().plan.root
    picks = node.pick(np.arange(node.size), 0)
    batch = tokens([3, 4, 6]).pack(8).batch(2).to_numpy(threads=0).batch_at(0)
    cuts = [np.flatnonzero(p == 0).tolist() + [8] for p in batch["position_ids"]]
    assert node.costs(picks).tolist() == [sum((b - a) ** 2 for a, b in pairwise(c)) for c in cuts]
