"""The pages of the next steps are fetched while the trainer works, and no batch depends on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import StorageError, StoreError
from penstock.engine import batches as batches_module
from penstock.engine import prefetch
from penstock.engine.batches import Batches
from penstock.storage import metrics, page_fetch
from penstock.storage.cache_budget import OWN_BYTES
from penstock.storage.cache_metrics import PAGES
from penstock.storage.page_needs import PageNeeds
from penstock.store.manifest import write_manifest
from penstock.store.remote_store import RemoteStore
from penstock.store.writer import ShardWriter
from tests.storage.fault_proxy import USUAL, FaultProxy, Faults
from tests.storage.remote_stores import make, upload

QUICK = {
    "client_options": {"read_timeout": timedelta(seconds=0.3)},
    "retry_config": {"backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}},
}


@pytest.fixture(scope="module")
def pair(s3, tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("stores") / "corpus", documents=1500, shards=7)
    return folder, upload(folder, s3.url("prefetch"), s3.options)


def batches(path: Any, **options: Any) -> Any:
    return ps.open_store(path, **options).windows(256).shuffle(seed=5).batch(16)


def same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("threads", [0, 2, None])
def test_readers_find_what_was_fetched_ahead(pair, s3, tmp_path, threads):
    """With 30 ms for each request, a trainer that takes 40 ms for a step meets its pages in the cache."""
    with FaultProxy(s3.endpoint, Faults(latency=0.03)) as proxy:
        remote = batches(pair[1], storage_options=proxy.options, cache_dir=tmp_path / "c").to_numpy(threads=threads)
        local = batches(pair[0]).to_numpy()
        began = before = PAGES.snapshot()
        for number, (a, b) in enumerate(zip(remote, local, strict=False)):
            same(a, b)
            if number == 5:
                before = PAGES.snapshot()
            if number == 30:
                break
            time.sleep(0.04)
        late = PAGES.since(before)
    assert late["pages_found"] >= 20 * late["pages_missed"]  # both are 0 if readers are so far ahead by then
    assert PAGES.since(began)["pages_found"] > 0
    facts = remote.stats()["storage"]
    assert facts["requests"] > 0 and facts["bytes"] > 0 and 0 < facts["hit_rate"] <= 1
    assert not [t for t in threading.enumerate() if t.name == "penstock-prefetch" and _stays(t)]


def _stays(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def test_an_epoch_under_faults_is_exact(pair, s3, tmp_path):
    with FaultProxy(s3.endpoint, USUAL) as proxy:
        options = proxy.options | QUICK
        remote = batches(pair[1], storage_options=options, cache_dir=tmp_path / "c", cache_bytes=1 << 20).to_numpy()
        for a, b in zip(remote, batches(pair[0]).to_numpy(), strict=True):
            same(a, b)
        assert proxy.counts.made["refuse"]


def test_wrong_bytes_are_fetched_again_and_never_delivered(pair, s3, tmp_path):
    with FaultProxy(s3.endpoint, Faults(wrong=0.2, times=1, seed=3)) as proxy:
        remote = batches(pair[1], storage_options=proxy.options, cache_dir=tmp_path / "c").to_numpy()
        local = batches(pair[0]).to_numpy()
        for a, b in zip(remote, local, strict=True):
            same(a, b)
        assert proxy.counts.made["wrong"]


def test_bytes_that_come_wrong_several_times_are_asked_for_again(pair, s3, tmp_path):
    """Each request is answered wrongly three times, each time in another way: manifest, ends of shards, and pages."""
    with FaultProxy(s3.endpoint, Faults(wrong=1.0, times=3, methods=("GET",))) as proxy:
        options = proxy.options | QUICK
        remote = batches(pair[1], storage_options=options, cache_dir=tmp_path / "c").to_numpy(threads=1)
        for a, b in zip(remote, batches(pair[0]).to_numpy(), strict=True):
            same(a, b)
        assert proxy.counts.made["wrong"] > 3 * 8


def test_a_jump_of_the_position_moves_what_is_fetched(pair, s3, tmp_path):
    remote = batches(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c").to_numpy()
    local = batches(pair[0]).to_numpy()
    state = None
    for number, batch in enumerate(remote):
        same(batch, local.batch_at(remote.step - 1))
        if number == 3:
            state = remote.state_dict()
        if number == 8:
            remote.load_state_dict(state)
        if number == 14:
            break
    assert remote.step == 10


def test_a_cache_that_cannot_hold_the_steps_read_at_once_is_refused(pair, s3, tmp_path):
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "c", "cache_bytes": 300_000}
    loader = batches(pair[1], **options).to_numpy(prefetch=8)
    with pytest.raises(StorageError, match=r"at least [\d,]+ bytes for 9 steps of 1 processes") as caught:
        next(iter(loader))
    needed, _, _, pages, tables = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", caught.value.expected))
    store = RemoteStore(pair[1], **options)
    assert "page tables of all shards, which stay open" in caught.value.expected
    assert needed == pages + tables and tables == store._opened_bytes + OWN_BYTES
    work = loader._work()
    read = [needs for picks in work.orders(0, 9) for needs in prefetch.page_needs(work.plan.root, picks)]
    assert pages == sum(needs.size for needs in PageNeeds.joined(read))


def test_pages_that_will_be_read_soon_are_not_evicted(pair, s3, tmp_path):
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c", cache_bytes=900_000)
    soon = store.needs(np.arange(0, 40_000, 1000), np.full(40, 300))
    soon.fetch()
    store.cache.set_horizon(test_pages_that_will_be_read_soon_are_not_evicted, soon.ids)
    time.sleep(0.4)  # past the time for which a page that was fetched is kept anyway
    for start in range(60_000, store.n_tokens - 3000, 3000):
        store.gather(np.array([start]), 3000)
    assert all((file.paged.cached.generations[pages] & 1).all() for file, pages in soon.wanted)
    store.cache.set_horizon(test_pages_that_will_be_read_soon_are_not_evicted, None)
    for start in range(60_000, store.n_tokens - 3000, 3000):
        store.gather(np.array([start]), 3000)
    assert not all((file.paged.cached.generations[pages] & 1).all() for file, pages in soon.wanted)


def test_what_needs_says_is_what_a_read_fetches(pair, s3, tmp_path):
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    rng = np.random.default_rng(2)
    starts, lengths = rng.integers(0, store.n_tokens - 9000, 50), rng.integers(0, 9000, 50)
    store.needs(starts, lengths).fetch()
    before = metrics.counters()
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        store.gather(np.array([start]), length)
    assert metrics.since(before)["s3"].requests == 0


@pytest.fixture(scope="module")
def masked(s3, tmp_path_factory):
    """A store whose documents have loss masks and a column of two numbers."""
    folder = tmp_path_factory.mktemp("stores") / "masked"
    folder.mkdir()
    rng, infos = np.random.default_rng(6), []
    for k in range(3):
        with ShardWriter(folder / f"{k:05d}.tokens", vocab_size=60_000, page_bytes=4096) as shard:
            docs = [rng.integers(0, 60_000, n) for n in rng.integers(1, 700, 300)]
            runs = [np.array([n // 3, n - n // 3]) for n in map(len, docs)]
            pairs = np.arange(600, dtype=np.int32).reshape(-1, 2)
            shard.add(Ragged.of(docs, np.int64), {"loss_runs": Ragged.of(runs, np.uint32), "pair": pairs})
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return folder, upload(folder, s3.url("masked"), s3.options)


@pytest.mark.parametrize("name", ["windows", "pad", "pack"])
def test_columns_and_loss_masks_are_fetched_ahead_too(masked, s3, tmp_path, name):
    def loader(path: Any, **options: Any) -> Any:
        begin = ps.open_store(path, **options)
        made = begin.shuffle(seed=4).pad(to=700)
        if name != "pad":
            made = {"windows": begin.windows(300), "pack": begin.pack(600)}[name].shuffle(seed=4)
        return made.batch(16).to_numpy(threads=0)

    remote = loader(masked[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    (picks,) = remote._work().orders(0, 8)
    for needs in prefetch.page_needs(remote._plan.root, picks):
        needs.fetch()
    before, local = metrics.counters(), loader(masked[0])
    for step in range(8):
        same(remote.batch_at(step), local.batch_at(step))
    assert metrics.since(before)["s3"].requests == 0


def test_requests_of_one_call_are_merged(pair, s3, tmp_path):
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    before = metrics.counters()
    store.needs(np.array([0]), np.array([store.n_tokens])).fetch()
    assert metrics.since(before)["s3"].requests == 2 * 7  # of each shard its end, and all pages in one request


def test_a_local_store_starts_no_thread(pair):
    loader = batches(pair[0]).to_numpy(threads=0)
    next(iter(loader))
    assert not prefetch.is_paged(loader._plan)
    assert "storage" not in loader.stats()


def test_several_loaders_of_a_process_write_their_horizons_together(pair, s3, tmp_path):
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    failed: list[BaseException] = []

    def work(number: int) -> None:
        owner = object()
        try:
            for turn in range(60):
                store.cache.set_horizon(owner, np.arange(number * 100, number * 100 + turn, dtype=np.uint64))
                store.cache.next_uses.horizon()
            store.cache.set_horizon(owner, None)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and len(store.cache.next_uses.horizon()) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_readers_do_not_wait_for_threads_that_failed(pair, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "WAIT_SECONDS", 3600.0)
    monkeypatch.setattr(prefetch.Prefetcher, "_plan", lambda _: 1 / 0)
    remote = batches(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c").to_numpy()
    for a, b in zip(remote, batches(pair[0]).to_numpy(), strict=True):
        same(a, b)


ENDS = """
import json, sys, penstock as ps
url, options, folder = sys.argv[1:]
store = ps.open_store(url, storage_options=json.loads(options), cache_dir=folder, cache_bytes=8 << 20)
batches = iter(store.windows(64).shuffle(seed=3).batch(32).to_numpy())
for _ in range(5):
    next(batches)
"""


def test_a_script_may_end_while_pages_are_fetched(pair, s3, tmp_path):
    for attempt in range(4):
        command = [sys.executable, "-c", ENDS, pair[1], json.dumps(s3.options), str(tmp_path / str(attempt))]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.fixture(scope="module")
def wide(s3, tmp_path_factory):
    """A store of 16 MB in pages of 64 KiB, so that a request reads a part of a shard."""
    folder = make(tmp_path_factory.mktemp("stores") / "wide", documents=18_000, shards=2, page_bytes=1 << 16)
    return folder, upload(folder, s3.url("wide"), s3.options)


@pytest.mark.parametrize("order", [{}, {"lanes": 4, "block": 64, "window": 2}])
@pytest.mark.parametrize("threads", [0, 2, None])
def test_an_epoch_makes_the_requests_of_its_plan_and_fetches_each_byte_once(wide, s3, tmp_path, order, threads):
    """Readers and the threads that fetch ahead do not request the same spans, also when threads start meanwhile."""
    opened = ps.open_store(wide[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    pipeline = opened.windows(512).shuffle(seed=5, **order).batch(32)
    reading = pipeline.plan().reading
    before, loader = metrics.counters(), pipeline.to_numpy(threads=threads)
    local = ps.open_store(wide[0]).windows(512).shuffle(seed=5, **order).batch(32).to_numpy()
    for a, b in zip(loader, local, strict=True):
        same(a, b)
    made = metrics.since(before)["s3"]
    planned = reading.requests + reading.opening_requests_per_host - 1  # less the manifest
    assert made.requests - made.hedges <= 1.1 * planned
    assert made.bytes <= 1.03 * sum(path.stat().st_size for path in wide[0].iterdir())  # 0.98 to 1.01 were seen
    pages = sum(-(-each.bytes // each.page_bytes) for each in ps.open_store(wide[0]).definition.origin.manifest.shards)
    assert 0.9 * pages <= loader.stats()["storage"]["pages_fetched"] <= pages  # and each was kept once


def test_pages_that_the_first_steps_share_come_in_few_requests(wide, s3, tmp_path, monkeypatch):
    """Steps that are fetched together leave no holes between their pages, which would be a request each."""
    monkeypatch.setattr(page_fetch, "GAP", 128 << 10)  # as in a store that is eight times as large
    opened = ps.open_store(wide[1], storage_options=s3.options, cache_dir=tmp_path / "c")
    loader = opened.windows(512).shuffle(seed=5).batch(16).to_numpy()
    before = metrics.counters()
    for a, b in zip(loader, ps.open_store(wide[0]).windows(512).shuffle(seed=5).batch(16).to_numpy(), strict=True):
        same(a, b)
    made = metrics.since(before)["s3"]
    assert made.requests - made.hedges <= 40  # 20 were seen; 124 where each call fetched what is absent of a few steps


def test_large_batches_are_read_several_calls_at_once(pair, s3, tmp_path, monkeypatch):
    """A call that looks pages up costs as much as copying a batch. As few batches as before are made in one call."""
    monkeypatch.setattr(batches_module, "LATE_BYTES", 0)  # batches are made by the thread that reads them
    monkeypatch.setattr(batches_module, "REMOTE_ROWS", 32)
    for _ in batches(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c").to_numpy():
        pass
    read, calls = RemoteStore.gather, []

    def counted(self: RemoteStore, starts: Any, length: int) -> Any:
        calls.append(len(starts))
        return read(self, starts, length)

    monkeypatch.setattr(RemoteStore, "gather", counted)
    loader = batches(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c").to_numpy(threads=1)
    for a, b in zip(loader, batches(pair[0]).to_numpy(), strict=True):
        same(a, b)
    assert sum(calls) == 16 * len(loader)  # no row twice
    assert len(calls) <= len(loader) // 4  # every second step had a call of its own


def test_a_damaged_page_fails_in_its_own_step(s3, tmp_path, monkeypatch):
    """The steps before it are delivered, also where a thread reads further than it was asked for."""
    monkeypatch.setattr(batches_module, "LATE_BYTES", 0)
    folder = make(tmp_path / "corpus", documents=600, shards=1)
    whole, path = ps.open_store(folder).windows(256).batch(16).to_numpy(), folder / "00000.tokens"
    content = bytearray(path.read_bytes())
    content[4096 + 2 * 16 * 256 * 20] ^= 1  # the first window of step 20, and the last label of step 19
    path.write_bytes(content)
    url = upload(folder, s3.url("damaged", tmp_path.name), s3.options)
    opened = ps.open_store(url, storage_options=s3.options | QUICK, cache_dir=tmp_path / "c")
    came = iter(opened.windows(256).batch(16).to_numpy(threads=1))
    with pytest.raises(StoreError, match="page"):
        for step in range(len(whole)):
            same(next(came), whole.batch_at(step))
    assert step == 19


def test_the_order_of_a_step_is_computed_once(pair, s3, tmp_path, monkeypatch):
    """By the thread that fetches ahead, or by the reader, for both."""
    plan, computed = Batches._plan_block, []

    def counted(self: Batches, step: int, lo: int, hi: int) -> Any:
        computed.append(lo)
        return plan(self, step, lo, hi)

    monkeypatch.setattr(Batches, "_plan_block", counted)
    for _ in batches(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c").to_numpy(threads=1):
        pass
    assert sorted(computed) == sorted(set(computed))
