"""Balancing assigns every row to one rank, with equal row counts and nearly equal work, for any world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.order.balance import attention_cost, balance_rows
from penstock.order.pack import PackPlan
from tests.order.imbalance import imbalance

costs_of = st.lists(st.integers(0, 10**9), max_size=60) | st.lists(st.floats(0, 1e9), max_size=60)


@settings(max_examples=200, deadline=None)
@given(costs=costs_of, world=st.integers(1, 20))
def test_every_row_to_one_rank_and_the_busiest_is_bounded(costs, world):
    ranks = balance_rows(np.array(costs, np.int64 if not costs else None), world)
    assert len(ranks) == world
    assert sorted(np.concatenate(ranks).tolist()) == list(range(len(costs)))
    sizes = [len(rows) for rows in ranks]
    assert max(sizes) - min(sizes) <= 1
    assert all(np.all(np.diff(rows) > 0) for rows in ranks)
    busiest = max(sum(costs[row] for row in rows) for rows in ranks)
    assert busiest <= (sum(costs) / world + max(costs, default=0)) * (1 + 1e-9)
    assert imbalance(costs, ranks) >= 1 - 1e-9


def test_packs_are_balanced_better_than_contiguous_slices():
    lengths = np.clip(np.random.default_rng(0).lognormal(5.9, 1, 20_000), 1, 4096).astype(np.int32)
    plan = PackPlan.build(lengths, capacity=4096, key=1)
    better, order = [], np.random.default_rng(1).permutation(plan.n_packs)
    for step in range(20):
        pieces = plan.pack(order[step * 64 : step * 64 + 64])
        costs = attention_cost(pieces.lengths, pieces.offsets, linear=64)
        in_order = imbalance(costs, np.split(np.arange(64), 8))
        balanced = imbalance(costs, balance_rows(costs, 8))
        assert balanced <= in_order
        better.append(in_order - balanced)
    assert np.mean(better) > 0.05


def test_cost_is_summed_over_the_pieces_of_a_row():
    assert attention_cost([3, 4]).tolist() == [9, 16]
    assert attention_cost([3, 4, 5], [0, 2, 2, 3], quadratic=2, linear=10).tolist() == [120, 0, 100]


def test_least_loaded_beats_the_snake_where_it_can_and_the_snake_is_kept_where_it_cannot():
    assert [rows.tolist() for rows in balance_rows([9, 8, 8, 8, 8, 7], 2)] == [
        [0, 3, 5],
        [1, 2, 4],
    ]  # the snake: 25 and 23
    costs = [7, 7, 7, 7, 7, 6, 6]  # to the least loaded of three: 20 for the busiest
    assert max(sum(costs[row] for row in rows) for rows in balance_rows(costs, 3)) == 19


@pytest.mark.parametrize(
    ("costs", "world", "text"),
    [
        ([1], 0, "world: an integer of 1 or more"),
        ([[1]], 1, "a flat array of costs"),
        ([1.0, float("nan")], 1, r"(?s)finite and not negative.*nan"),
        ([1, -2], 1, r"(?s)finite and not negative.*-2"),
    ],
)
def test_wrong_arguments_are_named(costs, world, text):
    with pytest.raises(UsageError, match=text):
        balance_rows(costs, world)
