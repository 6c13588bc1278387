"""Length buckets: each record once, in a batch of its own bucket."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.order.buckets import bucket_of, plan_buckets

boundaries_of = st.lists(st.integers(1, 50), max_size=4, unique=True).map(sorted)


def test_a_length_on_the_boundary_belongs_below_it():
    assert bucket_of([0, 8, 9, 16, 17], [8, 16]).tolist() == [0, 0, 1, 1, 2]
    assert bucket_of([5], []).tolist() == [0]


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), max_size=80),
    boundaries=boundaries_of,
    remainder=st.sampled_from(["drop", "short", "pad"]),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_each_record_once_in_its_bucket(lengths, boundaries, remainder, epoch, shuffle, data):
    n_buckets = len(boundaries) + 1
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=n_buckets, max_size=n_buckets))
    array = np.array(lengths, np.int64)
    plan = plan_buckets(array, boundaries=boundaries, batch_size=sizes, key=2, remainder=remainder)
    batches = plan.batch(np.arange(plan.n_batches), epoch, shuffle=shuffle)
    records = batches.records.tolist()
    assert len(set(records)) == len(records) == len(lengths) - plan.left_out
    of = bucket_of(array, boundaries)
    left = {b: np.count_nonzero(of == b) % sizes[b] for b in range(n_buckets)}
    assert plan.left_out == (sum(left.values()) if remainder == "drop" else 0)
    for i in range(plan.n_batches):
        mine = batches.records[batches.offsets[i] : batches.offsets[i + 1]]
        bucket = set(of[mine].tolist())
        assert len(bucket) == 1
        size = sizes[bucket.pop()]
        assert 1 <= len(mine) <= size and array[mine].max() <= batches.lengths[i]
        assert batches.rows[i] == (len(mine) if remainder == "short" else size)
    if plan.n_batches:
        step = data.draw(st.integers(0, plan.n_batches - 1))
        alone = plan.batch(step, epoch, shuffle=shuffle)
        assert alone.records.tolist() == records[batches.offsets[step] : batches.offsets[step + 1]]


def test_epochs_and_keys_change_batches():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    plan = plan_buckets(lengths, boundaries=[25, 50], batch_size=10, key=1)
    first, second = (plan.batch(np.arange(20), epoch).records for epoch in (0, 1))
    assert len(set(first.tolist()) & set(second.tolist())) < 100
    batch_of = np.zeros(1000, np.int64)
    batch_of[second] = np.repeat(np.arange(1, 21), 10)
    both = np.isin(first[:-1], second) & np.isin(first[1:], second)
    assert np.mean(batch_of[first[1:]][both] == batch_of[first[:-1]][both]) < 0.5
    again = pickle.loads(pickle.dumps(plan)).batch(np.arange(20), 0).records
    assert again.tolist() == first.tolist()


def test_one_size_short_of_the_open_bucket_repeats_the_last():
    plan = plan_buckets(np.array([1, 9, 9, 99, 99]), boundaries=[5, 10], batch_size=[1, 2], key=1)
    assert plan.sizes.tolist() == [1, 2, 2] and plan.n_batches == 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"boundaries": [8, 4]}, r"(?s)increasing bucket boundaries.*\[8, 4\].*sort them"),
        ({"boundaries": [0]}, "boundaries: an integer of 1 or more"),
        ({"batch_size": 0}, "batch_size: an integer of 1 or more"),
        ({"batch_size": [1, 2, 3, 4, 5]}, r"(?s)one for each of 3 buckets.*5 sizes"),
        ({"remainder": "wrap"}, "remainder: one of drop, short, pad"),
    ],
)
def test_wrong_arguments_are_named(changes, text):
    arguments = {"boundaries": [4, 8], "batch_size": 2, "key": 0} | changes
    with pytest.raises(UsageError, match=text):
        plan_buckets(np.array([1, 2]), **arguments)
