"""A token store on an object store reads as the same store on disk: cold, warm, evicted, in threads and processes."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main as cli
from penstock.core.columns import Ragged
from penstock.core.errors import StorageError, StoreError, UsageError
from penstock.storage import metrics, objects, page_fetch
from penstock.storage.cache_metrics import PAGES
from penstock.storage.page_cache import open_cache
from penstock.store.opening import open_token_store
from penstock.store.reader import TokenStore
from penstock.store.remote_store import RemoteStore
from penstock.store.verify import verify
from tests.storage.fault_proxy import FaultProxy, Faults
from tests.storage.remote_stores import PAGE, disk_bytes, make, upload


@pytest.fixture(scope="module")
def pair(s3, tmp_path_factory):
    """A store on disk, and its URL."""
    folder = make(tmp_path_factory.mktemp("stores") / "corpus")
    return folder, upload(folder, s3.url("remote-store"), s3.options)


@pytest.fixture
def remote(pair, s3, tmp_path):
    return RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache")


def same(local: TokenStore, remote: TokenStore, seed: int = 0, rounds: int = 4) -> None:
    """Compares every kind of read at random places."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        starts = rng.integers(0, local.n_tokens - 700, 20)
        np.testing.assert_array_equal(remote.gather(starts, 700), local.gather(starts, 700))
        docs = rng.integers(0, len(local), 30)
        a, b = remote.read(docs), local.read(docs)
        assert a.keys() == b.keys()
        for name in a:
            if isinstance(b[name], Ragged):
                np.testing.assert_array_equal(a[name].values, b[name].values)
                np.testing.assert_array_equal(a[name].offsets, b[name].offsets)
            else:
                np.testing.assert_array_equal(a[name], b[name])
        np.testing.assert_array_equal(remote.documents_at(starts), local.documents_at(starts))
        np.testing.assert_array_equal(remote.lengths(docs), local.lengths(docs))
        np.testing.assert_array_equal(remote.starts(docs), local.starts(docs))
        assert remote.locate(int(docs[0])) == local.locate(int(docs[0]))


def test_every_read_equals_the_local_one_cold_and_warm(pair, remote, s3, tmp_path):
    local = TokenStore(pair[0])
    assert remote.fingerprint() == local.fingerprint() and remote.describe() == local.describe()
    same(local, remote)
    before = metrics.counters()
    same(local, remote)  # the same places again
    again = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache")
    same(local, again)
    assert metrics.since(before)["s3"].requests == 1  # the manifest


def test_a_cache_much_smaller_than_the_store_stays_within_its_bound(pair, s3, tmp_path):
    bound = 400_000  # the store has about 600 KB, and the fixed costs of 5 shards are 120 KB
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=bound)
    local = TokenStore(pair[0])
    before = PAGES.snapshot()
    for seed in range(4):
        same(local, remote, seed, rounds=1)
        assert disk_bytes(tmp_path / "cache") <= bound
    assert PAGES.since(before)["pages_evicted"] > 0


def test_a_smaller_bound_shrinks_the_cache(pair, remote, s3, tmp_path):
    same(TokenStore(pair[0]), remote)
    remote.close()
    del remote
    assert disk_bytes(tmp_path / "cache") > 400_000
    RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=300_000).starts([0])
    assert disk_bytes(tmp_path / "cache") <= 300_000


def test_a_budget_below_one_row_is_refused_with_the_number(pair, s3, tmp_path):
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=200_000)
    local, starts = TokenStore(pair[0]), np.arange(0, remote.n_tokens - 700, 700)
    np.testing.assert_array_equal(remote.gather(starts, 700), local.gather(starts, 700))  # a part of the rows at a time
    assert disk_bytes(tmp_path / "cache") <= 200_000
    with pytest.raises(StorageError, match=r"at least \d\d\d,\d\d\d bytes") as caught:
        remote.gather(np.array([0]), 90_000)
    assert "cache_bytes=" in caught.value.fix


@pytest.mark.parametrize("name", ["windows", "pack", "pad", "bucket"])
@pytest.mark.parametrize("threads", [0, 2])
def test_pipelines_over_a_remote_store_make_the_same_batches(pair, s3, tmp_path, name, threads):
    def loader(path: Any, **options: Any) -> Any:
        begin = ps.open_store(path, **options)
        made = {
            "windows": lambda: begin.windows(256).shuffle(seed=5),
            "pack": lambda: begin.pack(512).shuffle(seed=5),
            "pad": lambda: begin.shuffle(seed=5).pad(to=900),
            "bucket": lambda: begin.shuffle(seed=5),
        }[name]()
        batches = made.batch(8) if name != "bucket" else made.bucket([300, 600], batch_size=8)
        return batches.to_numpy(threads=threads)

    local = loader(pair[0])
    bound = 1_000_000 if threads else 2_000_000  # the smaller one evicts, the larger one holds the store
    remote = loader(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=bound)
    count = 0
    for a, b in zip(remote, local, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
        count += 1
    assert count > 5
    assert remote.state_dict() == local.state_dict()
    assert remote.why(3, 2) == local.why(3, 2)


def test_a_mixture_of_remote_stores_makes_the_same_batches(pair, s3, tmp_path):
    def loader(path: Any, **options: Any) -> Any:
        each = [ps.open_store(path, **options).windows(128).shuffle(seed=n) for n in range(3)]
        return ps.mix(each, weights=[1, 2, 3], seed=4).take(300).batch(10).to_numpy()

    options = {"storage_options": s3.options, "cache_dir": tmp_path / "cache"}
    for a, b in zip(loader(pair[1], **options), loader(pair[0]), strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


def test_child_processes_read_through_the_same_cache(pair, s3, tmp_path):
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "cache"}
    local = ps.open_store(pair[0]).windows(256).shuffle(seed=5).batch(8).to_numpy()
    remote = ps.open_store(pair[1], **options).windows(256).shuffle(seed=5).batch(8).to_numpy(workers=2)
    for a, b in zip(remote, local, strict=True):
        np.testing.assert_array_equal(a["input_ids"], b["input_ids"])


def test_one_shard_is_a_store_too(pair, s3, tmp_path):
    remote = open_token_store(f"{pair[1]}/00002.tokens", storage_options=s3.options, cache_dir=tmp_path / "cache")
    same(TokenStore(pair[0] / "00002.tokens"), remote, rounds=1)


def test_secrets_are_in_no_repr_state_or_fingerprint(pair, s3, tmp_path):
    pipeline = ps.open_store(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache").windows(64).batch(4)
    loader = pipeline.to_numpy()
    next(iter(loader))
    shown = [repr(pipeline), str(pipeline), repr(loader), repr(loader.state_dict()), repr(loader.stats())]
    store = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache")
    shown += [repr(store), store.fingerprint(), repr(store.describe())]
    assert not any(s3.options["secret_access_key"] in text for text in shown)
    other = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(other.gather(np.array([5]), 9), store.gather(np.array([5]), 9))


def test_a_store_that_is_not_there_names_the_object(s3, tmp_path):
    with pytest.raises(StoreError, match="no object of this name") as caught:
        ps.open_store(s3.url("nowhere"), storage_options=s3.options, cache_dir=tmp_path / "cache")
    assert "s3://bucket/nowhere/manifest.json" in str(caught.value)


def test_a_missing_shard_names_the_object(pair, s3, tmp_path):
    for path in sorted(pair[0].iterdir()):
        if path.name != "00001.tokens":
            objects.put_new(s3.url("lacking", path.name), path, s3.options)
    remote = RemoteStore(s3.url("lacking"), storage_options=s3.options, cache_dir=tmp_path / "cache")
    with pytest.raises(StorageError, match="lacking/00001.tokens"):
        remote.gather(np.arange(0, remote.n_tokens - 9, 900), 9)


def test_changed_bytes_of_an_object_are_an_error_that_names_page_and_tag(pair, s3, tmp_path):
    for path in sorted(pair[0].iterdir()):
        data = bytearray(path.read_bytes())
        if path.name == "00003.tokens":
            data[3 * PAGE + 17] ^= 1
        objects.put_new(s3.url("changed", path.name), bytes(data), s3.options)
    remote = RemoteStore(s3.url("changed"), storage_options=s3.options, cache_dir=tmp_path / "cache")
    with pytest.raises(StoreError, match=r"changed/00003.tokens, page 3, ETag \S+") as caught:
        remote.gather(np.arange(0, remote.n_tokens - 9, 90), 9)
    assert "after 3 requests" in caught.value.got
    first = remote.manifest.shards[:3]
    np.testing.assert_array_equal(remote.gather(np.array([0]), 9), TokenStore(pair[0]).gather(np.array([0]), 9))
    assert len(first) == 3


@pytest.mark.parametrize("damage", ["flip", "zeros", "state", "header", "truncated"])
def test_damage_in_the_cache_is_fetched_again(pair, remote, s3, tmp_path, damage):
    local = TokenStore(pair[0])
    same(local, remote)
    del remote
    rng = np.random.default_rng(1)
    for path in (tmp_path / "cache").rglob("*.data" if damage in ("flip", "zeros") else "*.state"):
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if damage == "zeros":
                file.truncate(0)
                file.truncate(size)
            elif damage == "truncated":
                file.truncate(int(rng.integers(0, size)))
            elif damage == "header":
                file.write(rng.bytes(64))
            else:
                for at in rng.integers(64 if damage == "state" else 0, size, 40).tolist():
                    file.seek(at)
                    file.write(bytes([int(rng.integers(0, 256))]))
    same(local, RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache"))


def test_a_folder_that_is_no_cache_is_refused_and_left_alone(pair, s3, tmp_path):
    mine = tmp_path / "cache" / "pages" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=1 << 20)
    with pytest.raises(UsageError, match="a page cache"):
        remote.gather(np.array([0]), 4)
    assert [p.name for p in mine.parent.iterdir()] == ["thesis.txt"]


def test_other_files_in_the_cache_are_never_deleted(pair, s3, tmp_path):
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=400_000)
    same(TokenStore(pair[0]), remote, rounds=1)
    others = [tmp_path / "cache/pages/notes.state", tmp_path / "cache/pages/ab/notes.data", tmp_path / "precious"]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    (tmp_path / "cache/pages/zz").symlink_to(tmp_path)
    for seed in range(3):
        same(TokenStore(pair[0]), remote, seed, rounds=1)
    assert all(other.read_text() == "mine" for other in others)


def test_threads_that_share_a_small_cache_read_right(pair, s3, tmp_path):
    remote = RemoteStore(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache", cache_bytes=450_000)
    local, failed = TokenStore(pair[0]), []

    def work(seed: int) -> None:
        try:
            same(local, remote, seed, rounds=1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed and not any(t.is_alive() for t in threads)
    assert disk_bytes(tmp_path / "cache") <= 450_000


@pytest.mark.parametrize("warm", [False, True])
def test_an_eviction_between_check_and_copy_is_noticed(pair, remote, warm):
    """Evicts pages right after they were found present, as another process might; `warm`: without a fetch before."""
    local, starts = TokenStore(pair[0]), np.arange(0, 20_000, 500)
    expected = local.gather(starts, 400)
    if warm:
        remote.gather(starts, 400)
    real, left = remote.ready, [3]

    def ready(*arguments: Any) -> Any:
        table = real(*arguments)
        if left[0]:
            left[0] -= 1
            shard = remote._remote(0)
            assert remote.cache.evict(shard.paged.cached, shard.paged.cached.present()[:-1])
        return table

    remote.ready = ready
    np.testing.assert_array_equal(remote.gather(starts, 400), expected)
    assert left == [0]


def test_pages_that_were_punched_by_a_killed_evictor_are_noticed(pair, remote):
    """A process may be killed after it marked pages absent and before it counted that: then who frees them counts."""
    starts = np.arange(0, 20_000, 500)
    expected = remote.gather(starts, 400)
    cached = remote._remote(0).paged.cached
    pages = cached.present()[:-1]
    cached.generations[pages] += np.uint32(1)  # killed here
    remote.cache.eviction._free_absent(cached)
    assert not cached.present()[:-1].size
    np.testing.assert_array_equal(remote.gather(starts, 400), expected)


def test_open_cache_is_one_for_each_folder_and_limit(tmp_path):
    first = open_cache(str(tmp_path / "pages"), 1 << 20)
    assert open_cache(str(tmp_path / "pages"), 1 << 20) is first and first.limit == 1 << 20
    other = open_cache(str(tmp_path / "pages"))
    assert other.limit > 1 << 20 and first.limit == 1 << 20
    assert other.budget is first.budget


def flags(s3: Any) -> list[str]:
    return [text for name, value in s3.options.items() for text in ("--storage-option", f"{name}={value}")]


def test_verify_and_info_of_a_url(pair, s3, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_PAGE_CACHE_LIMIT", "400KB")
    assert cli(["verify", pair[1], "--json", *flags(s3)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli(["verify", str(pair[0]), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert found | {"store": ""} == expected | {"store": ""}
    assert cli(["info", pair[1], "--json", *flags(s3)]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == expected["tokens"]


def test_verify_of_a_url_lists_all_damage(pair, s3, tmp_path, monkeypatch):
    for path in sorted(pair[0].iterdir()):
        data = bytearray(path.read_bytes())
        if path.name.startswith("0000") and path.name != "00000.tokens":
            data[2 * PAGE + 5] ^= 1
        objects.put_new(s3.url("damaged", path.name), bytes(data), s3.options)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    report = verify(s3.url("damaged"), storage_options=s3.options)
    assert len(report.problems) == 4 and report.shards == 1
    assert all("page 2" in str(problem) for problem in report.problems)


def test_the_command_line_opens_a_url_with_credentials_from_the_environment(pair, s3, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    names = {"endpoint": "AWS_ENDPOINT_URL", "access_key_id": "AWS_ACCESS_KEY_ID", "region": "AWS_REGION"}
    for name, value in s3.options.items():
        monkeypatch.setenv(names.get(name, "AWS_SECRET_ACCESS_KEY"), value)
    assert cli(["peek", pair[1], "--json"]) == 0
    found = capsys.readouterr().out
    assert cli(["peek", str(pair[0]), "--json"]) == 0
    assert found.replace(pair[1], "") == capsys.readouterr().out.replace(str(pair[0]), "")


def test_a_manifest_with_wrong_bytes_is_read_again_once(pair, s3, tmp_path):
    with FaultProxy(s3.endpoint, Faults(wrong=1.0, times=1, methods=("GET",))) as proxy:
        store = RemoteStore(pair[1], storage_options=proxy.options, cache_dir=tmp_path / "cache")
        assert store.fingerprint() == TokenStore(pair[0]).fingerprint()
        assert proxy.counts.made["wrong"] == 1
    with FaultProxy(s3.endpoint, Faults(wrong=1.0, methods=("GET",))) as proxy, pytest.raises(StoreError, match="json"):
        RemoteStore(pair[1], storage_options=proxy.options, cache_dir=tmp_path / "cache")


def test_a_cache_folder_that_is_gone_does_not_end_a_prefetch_thread_with_an_error(pair, s3, tmp_path):
    store = ps.open_store(pair[1], storage_options=s3.options, cache_dir=tmp_path / "cache")
    loaders = [store.windows(64).shuffle(seed=seed).batch(8).to_numpy() for seed in (1, 2)]
    running = [iter(loader) for loader in loaders]
    for batches in running:
        next(batches)
    (tmp_path / "cache").rename(tmp_path / "moved")
    threads = [t for t in threading.enumerate() if t.name == "penstock-prefetch"]
    assert len(threads) >= 2
    running[0].close()  # pytest fails the test if its thread raises
    time.sleep(0.5)


@pytest.mark.parametrize(
    "command",
    [
        "info URL", "verify URL", "peek URL", "plan URL --length 16 --batch 4",
        "explain URL --length 16 --batch 4 --step 2", "bench URL --length 16 --batch 4 --seconds 0.1",
        "report URL --out OUT/r.html", "convert URL OUT/copy --to store", "info LINES", "peek LINES",
        "prepare LINES --tokenizer bytes --out OUT/made --quiet",
    ],
)  # fmt: skip
def test_every_command_takes_storage_options(command, pair, s3, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    lines = s3.url("remote-store-lines.jsonl")
    objects.put_new(lines, b'{"text": "one"}\n{"text": "two"}\n', s3.options)
    words = command.replace("URL", pair[1]).replace("OUT", str(tmp_path)).replace("LINES", lines).split()
    options = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    assert cli([*words, *options]) == 0, capsys.readouterr().err
    assert cli(words) != 0  # nothing of it stays


def test_a_reader_waits_for_pages_that_another_thread_fetches_and_asks_for_no_room(pair, remote, monkeypatch):
    shard = remote._remote(0)
    pages, cached = np.arange(3), shard.paged.cached
    cache, fetches, fetch = remote.cache, [], page_fetch.fetch

    def count(*arguments: Any, **more: Any) -> int:
        fetches.append(1)
        return fetch(*arguments, **more)

    monkeypatch.setattr(page_fetch, "fetch", count)
    mine = cache.claim(cached, pages)
    assert len(mine) == 3
    before = cache.budget.total()
    assert page_fetch.fetch(cache, [(shard.paged, pages)]) == 0 and cache.budget.total() == before
    reader = threading.Thread(target=shard.need, args=(pages,))
    reader.start()
    time.sleep(0.3)
    assert reader.is_alive() and len(fetches) == 1  # it did not ask again and again
    cache.release(cached, mine)  # the other gave up
    reader.join(30)
    assert len(fetches) == 2 and ((cached.generations[pages] & 1) == 1).all()
