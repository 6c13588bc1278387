"""The limits of the page cache: each open keeps its own, too small ones are refused at once, readers go first."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import StorageError
from penstock.storage import page_cache
from penstock.store.reader import TokenStore
from penstock.store.remote_store import RemoteStore
from tests.storage.remote_stores import disk_bytes, make, upload


@pytest.fixture(scope="module")
def pair(s3, tmp_path_factory):
    """A store on disk, and its URL."""
    folder = make(tmp_path_factory.mktemp("stores") / "corpus")
    return folder, upload(folder, s3.url("cache-limits"), s3.options)


@pytest.mark.parametrize(
    "damage", ["random", "truncated", "while in use",
               *(pytest.param(how, marks=pytest.mark.soak) for how in ("after the magic", "all ones", "zeros"))]
)  # fmt: skip
def test_a_damaged_count_of_bytes_is_counted_again(pair, s3, tmp_path, damage):
    """In processes of their own: each opens the cache anew. The bound holds, and no process waits for room."""
    cache = tmp_path / "cache"
    code = (
        "import json, sys, numpy as np\n"
        "from penstock.storage import page_cache\n"
        "from penstock.store.remote_store import RemoteStore\n"
        "page_cache._PATIENCE = 5.0\n"
        "job = json.loads(sys.argv[1])\n"
        "store = RemoteStore(job['url'], storage_options=job['options'], cache_dir=job['cache'], cache_bytes=400_000)\n"
        "for turn in range(2):\n"
        "    for at in range(0, store.n_tokens - 3000, 3000):\n"
        "        store.gather(np.array([at]), 3000)\n"
        "    if job['damage']:\n"
        "        with open(job['cache'] + '/pages/control', 'r+b') as file:\n"
        "            file.seek(8)\n"
        "            file.write(np.random.default_rng(4).bytes(16_000))\n"
    )
    job = {"url": pair[1], "options": s3.options, "cache": str(cache), "damage": damage == "while in use"}
    for turn in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(job)], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert 0 < disk_bytes(cache) <= 400_000
        control = cache / "pages" / "control"
        size = control.stat().st_size
        if turn == 0 and damage != "while in use":
            with open(control, "r+b") as file:
                file.seek(8 if damage == "after the magic" else 0)
                rest = size - file.tell()
                if damage == "truncated":
                    file.truncate(12)
                else:
                    random = np.random.default_rng(4).bytes(rest)
                    file.write({"all ones": b"\xff" * rest, "zeros": bytes(rest)}.get(damage, random))


def test_each_store_of_a_process_has_its_own_limit(pair, s3, tmp_path):
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "cache"}
    local, tiny = TokenStore(pair[0]), RemoteStore(pair[1], cache_bytes=1, **options)
    with pytest.raises(StorageError, match=r"at least [\d,]+ bytes"):
        tiny.gather(np.array([5]), 9)
    wide, starts = RemoteStore(pair[1], **options), np.arange(0, local.n_tokens - 700, 700)
    np.testing.assert_array_equal(wide.gather(starts, 700), local.gather(starts, 700))
    assert disk_bytes(tmp_path / "cache") > 400_000
    with pytest.raises(StorageError, match="cache_bytes=1\n"):
        tiny.gather(np.array([50_000]), 9)
    time.sleep(0.5)  # past the time for which a page that was read is kept
    bounded = RemoteStore(pair[1], cache_bytes=400_000, **options)
    np.testing.assert_array_equal(bounded.gather(starts[:50], 700), local.gather(starts[:50], 700))
    assert disk_bytes(tmp_path / "cache") <= 400_000


def test_a_limit_below_what_open_shards_need_is_refused_at_once(pair, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(page_cache, "_PATIENCE", 3.0)
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=100_000)
    with pytest.raises(StorageError, match=r"at least \d\d\d,\d\d\d bytes"):
        for at in range(0, remote.n_tokens - 9, 9000):
            remote.gather(np.array([at]), 9)


def test_a_reader_evicts_what_was_fetched_ahead_if_there_is_no_other_room(pair, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(page_cache, "_PATIENCE", 3.0)
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=400_000)
    local, everything = TokenStore(pair[0]), remote.needs(np.array([0]), np.array([remote.n_tokens]))
    remote.cache.set_horizon(everything, everything.ids)
    everything.fetch()
    for at in range(0, local.n_tokens - 3000, 30_000):
        np.testing.assert_array_equal(remote.gather(np.array([at]), 3000), local.gather(np.array([at]), 3000))
    assert not everything.has_room()
    remote.cache.set_horizon(everything, None)
    assert disk_bytes(tmp_path / "cache") <= 400_000


def test_a_count_during_an_eviction_takes_nothing_off_twice(pair, s3, tmp_path):
    """Another process may count the pages again after some were marked absent, and before they are freed."""
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache")
    remote.gather(np.arange(0, remote.n_tokens - 700, 700), 700)
    cache, cached = remote.cache, remote._remote(0).paged.cached
    real = cache.free_space

    def free_space(*arguments: Any) -> None:
        cache.free_space = real
        cache.eviction.count_again()
        real(*arguments)

    cache.free_space = free_space
    assert cache.evict(cached, cached.present()[:-1])
    counted = cache.budget.total()
    cache.eviction.count_again()
    assert cache.budget.total() == counted


def same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("name", ["windows", "pad", "pack", "bucket"])
@pytest.mark.parametrize("threads", [0, 2])
def test_the_number_of_bytes_in_the_refusal_is_enough_for_the_run(pair, s3, tmp_path, monkeypatch, threads, name):
    monkeypatch.setattr(page_cache, "_PATIENCE", 3.0)

    def loader(path: Any, **options: Any) -> Any:
        begin = ps.open_store(path, **options)
        made = begin.shuffle(seed=5)
        if name == "bucket":
            return made.bucket([300, 600], batch_size=8).to_numpy(threads=threads)
        if name != "pad":
            made = (begin.windows(256) if name == "windows" else begin.pack(512)).shuffle(seed=5)
        return (made.pad(to=900) if name == "pad" else made).batch(16).to_numpy(threads=threads)

    options = {"storage_options": s3.options, "cache_dir": tmp_path / "c"}
    needed = 1
    for _ in range(1 if name in ("windows", "pad") else 2):  # the others read all lengths before there is a batch
        with pytest.raises(StorageError, match="at least") as caught:
            next(iter(loader(pair[1], cache_bytes=needed, **options)))
        needed = int(re.search(r"cache_bytes=([\d,]+)", caught.value.fix)[1].replace(",", ""))
    with pytest.raises(StorageError, match=f"at least {needed:,} bytes"):
        next(iter(loader(pair[1], cache_bytes=needed - 1, **options)))
    remote = loader(pair[1], cache_bytes=needed, **options)
    for a, b in zip(remote, loader(pair[0]), strict=True):
        same(a, b)
    assert disk_bytes(tmp_path / "c") <= needed


def test_readers_that_fill_the_cache_alone_do_not_wait_for_each_other(pair, s3, tmp_path, monkeypatch):
    """Each of four threads reads what just fits, of shards that the others read too: one after another, none waits."""
    monkeypatch.setattr(page_cache, "_PATIENCE", 20.0)
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "c"}
    local, opened = TokenStore(pair[0]), RemoteStore(pair[1], **options)
    rows = np.arange(0, 600, 7)
    expected = local.read(rows)
    opened.read(rows)
    size = opened.needs(local.starts(rows), local.lengths(rows)).size + 12 * 4096  # and their tables
    remote = RemoteStore(pair[1], cache_bytes=page_cache.OWN_BYTES + opened._opened_bytes + size, **options)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(4):
                some = np.random.default_rng([seed, turn]).permutation(len(rows))
                found = remote.read(rows[some])
                for number, at in enumerate(some.tolist()):
                    np.testing.assert_array_equal(found["input_ids"][number], expected["input_ids"][at])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed[0]
    assert not any(thread.is_alive() for thread in threads)


def test_what_does_not_fit_at_once_is_read_in_parts(pair, s3, tmp_path):
    local = TokenStore(pair[0])
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "c", cache_bytes=300_000)
    rows = np.random.default_rng(2).permutation(len(local))
    found, expected = remote.read(rows), local.read(rows)
    assert found.keys() == expected.keys()
    for name in expected:
        for a, b in zip(found[name], expected[name], strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(remote.lengths(rows), local.lengths(rows))
    assert disk_bytes(tmp_path / "c") <= 300_000
