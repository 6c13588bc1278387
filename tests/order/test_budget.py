"""Token-budget batches: never over the budget, each record once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import DataError, UsageError
from penstock.order.budget import plan_budget

lengths_of = st.lists(st.integers(0, 60), max_size=80)


def cut_one_by_one(lengths, budget, max_rows, multiple):
    """Greedy cutting of the sorted records in its textbook form: the shapes of the batches."""
    padded = sorted((max(1, -(-n // multiple)) * multiple for n in lengths), reverse=True)
    shapes = []
    while padded:
        rows = min(budget // padded[0], max_rows, len(padded))
        shapes.append((rows, padded[0]))
        padded = padded[rows:]
    return shapes


@settings(max_examples=200, deadline=None)
@given(
    lengths=lengths_of,
    multiple=st.integers(1, 9),
    extra=st.integers(0, 150),
    max_rows=st.integers(1, 12),
    window=st.integers(1, 90),
    overlong=st.sampled_from(["truncate", "drop"]),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_never_over_budget_and_each_record_once(lengths, multiple, extra, max_rows, window, overlong, epoch, data):
    budget = multiple + extra
    array = np.array(lengths, np.int64)
    plan = plan_budget(
        array, budget=budget, max_rows=max_rows, multiple=multiple, key=4, window=window, overlong=overlong
    )
    batches = plan.batch(np.arange(plan.n_batches), epoch)
    assert (batches.rows * batches.lengths <= budget).all() and (batches.rows <= max_rows).all()
    assert batches.rows.tolist() == np.diff(batches.offsets).tolist() and (batches.rows >= 1).all()
    assert (batches.lengths % multiple == 0).all()
    fits = array <= plan.longest
    expected = np.flatnonzero(fits) if overlong == "drop" else np.arange(len(lengths))
    assert sorted(batches.records.tolist()) == expected.tolist()
    cut = np.minimum(array, plan.longest)
    assert (cut[batches.records] <= np.repeat(batches.lengths, batches.rows)).all()
    report = plan.report()
    assert (report.dropped, report.truncated)[overlong == "truncate"] == np.count_nonzero(~fits)
    assert report.places == (batches.rows * batches.lengths).sum() and report.tokens == cut[batches.records].sum()
    if window >= len(lengths):
        natural = plan.batch(np.arange(plan.n_batches), epoch, shuffle=False)
        shapes = list(zip(natural.rows.tolist(), natural.lengths.tolist(), strict=True))
        assert shapes == cut_one_by_one(cut[expected].tolist(), budget, max_rows, multiple)
    if plan.n_batches:
        step = data.draw(st.integers(0, plan.n_batches - 1))
        alone = plan.batch(step, epoch)
        assert alone.records.tolist() == batches.records[batches.offsets[step] : batches.offsets[step + 1]].tolist()
        assert (alone.rows[0], alone.lengths[0]) == (batches.rows[step], batches.lengths[step])


@settings(max_examples=100, deadline=None)
@given(
    lengths=lengths_of,
    shapes=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    extra=st.integers(0, 100),
    window=st.integers(1, 90),
    static=st.booleans(),
)
def test_declared_shapes(lengths, shapes, extra, window, static):
    budget = max(shapes) + extra
    array = np.array(lengths, np.int64)
    plan = plan_budget(array, budget=budget, shapes=shapes, static=static, key=4, window=window, overlong="drop")
    batches = plan.batch(np.arange(plan.n_batches), 1)
    assert sorted(batches.records.tolist()) == np.flatnonzero(array <= max(shapes)).tolist()
    assert set(batches.lengths.tolist()) <= set(shapes)
    held = np.diff(batches.offsets)
    assert (array[batches.records] <= np.repeat(batches.lengths, held)).all() and (held <= batches.rows).all()
    assert (batches.rows * batches.lengths <= budget).all()
    assert plan.report().places == (batches.rows * batches.lengths).sum()
    got = set(zip(batches.rows.tolist(), batches.lengths.tolist(), strict=True))
    assert plan.shapes == [(budget // s, s) for s in sorted(set(shapes))]
    assert not static or got <= set(plan.shapes)


def test_padding_is_small_and_epochs_mix():
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 20_000), 1, 2048).astype(np.int32)
    plan = plan_budget(lengths, budget=16_384, multiple=64, key=1, window=8192)
    assert plan.report().fill > 0.8
    steps = np.arange(plan.n_batches)
    first, second = (plan.batch(steps, epoch) for epoch in (0, 1))
    assert sorted(first.rows.tolist()) == sorted(second.rows.tolist())
    assert first.lengths.tolist() != second.lengths.tolist()

    batch_of = np.empty(len(lengths), np.int64)
    batch_of[second.records] = np.repeat(steps, second.rows)
    partners = np.repeat(steps, first.rows)[1:] == np.repeat(steps, first.rows)[:-1]
    still = batch_of[first.records[1:]] == batch_of[first.records[:-1]]
    assert np.mean(still[partners]) < 0.15
    again = pickle.loads(pickle.dumps(plan)).batch(steps, 1)
    assert again.records.tolist() == second.records.tolist()


def test_a_record_over_the_budget_is_named():
    with pytest.raises(DataError, match=r'(?s)at most 96 tokens.*budget of 100.*97 tokens.*record 5.*"truncate"'):
        plan_budget(np.array([1, 2, 3, 4, 5, 97]), budget=100, multiple=8, key=0, window=4)
    with pytest.raises(DataError, match=r"(?s)at most 64 tokens.*record 0"):
        plan_budget(np.array([65]), budget=100, shapes=[32, 64], key=0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"budget": 0}, "budget: an integer of 1 or more"),
        ({"multiple": 200}, r"(?s)at most the budget, 100.*multiple 200.*raise the budget"),
        ({"shapes": [64, 128]}, r"(?s)at most the budget, 100.*shape 128"),
        ({"shapes": [64], "multiple": 8}, "shapes or multiple, not both"),
        ({"static": True}, r"(?s)shapes in static mode.*pass shapes="),
        ({"max_rows": 0}, "max_rows: an integer of 1 or more"),
        ({"overlong": "split"}, "overlong: one of error, truncate, drop"),
    ],
)
def test_wrong_arguments_are_named(changes, text):
    arguments = {"budget": 100, "key": 0} | changes
    with pytest.raises(UsageError, match=text):
        plan_budget(np.array([1, 2]), **arguments)
