"""Packing: nothing lost, nothing doubled, capacity never exceeded; patterns as good as packing one by one."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import DataError, UsageError
from penstock.order.best_fit import best_fit
from penstock.order.lru_cache import LruCache
from penstock.order.pack import PackPlan

lengths_of = st.lists(st.integers(0, 40), max_size=60)


def tokens_of(pieces):
    """Every (document, token) of the pieces, as a counter."""
    got = Counter()
    for doc, start, length in zip(*(a.tolist() for a in pieces[1:]), strict=True):
        got.update((doc, t) for t in range(start, start + length))
    return got


def expected_tokens(lengths, capacity, overlong):
    kept = {"split": lambda n: n, "truncate": lambda n: min(n, capacity), "drop": lambda n: n if n <= capacity else 0}
    return Counter((doc, t) for doc, n in enumerate(lengths) for t in range(kept[overlong](n)))


@settings(max_examples=150, deadline=None)
@given(
    lengths=lengths_of,
    capacity=st.integers(1, 25),
    superblock=st.integers(1, 70),
    overlong=st.sampled_from(["split", "truncate", "drop"]),
    max_docs=st.none() | st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_nothing_is_lost_or_doubled_and_no_pack_is_too_full(lengths, capacity, superblock, overlong, max_docs, epoch):
    plan = PackPlan.build(
        np.array(lengths, np.int32),
        capacity=capacity,
        key=5,
        superblock=superblock,
        overlong=overlong,
        max_docs=max_docs,
    )
    pieces = plan.pack(np.random.default_rng(epoch).permutation(plan.n_packs), epoch)
    assert tokens_of(pieces) == expected_tokens(lengths, capacity, overlong)
    sizes = np.diff(pieces.offsets)
    assert len(sizes) == plan.n_packs
    assert (sizes >= 1).all() and (max_docs is None or (sizes <= max_docs).all())
    filled = np.add.reduceat(pieces.lengths, pieces.offsets[:-1]) if plan.n_packs else np.array([])
    assert (filled <= capacity).all() and (pieces.lengths >= 1).all()

    report = plan.report()
    long = [n for n in lengths if n > capacity]
    assert report.documents == len(lengths) and report.empty == lengths.count(0)
    assert (report.tokens, report.pieces) == (pieces.lengths.sum(), len(pieces.documents))
    assert report.padding == plan.n_packs * capacity - report.tokens
    assert {"split": report.split, "truncate": report.truncated, "drop": report.dropped}[overlong] == len(long)
    assert report.tokens + report.lost_tokens == sum(lengths)


@settings(max_examples=100, deadline=None)
@given(lengths=lengths_of, capacity=st.integers(1, 25), data=st.data())
def test_one_pack_alone_is_the_same_as_among_many(lengths, capacity, data):
    plan = PackPlan.build(np.array(lengths, np.int64), capacity=capacity, key=1, superblock=13)
    if not plan.n_packs:
        return
    asked = data.draw(st.lists(st.integers(0, plan.n_packs - 1), max_size=8))
    together = plan.pack(np.array(asked, np.int64), epoch=2)
    assert len(together.offsets) == len(asked) + 1
    for i, p in enumerate(asked):
        alone = plan.pack(p, epoch=2)
        cut = slice(together.offsets[i], together.offsets[i + 1])
        for one, many in zip(alone[1:], together[1:], strict=True):
            assert one.tolist() == many[cut].tolist()


def pack_one_by_one(lengths, capacity):
    """Best-fit-decreasing in its textbook form: free space left in the packs, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [r for r in rooms if r >= length]
        room = min(fitting) if fitting else capacity
        if fitting:
            rooms.remove(room)
        rooms.append(room - length)
    return sorted(rooms)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 30), data=st.data())
def test_histogram_packing_equals_packing_one_by_one(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=80))
    plan = best_fit(np.bincount(np.array(lengths, np.int64), minlength=1), capacity)
    held = np.array([(plan.length * plan.copies)[a:b].sum() for a, b in pairwise(plan.run_offsets)])
    rooms = sorted(np.repeat(capacity - held.astype(np.int64), plan.uses).tolist())
    assert rooms == pack_one_by_one(lengths, capacity)


@pytest.mark.parametrize(
    ("lengths", "capacity", "packs"),
    [([7] * 10, 7, 10), ([3] * 10, 7, 5), ([1] * 10, 1, 10), ([5], 9, 1), ([0, 0], 4, 0), ([], 4, 0), ([9], 4, 3)],
)
def test_plain_cases(lengths, capacity, packs):
    plan = PackPlan.build(np.array(lengths, np.int64), capacity=capacity, key=0)
    assert plan.n_packs == packs
    assert tokens_of(plan.pack(np.arange(packs))) == expected_tokens(lengths, capacity, "split")


def test_pieces_of_a_split_document_are_full_but_the_last():
    plan = PackPlan.build(np.array([2, 11]), capacity=4, key=0)
    pieces = plan.pack(np.arange(plan.n_packs))
    of_long = pieces.documents == 1
    found = zip(pieces.starts[of_long].tolist(), pieces.lengths[of_long].tolist(), strict=True)
    assert sorted(found) == [(0, 4), (4, 4), (8, 3)]


def test_lengths_beyond_16_bits_are_sorted_right():
    lengths = np.random.default_rng(1).integers(1, 300_000, 400)
    plan = PackPlan.build(lengths, capacity=200_000, key=0, overlong="truncate")
    pieces = plan.pack(np.arange(plan.n_packs))
    assert sorted(pieces.documents.tolist()) == list(range(400))
    assert pieces.lengths.tolist() == np.minimum(lengths, 200_000)[pieces.documents].tolist()


def lognormal(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(600) - 0.5, 1, n), 1, 20_000).astype(np.int32)


def test_fill_on_lognormal_lengths_is_above_99_5_percent():
    lengths = lognormal(200_000)
    plan = PackPlan.build(lengths, capacity=4096, key=3, superblock=70_000)
    report = plan.report()
    assert report.fill > 0.995
    pieces = plan.pack(np.arange(plan.n_packs), epoch=1)
    assert report.tokens == int(lengths.sum()) == int(pieces.lengths.sum())
    whole = lengths[pieces.documents] <= 4096
    assert len(np.unique(pieces.documents[whole])) == np.count_nonzero(whole) == np.count_nonzero(lengths <= 4096)


def test_epochs_change_neighbours_but_not_the_number_of_packs():
    plan = PackPlan.build(lognormal(50_000), capacity=4096, key=3)
    first, second = (plan.pack(np.arange(plan.n_packs), epoch) for epoch in (0, 1))
    assert first.lengths.tolist() == second.lengths.tolist()
    assert np.mean(first.documents == second.documents) < 0.1
    other_key = PackPlan.build(lognormal(50_000), capacity=4096, key=4).pack(np.arange(plan.n_packs))
    assert np.mean(first.documents == other_key.documents) < 0.1


def test_plan_is_the_same_from_a_function_and_a_pickle():
    lengths = lognormal(3_000)
    plan = PackPlan.build(lengths, capacity=2048, key=9, superblock=1000)
    asked = np.arange(plan.n_packs)[::-7]
    expected = plan.pack(asked, 1)
    calls = []

    def read(start, stop):
        calls.append((start, stop))
        return lengths[start:stop]

    lazy = PackPlan.build(read, 3_000, capacity=2048, key=9, superblock=1000)
    assert lazy.n_packs == plan.n_packs and lazy.report() == plan.report()
    for again in (pickle.loads(pickle.dumps(plan)), lazy):
        for a, b in zip(expected, again.pack(asked, 1), strict=True):
            assert a.tolist() == b.tolist()
    assert set(calls) == {(0, 1000), (1000, 2000), (2000, 3000)}


def test_lengths_that_changed_after_planning_raise():
    lengths = lognormal(100)
    plan = PackPlan.build(lambda start, stop: lengths[start:stop], 100, capacity=2048, key=9, superblock=1)
    lengths[:] += 1  # the first superblocks are no longer cached
    with pytest.raises(DataError, match=r"(?s)same document lengths.*documents 0\.\.1\n.*let nothing change its data"):
        plan.pack(0)


def test_overlong_error_names_the_document():
    with pytest.raises(DataError, match=r'(?s)at most 10 tokens.*12 tokens \(2 such.*document 3.*overlong="split"'):
        PackPlan.build(np.array([1, 2, 10, 12, 30]), capacity=10, key=0, superblock=3, overlong="error")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"capacity": 0}, "capacity: an integer of 1 or more"),
        ({"overlong": "cut"}, "overlong: one of split, truncate, drop, error"),
        ({"max_docs": 0}, "max_docs: an integer of 1 or more"),
        ({"lengths": np.array([1.5])}, "a flat array of integer lengths"),
        ({"lengths": lambda a, b: np.ones(b - a, int)}, "n_docs with a function of lengths"),
        ({"n_docs": 5}, "n_docs equal to the number of lengths"),
    ],
)
def test_wrong_arguments_are_named(changes, text):
    arguments = {"lengths": np.array([1, 2]), "capacity": 4, "key": 0} | changes
    with pytest.raises(UsageError, match=text):
        PackPlan.build(arguments.pop("lengths"), **arguments)


def test_bad_lengths_and_packs_are_named():
    with pytest.raises(DataError, match=r"(?s)0 or more.*-3.*document 4"):
        PackPlan.build(np.array([1, 1, 1, 1, -3]), capacity=4, key=0, superblock=2)
    with pytest.raises(DataError, match=r"(?s)2 lengths.*shape \(1,\).*documents 0\.\.2"):
        PackPlan.build(lambda a, b: np.ones(1, int), 2, capacity=4, key=0)
    plan = PackPlan.build(np.array([4, 4]), capacity=4, key=0)
    with pytest.raises(UsageError, match=r"(?s)packs in \[0, 2\).*got: +2"):
        plan.pack([0, 2])


def test_the_cache_computes_once_for_many_threads_and_does_not_keep_failures():
    recent, built, gate = LruCache[int](2), [], threading.Event()

    def build():
        gate.wait(5)
        built.append(1)
        return 7

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(recent.get("a", build))) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert got == [7] * 8 and built == [1]
    with pytest.raises(ZeroDivisionError):
        recent.get("b", lambda: 1 // 0)
    assert recent.get("b", lambda: 2) == 2
