"""A full cache evicts what is needed last, as the plans of all processes say."""

from __future__ import annotations

import os

import numpy as np
import pytest
from bench.cache_sizes import furthest, longest_unused

import penstock as ps
from penstock.engine.later_uses import LaterUses
from penstock.engine.prefetch import page_needs
from penstock.storage.cache_budget import OWN_BYTES, CacheBudget
from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import page_ids
from penstock.storage.next_uses import NEVER, NextUses, Uses
from penstock.store.remote_store import RemoteStore
from tests.storage.remote_stores import PAGE, make, upload


@pytest.fixture(scope="module")
def pair(s3, tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("stores") / "corpus", documents=1200)
    return folder, upload(folder, s3.url("next-uses"), s3.options)


def uses(pages: list[int], steps: list[int]) -> Uses:
    return Uses.of(np.array(pages, np.uint64), np.array(steps, np.uint32))


def test_of_several_uses_the_first_counts_and_unknown_pages_are_never_used():
    known = uses([9, 4, 9, 1], [7, 0, 3, 5])
    assert known.at(np.array([1, 4, 9, 2, 99], np.uint64)).tolist() == [5, 0, 3, NEVER, NEVER]
    assert uses([], []).at(np.array([3], np.uint64)).tolist() == [NEVER]


def test_processes_know_the_uses_of_each_other(tmp_path):
    first, second = (CacheBudget(str(tmp_path / "control")) for _ in range(2))
    with first.mutex():
        first.counted(0)
    one, other = NextUses(str(tmp_path), first), NextUses(str(tmp_path), second)
    one.set_later("a", uses([1, 2], [5, 6]), 1 << 20)
    one.set_later("b", uses([2, 3], [1, 9]), 1 << 20)
    other.set_later("c", uses([3, 4], [2, 8]), 1 << 20)
    for each in (one, other):
        assert each.later().at(np.arange(1, 6, dtype=np.uint64)).tolist() == [5, 1, 2, 8, NEVER]
    assert first.total() >= OWN_BYTES + sum(os.path.getsize(path) for path in tmp_path.glob("later-*"))
    one.set_horizon("a", None)
    assert other.later().at(np.array([1], np.uint64)).tolist() == [NEVER]
    one.set_later("b", uses(list(range(9000)), [1] * 9000), OWN_BYTES + 5000)  # no room for the file
    assert other.later().at(np.array([8000], np.uint64)).tolist() == [NEVER]
    for each, budget in ((one, first), (other, second)):
        each.close()
        budget.close()
    assert not list(tmp_path.glob("later-*"))


def test_pages_that_are_needed_last_leave_first(pair, s3, tmp_path):
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    store.gather(np.arange(0, store.n_tokens - 2048, 2048), 2048)
    cached = store._remote(1).paged.cached
    pages = cached.present()
    pages = pages[pages < cached.tail]
    steps = np.random.default_rng(3).permutation(len(pages)).astype(np.uint32)
    store.cache.set_later(store, Uses.of(page_ids(cached.key, pages), steps))
    others = [store._remote(n).paged.cached for n in (0, 2, 3, 4)]
    unknown = sum(each.entry_bytes(each.present()[:-1]) for each in others)
    limited = store.cache.with_limit(1)
    limited.eviction.free(unknown + 30 * PAGE, 1)  # what is not known to be used leaves before all others
    assert not any(np.any(each.present() < each.tail) for each in others)
    left = np.isin(pages, cached.present())
    assert 0 < left.sum() <= len(pages) - 30
    assert steps[left].max() < steps[~left].min()


def test_later_uses_are_those_of_the_plan(pair, s3, tmp_path):
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "c", "cache_bytes": 900_000}
    for made in (
        ps.open_store(pair[1], **options).windows(256).shuffle(seed=2).batch(16),
        ps.open_store(pair[1], **options).pack(512).shuffle(seed=2).batch(8),
        ps.open_store(pair[1], **options).shuffle(seed=2).pad(to=900).batch(8),
    ):
        loader = made.to_numpy(threads=0)
        work, cache = loader._work(), RemoteStore(pair[1], **options).cache
        later = LaterUses(work, len(loader))
        for at in (0, 3, 9):
            later.advance(at, later, cache, PAGE)
            expected: dict[int, int] = {}
            for step in range(at, len(loader)):
                (picks,) = work.orders(step, step + 1)
                tokens = page_needs(work.plan.root, picks)[0]
                for page in tokens.ids.tolist():
                    expected.setdefault(page, step - at)
            found = cache.next_uses.later()
            assert len(found.pages) > 100
            wanted = [expected[page] for page in found.pages.tolist()]
            assert np.array_equal(found.uses, wanted)
        cache.set_horizon(later, None)


def test_an_epoch_in_a_cache_of_half_the_store_reads_less_than_by_longest_unused(pair, s3, tmp_path):
    def loader(**options):
        store = ps.open_store(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c", **options)
        return store.windows(256).shuffle(seed=1).batch(16).to_numpy(threads=1)

    measure = loader()
    work, steps = measure._work(), []
    for step in range(len(measure)):
        (needs,) = page_needs(measure._plan.root, next(work.orders(step, step + 1)))
        steps.append(needs.ids)
    room = len(np.unique(np.concatenate(steps))) // 2
    before = PAGES.snapshot()
    local = ps.open_store(pair[0]).windows(256).shuffle(seed=1).batch(16).to_numpy()
    limit = OWN_BYTES + sum(needs.opened.values()) + room * PAGE
    for a, b in zip(loader(cache_bytes=limit), local, strict=True):
        np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
    fetched = PAGES.since(before)["pages_fetched"]
    assert furthest(steps, room) <= fetched < longest_unused(steps, room)
