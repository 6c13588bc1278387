"""What a store keeps in memory grows with the shards that are used, not with the shards that it has."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.core.errors import StoreError
from penstock.store import arrays, reader
from penstock.store.arrays import OpenArrays
from penstock.store.manifest import write_manifest
from penstock.store.page_marks import PageMarks
from penstock.store.reader import TokenStore
from penstock.store.writer import ShardWriter


def write(folder: Path, shards: int, tokens: int = 300) -> Path:
    infos = []
    folder.mkdir(exist_ok=True)
    for k in range(shards):
        with ShardWriter(folder / f"{k:05d}.tokens", vocab_size=60_000, page_bytes=4096) as shard:
            shard.add(Ragged.of([np.arange(tokens) + k * tokens]))
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return folder


def test_only_shards_that_are_read_are_created_and_marked(tmp_path: Path) -> None:
    store = TokenStore(write(tmp_path, 40))
    assert list(store._shards) == []
    used = np.array([0, 7 * 300, 12 * 300 + 250])  # the last one crosses into shard 13
    assert (store.gather(used, 100) == used[:, None] + np.arange(100)).all()
    assert sorted(shard.path.name for shard in store._shards) == [f"{k:05d}.tokens" for k in (0, 7, 12, 13)]
    assert sorted(store._marks._pages) == [0, 7, 12, 13]


def test_a_store_is_sound_once_every_shard_with_tokens_is(tmp_path: Path) -> None:
    infos = []
    for k, tokens in enumerate((200, 0, 300, 0)):
        with ShardWriter(tmp_path / f"{k}.tokens", vocab_size=60_000) as shard:
            shard.add(Ragged.of([np.arange(tokens)]) if tokens else Ragged.of([]))
        infos.append(shard.finish())
    write_manifest(tmp_path, infos)
    store = TokenStore(tmp_path)
    store.gather(np.array([0]), 10)
    assert not store.sound
    store.gather(np.array([250, 3]), 10)
    assert store.sound
    # A shard that was replaced while it was closed is verified again.
    store._open.clear()
    path = tmp_path / "2.tokens"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    store._open.need(2)
    assert store.sound, "opening verifies the first page, which holds all tokens here"


def test_marks_set_by_many_threads_survive_growth() -> None:
    grown = PageMarks(400)
    barrier = threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait()
        for part in range(first, 400, 4):
            grown.add(part, 300, file=1)
            for page in range(0, 300, 7):
                grown.set(part, page)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.arange(300) % 7 == 0
    assert all((grown.of(part) == expected).all() for part in range(400))
    assert len(np.unique(grown.first)) == 400, "no two shards share flags"
    grown.add(5, 300, file=1)
    assert (grown.of(5) == expected).all(), "the same file keeps its marks"
    grown.add(5, 300, file=2)
    assert not grown.of(5).any(), "another one does not"
    assert (grown.of(6) == expected).all()


def test_the_oldest_quarter_is_closed_and_its_marks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "OpenArrays", lambda n, a, b: OpenArrays(n, a, b, 16))
    store = TokenStore(write(tmp_path, 40))
    for k in range(17):
        store.gather(np.array([k * 300]), 300)
    opened = sorted(store._open._table.arrays)
    assert opened == list(range(5, 17)), "3/4 of 15, and the new one"
    assert sorted(int(shard.path.stem) for shard in store._shards) == opened
    assert store._verified_shards == set(range(17))
    assert all(store._marks.of(k).any() for k in range(17))
    before = store._unverified_tokens
    store.gather(np.array([0, 300]), 300)
    assert store._shards[0].tokens_verified, "known from its marks"
    assert store._unverified_tokens == before


def test_a_shard_that_was_replaced_while_closed_is_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "OpenArrays", lambda n, a, b: OpenArrays(n, a, b, 2))
    store = TokenStore(write(tmp_path, 6, tokens=4000))
    everywhere = np.arange(6) * 4000 + 3000
    for _ in range(2):
        for start in everywhere:
            store.gather(np.array([start]), 900)
    path = tmp_path / "00001.tokens"
    data = bytearray(path.read_bytes())
    data[4096 + 2 * 3500] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"00001\.tokens, page 2 of"):
        store.gather(everywhere, 900)
    assert (store.gather(everywhere[[0, 5]], 900)[0] == np.arange(3000, 3900)).all()


@pytest.mark.parametrize("left", [0, 5])
def test_a_process_that_has_no_maps_left_closes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    stores = [TokenStore(write(tmp_path / name, 30)) for name in ("a", "b")]
    in_use = lambda: sum(len(s._open._table.arrays) for s in stores)  # noqa: E731
    monkeypatch.setattr(arrays, "maps_left", lambda: 10 + left - in_use())
    rng = np.random.default_rng(0)
    for _ in range(300):
        starts = rng.integers(0, 30 * 300 - 50, 3)
        assert (stores[rng.integers(2)].gather(starts, 50) == starts[:, None] + np.arange(50)).all()
        assert in_use() <= 10 + left + 6, "at most what one batch needs more"


def test_10_000_shards_stay_open_with_few_descriptors(tmp_path: Path) -> None:
    """Linux allows 65,530 maps in a process; the files themselves need no descriptor."""
    few = TokenStore(write(tmp_path / "few", 10)).manifest.shards
    infos = []
    for k in range(10_000):
        infos.append(replace(few[k % 10], name=f"{k}.tokens"))
        os.link(tmp_path / "few" / few[k % 10].name, tmp_path / infos[-1].name)
    write_manifest(tmp_path, infos)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    try:
        store = TokenStore(tmp_path)
        starts = np.random.default_rng(1).permutation(10_000).reshape(-1, 50) * 300
        for row in starts:
            assert (store.gather(row, 300) == (row % 3000)[:, None] + np.arange(300)).all()
        shards = {id(shard) for shard in store._shards}
        assert len(store._open._table.arrays) == len(shards) == 10_000
        assert store.sound
        for row in starts[::-1]:
            store.gather(row + 7, 200)
        assert {id(shard) for shard in store._shards} == shards, "none was closed and opened again"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
