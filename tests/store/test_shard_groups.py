"""Stores of very many shards: the list of shards is read in groups, and every batch is that of a flat manifest."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.core.columns import Ragged
from penstock.core.errors import PenstockError, StoreError
from penstock.storage import objects
from penstock.store import manifest
from penstock.store.manifest import read_manifest, write_manifest
from penstock.store.opening import open_token_store
from penstock.store.reader import TokenStore
from penstock.store.shard_groups import GroupedShards
from penstock.store.verify import info, verify
from penstock.store.writer import ShardInfo, ShardWriter
from penstock.view import collect
from tests.store.many_shards import KINDS, everything, index_of, kinds, make


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, ShardInfo]]:
    return kinds(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize(("count", "group"), [(3000, 1024), (300, 7), (64, 64), (65, 64), (40, 1)])
def test_a_store_in_groups_reads_as_a_flat_one(
    tmp_path: Path, shards: list[tuple[Path, ShardInfo]], count: int, group: int
) -> None:
    flat = TokenStore(make(tmp_path / "flat", shards, count, listed=count))
    folder = make(tmp_path / "groups", shards, count, listed=min(count - 1, 1024), group=group)
    for seed in range(4):  # what is read first differs
        store = TokenStore(folder)
        assert isinstance(store.manifest.shards, GroupedShards)
        assert everything(store, seed) == everything(flat, seed)
    store = TokenStore(folder)
    assert store.fingerprint() == flat.fingerprint()
    assert (store.n_tokens, len(store), store.describe()) == (flat.n_tokens, len(flat), flat.describe())
    assert (store.bounds == flat.bounds).all()
    assert read_manifest(folder) == flat.manifest
    assert list(store.manifest.shards[-3:]) == list(flat.manifest.shards[-3:])
    assert len(pickle.dumps(store)) < 1000
    assert everything(pickle.loads(pickle.dumps(store))) == everything(flat)


def test_pipelines_yield_the_same_batches(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    flat = make(tmp_path / "flat", shards, 200, listed=200)
    groups = make(tmp_path / "groups", shards, 200, listed=10, group=16)

    def batches(folder: Path) -> list[Any]:
        store = ps.open_store(folder)
        windows = store.windows(16).shuffle(seed=3).batch(8).to_numpy()
        packed = store.pack(64).shuffle(seed=3).batch(4).to_numpy(threads=2)
        return [{k: v.tolist() for k, v in batch.items()} for loader in (windows, packed) for batch in loader]

    assert batches(groups) == batches(flat)


def test_up_to_1024_shards_the_manifest_lists_them_itself(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    small = make(tmp_path / "small", shards, 1024)
    assert json.loads((small / "manifest.json").read_text())["version"] == 1
    assert not list(small.glob("shards-*"))
    large = make(tmp_path / "large", shards, 1025)
    plain = json.loads((large / "manifest.json").read_text())
    assert plain["version"] == 2
    assert "shards" not in plain
    assert [g["tokens"] for g in plain["index"]["groups"]][1] == TokenStore(large).manifest.shards[-1].tokens


def test_a_window_reads_the_groups_that_it_needs(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    store = TokenStore(make(tmp_path / "s", shards, 400, listed=10, group=20))
    listed = store.manifest.shards
    assert isinstance(listed, GroupedShards)
    assert not listed._loaded.any()
    store.gather(np.array([store.n_tokens - 5]), 5)
    assert listed._loaded.sum() == 1
    edge = int(listed._group_tokens[7])
    assert store.gather(np.array([edge - 3, edge - 200]), 6).shape == (2, 6)
    assert np.flatnonzero(listed._loaded).tolist() in ([6, 7, 19], [5, 6, 7, 19])
    assert len(list(store._shards)) < 10


def test_threads_read_a_list_that_nobody_has_read(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    flat = TokenStore(make(tmp_path / "flat", shards, 600, listed=600))
    folder = make(tmp_path / "s", shards, 600, listed=10, group=8)
    starts = np.random.default_rng(5).integers(0, flat.n_tokens - 30, (6, 40, 8))
    expected = [[flat.gather(row, 30) for row in rows] for rows in starts]
    for _ in range(4):
        store, errors = TokenStore(folder), []

        def work(k: int, store: TokenStore = store, errors: list[BaseException] = errors) -> None:
            try:
                for row, want in zip(starts[k], expected[k], strict=True):
                    assert (store.gather(row, 30) == want).all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


_OPEN = """
import sys
import numpy as np
from penstock.store.reader import TokenStore

def now():
    with open("/proc/self/statm") as memory, open("/proc/self/io") as io:
        return int(memory.read().split()[1]) * 4096, int(io.read().split("rchar: ")[1].split()[0])

TokenStore(sys.argv[2]).gather(np.array([0]), 1)
before = now()
store = TokenStore(sys.argv[1])
opened = now()
real = [int(text) for text in sys.argv[3:]]
rows = store.gather(np.array(real), 4)
used = now()
print(opened[0] - before[0], opened[1] - before[1], used[0] - opened[0], used[1] - opened[1], len(store), rows.tolist())
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="counts bytes through /proc")
@pytest.mark.parametrize("count", [150_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_opening_reads_little_for_any_size(tmp_path: Path, count: int) -> None:
    """Shards of 64 MiB, of which two are there: 10 TB and 64 TB."""
    tokens, real = 33_000_000, (7, count - 2)
    with ShardWriter(tmp_path / "one.tokens", vocab_size=50_257) as writer:
        writer.add(Ragged(np.arange(4000), np.array([0, 4000])))
    there = writer.finish()
    infos = [ShardInfo(f"{k:07d}.tokens", 64 << 20, 30_000, tokens, f"{k:032x}", "<u2", 50_257) for k in range(count)]
    (tmp_path / "s").mkdir()
    for k in real:
        os.link(tmp_path / "one.tokens", tmp_path / "s" / infos[k].name)
        infos[k] = ShardInfo(infos[k].name, there.bytes, 1, 4000, there.root, "<u2", 50_257)
    made = write_manifest(tmp_path / "s", infos)
    del infos
    assert (tmp_path / "s" / "manifest.json").stat().st_size < 150 * (count // 1024 + 10)
    places = [7 * tokens + 10, (count - 3) * tokens + 4000 + 20]
    run = subprocess.run(
        [sys.executable, "-c", _OPEN, str(tmp_path / "s"), str(tmp_path / "one.tokens"), *map(str, places)],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    memory, read, more_memory, more_read, documents, *rows = run.stdout.split(" ", 5)
    assert int(memory) < 50e6, "memory to open"
    assert int(read) < 150 * (count // 1024 + 10), "bytes to open: the manifest alone"
    assert int(more_memory) < 10e6
    assert int(more_read) < 500_000, "two groups of shards and two shards"
    assert int(documents) == made.documents
    assert json.loads(rows[0]) == [[10, 11, 12, 13], [20, 21, 22, 23]]


def test_commands(tmp_path: Path, shards: list[tuple[Path, ShardInfo]], capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "s", shards, 1030)
    facts = info(folder)
    assert (facts["files"], len(facts["shards"]), facts["page_bytes"]) == (1030, 1024, 4096)
    assert main(["info", str(folder)]) == 0
    assert "and 1,022 more shards" in capsys.readouterr().out
    assert main(["peek", str(folder)]) == 0
    assert main(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    assert main(["verify", str(folder), "--json"]) == 0
    report = verify(folder)
    assert (report.shards, report.extras, report.id) == (1030, [], facts["id"])


def test_prepare_writes_and_replaces_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_LISTED", 3)
    monkeypatch.setattr(manifest, "GROUP_SHARDS", 2)
    for texts in (["aaaa", "bbbb"], ["cccc", "dddd"]):
        path = tmp_path / "texts.txt"
        path.write_text("\n\n".join(text * 400 + str(k) for k, text in enumerate(texts * 40)))
        made = ps.prepare(
            ps.read_text(path, by="paragraph"), "bytes", tmp_path / "out", shard_tokens=1 << 14, restart=True,
            show_progress=False,
        )  # fmt: skip
        store = TokenStore(made.path)
        assert isinstance(store.manifest.shards, GroupedShards) == (made.shards > 3)
        assert bytes(store.read(np.array([1]))["input_ids"][0][:4].tolist()).decode() == texts[1]
        assert len(list((tmp_path / "out").glob("shards-*.index"))) == (made.shards > 3)


def test_a_store_in_a_bucket(tmp_path: Path, shards: list[tuple[Path, ShardInfo]], s3: Any) -> None:
    folder = make(tmp_path / "s", shards, 60, listed=3, group=8)
    url = s3.url("shard-groups")
    for path in sorted(folder.iterdir()):
        assert objects.put_new(f"{url}/{path.name}", path, s3.options)
    remote = open_token_store(url, storage_options=s3.options, cache_dir=tmp_path / "cache")
    assert isinstance(remote.manifest.shards, GroupedShards)
    assert not remote.manifest.shards._loaded.any()
    local = TokenStore(folder)
    assert everything(remote) == everything(local)
    assert remote.fingerprint() == local.fingerprint()
    name = index_of(folder).name
    objects.delete([f"{url}/{name}"], s3.options)
    broken = open_token_store(url, storage_options=s3.options, cache_dir=tmp_path / "cache")
    with pytest.raises(PenstockError, match=name):
        broken.gather(np.array([0]), 10)
    objects.put_new(f"{url}/{name}", index_of(folder).read_bytes()[::-1], s3.options)
    with pytest.raises(StoreError, match=rf"{name}, group \d of 8"):
        broken.gather(np.array([0]), 10)


def test_lines_are_counted_from_the_beginning_of_a_file(
    tmp_path: Path, shards: list[tuple[Path, ShardInfo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard made from a later part of a file counts from there; in a list of groups the index says from where."""
    bases = {"line_bases": {"shards": [3, 20, 33], "lines": [70, 1 << 40, 0]}}
    infos = [replace(shards[k % KINDS][1], name=f"{k}.tokens") for k in range(40)]
    folders = tmp_path / "flat", tmp_path / "groups"
    for folder, listed in zip(folders, (1024, 3), strict=True):
        monkeypatch.setattr(manifest, "MAX_LISTED", listed)
        monkeypatch.setattr(manifest, "GROUP_SHARDS", 6)
        folder.mkdir()
        write_manifest(folder, infos, metadata={"a": 1, **bases})
    flat, grouped = (read_manifest(folder) for folder in folders)
    assert grouped.metadata == {"a": 1}, "not one line for each shard in the manifest"
    found = [grouped.lines_before(k) for k in range(40)]
    assert found == [flat.lines_before(k) for k in range(40)]
    assert found == [0] * 3 + [70] * 17 + [1 << 40] * 13 + [0] * 7


def test_a_report_opens_few_of_many_shards(
    tmp_path: Path, shards: list[tuple[Path, ShardInfo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_LENGTHS", 30)
    monkeypatch.setattr(collect, "RUN", 10)
    store = TokenStore(make(tmp_path / "s", shards, 400, listed=3, group=20))
    found = collect._lengths(store)
    assert len({shard.name for shard in store._shards}) < 60
    runs = [0, (len(store) - 10) // 2, len(store) - 10]
    assert found.tolist() == [n for first in runs for n in store.lengths(np.arange(first, first + 10)).tolist()]
    facts = collect.of_tokens(str(tmp_path / "s"), store, None, samples=3, seed=0, length=16, batch=4)
    assert "30 of them" in facts.lengths_note


def test_a_flat_list_of_very_many_shards_opens_and_is_checked_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions listed all shards in the manifest: the fast encoder of long lists writes the same text."""
    kind: tuple[Any, ...] = ("<u2", 60_000, (), 65536)
    infos = [ShardInfo(f"{k:05d}.tokens", 1000 + k, k % 7, k % 5, f"{k:032x}", *kind) for k in range(1500)]
    infos[7] = ShardInfo('a"b é.tokens', 1, 1, 1, "0" * 32, *kind)
    monkeypatch.setattr(manifest, "MAX_LISTED", 10**9)
    made, files = manifest.manifest_files(infos, metadata={"note": '"shards": [\n'}, tokenizer={"name": "x"})
    assert list(files) == [manifest.NAME]
    slow = files[manifest.NAME]
    monkeypatch.setattr(manifest, "MAX_LISTED", 1024)
    found = manifest.decode_manifest(slow, "store/manifest.json", lambda *_: [])
    assert found == made
    for wrong in (slow.replace(b'"bytes": 1003,', b'"bytes": 1003 ,'), slow.replace(b'   "root"', b'    "root"', 1)):
        assert wrong != slow
        with pytest.raises(StoreError, match="edited or damaged"):
            manifest.decode_manifest(wrong, "store/manifest.json", lambda *_: [])
