"""Reading a store: the stream and its documents are the ones written, whatever the shards, threads or process."""

from __future__ import annotations

import pickle
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import Ragged
from penstock.core.errors import StoreError, UsageError
from penstock.sources.base import TokenSource
from penstock.store import reader
from penstock.store.arrays import OpenArrays
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.verify import info, verify
from penstock.store.writer import ShardWriter


def make(folder: Path, docs: list[list[int]], cuts: list[int], **options: Any) -> Path:
    """A store with a column of each kind; `cuts` are the documents at which a new shard begins."""
    folder.mkdir(parents=True, exist_ok=True)
    infos = []
    for k, (a, b) in enumerate(pairwise([0, *cuts, len(docs)])):
        with ShardWriter(folder / f"{k:05d}.tokens", **{"vocab_size": 60_000, **options}) as shard:
            numbers = np.arange(a, b)
            columns = {
                "number": numbers.astype(np.uint16),
                "pair": np.stack([numbers, -numbers], 1).astype(np.int32),
                "runs": Ragged.of([np.arange(n % 4) + n for n in numbers], np.int64),
            }
            shard.add(Ragged.of(docs[a:b], np.int64), columns)
        infos.append(shard.finish())
    write_manifest(folder, infos, tokenizer={"name": "test"}, eos_id=7)
    return folder


def some_docs(count: int = 200, longest: int = 900) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 60_000, n).tolist() for n in rng.integers(0, longest, count)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_documents_in_any_shards_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=25))
    docs = [[(31 * d + i) % 60_000 for i in range(n)] for d, n in enumerate(sizes)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(docs)), max_size=5)))
    folder = make(tmp_path_factory.mktemp("s"), docs, cuts, page_bytes=4096)
    stream = np.array([t for d in docs for t in d], np.int64)
    starts = np.cumsum([0, *sizes])
    with TokenStore(folder) as store:
        assert isinstance(store, TokenSource)
        assert (len(store), store.n_tokens) == (len(docs), len(stream))
        order = np.array(data.draw(st.lists(st.integers(0, len(docs) - 1), max_size=30)), np.int64)
        got = store.read(order)
        assert got["input_ids"].tolist() == [docs[i] for i in order]
        assert got["number"].tolist() == order.tolist()
        assert got["pair"].tolist() == [[i, -i] for i in order]
        assert got["runs"].tolist() == [[i + j for j in range(i % 4)] for i in order]
        assert store.lengths(order).tolist() == [sizes[i] for i in order]
        assert store.starts(np.arange(len(docs) + 1)).tolist() == starts.tolist()
        if len(stream):
            at = np.arange(len(stream))
            expected = np.repeat(np.arange(len(docs)), sizes)
            assert store.documents_at(at).tolist() == expected.tolist()
            length = data.draw(st.integers(1, len(stream)))
            places = np.array(data.draw(st.lists(st.integers(0, len(stream) - length), max_size=20)), np.int64)
            rows = store.gather(places, length)
            assert rows.shape == (len(places), length)
            assert rows.dtype == np.uint16
            assert rows.tolist() == [stream[p : p + length].tolist() for p in places]
    assert verify(folder).ok


@pytest.mark.parametrize("cuts", [[], [50], [10, 11, 11, 90, 150]])
@pytest.mark.parametrize("length", [1, 64, 1025, 40_000])
def test_windows_equal_the_concatenated_stream(tmp_path: Path, cuts: list[int], length: int) -> None:
    docs = some_docs()
    store = TokenStore(make(tmp_path / "s", docs, cuts, page_bytes=4096))
    stream = np.array([t for d in docs for t in d], np.uint16)
    starts = np.random.default_rng(1).integers(0, len(stream) - length + 1, 100)
    starts[:2] = 0, len(stream) - length
    got = store.gather(starts, length)
    assert (got == np.stack([stream[s : s + length] for s in starts])).all()
    assert got.flags.c_contiguous
    assert got.flags.writeable


@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("cuts", [[], [50], [10, 11, 11, 90, 150]])
@pytest.mark.parametrize("verify", ["first-touch", "open", "off"])
def test_a_reader_gives_what_gather_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: list[int], verify: str, most: int
) -> None:
    monkeypatch.setattr(reader, "OpenArrays", lambda n, a, b: OpenArrays(n, a, b, most))
    docs = some_docs()
    store = TokenStore(make(tmp_path / "s", docs, cuts, page_bytes=4096), verify=verify)
    stream = np.array([t for d in docs for t in d], np.uint16)
    starts = np.random.default_rng(2).permutation((len(stream) - 1) // 64) * 64
    inside = starts[np.diff(np.searchsorted(store.bounds, [starts, starts + 64], "right"), axis=0)[0] == 0]
    assert store.sound == (verify != "first-touch")
    for places in (starts, inside, starts):  # with rows that cross from shard to shard, and without
        read = store.reader(places, 65)
        for a, b in ((0, 1), (3, 40), (40, 40), (5, len(places))):
            expected = stream[places[a:b, None] + np.arange(65)]
            got = read(a, b)
            assert got.shape == expected.shape
            assert (got == expected).all()
            assert got.flags.c_contiguous
    assert store.sound, "every page of tokens was met"
    with pytest.raises(UsageError, match="windows of 65 tokens inside a stream"):
        store.reader(np.array([0, len(stream) - 64]), 65)


@pytest.mark.parametrize("verify", ["first-touch", "off"])
def test_rows_that_cross_are_checked_together(tmp_path: Path, verify: str) -> None:
    """What a read costs depends on how many shards a window spans, not on how many windows cross."""
    docs = some_docs()
    calls: list[int] = []

    class Counted(TokenStore):
        def ready(self, part: Any, starts: Any, lengths: Any, /) -> Any:
            calls.append(1)
            return super().ready(part, starts, lengths)

    store = Counted(make(tmp_path / "s", docs, list(range(1, len(docs))), page_bytes=4096), verify=verify)
    stream = np.array([t for d in docs for t in d], np.uint16)
    starts = np.random.default_rng(3).integers(0, len(stream) - 65, 600)
    spans = np.diff(np.searchsorted(store.bounds, [starts, starts + 64], "right"), axis=0)[0]
    assert np.count_nonzero(spans) > 50
    for read in (partial(store.gather, starts, 65), partial(store.reader(starts, 65), 0, len(starts))):
        calls.clear()
        assert (read() == stream[starts[:, None] + np.arange(65)]).all()
        assert len(calls) <= 2 + spans.max()


def test_a_reader_keeps_verifying_until_all_was_seen(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", [list(range(9000))], [], page_bytes=4096)
    shard = next(folder.glob("*.tokens"))
    data = bytearray(shard.read_bytes())
    data[4096 + 2 * 6000] ^= 1
    shard.write_bytes(data)
    store = TokenStore(folder)
    read = store.reader(np.arange(0, 8900, 100), 50)
    assert read(0, 20).shape == (20, 50)
    with pytest.raises(StoreError, match="page 3 of"):
        read(50, 70)
    assert not store.sound


def test_every_window_of_a_small_store(tmp_path: Path) -> None:
    docs = [[1, 2, 3], [4, 5], [], [6], [7, 8, 9, 10]]
    store = TokenStore(make(tmp_path / "s", docs, [1, 2, 3, 4]))
    stream = np.arange(1, 11)
    for length in range(1, 11):
        starts = np.arange(11 - length)
        expected = stream[starts[:, None] + np.arange(length)]
        assert (store.gather(starts, length) == expected).all()
        for start in starts:  # alone, it takes other paths
            assert (store.gather(np.array([start]), length) == expected[start]).all()


def test_windows_outside_the_stream_are_refused_by_name(tmp_path: Path) -> None:
    store = TokenStore(make(tmp_path / "s", [[1, 2, 3], [4]], [1]))
    for start, length in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(UsageError, match=rf"windows of {length} tokens inside a stream of 4\n.*start {start}"):
            store.gather(np.array([start]), length)
    assert store.gather(np.array([4]), 0).shape == (1, 0)
    assert store.gather(np.array([], np.int64), 3).shape == (0, 3)
    with pytest.raises(UsageError, match=r"documents in \[0, 2\)\n.*2"):
        store.read(np.array([0, 2]))
    with pytest.raises(UsageError, match=r"positions in \[0, 4\)"):
        store.documents_at(np.array([-1]))


def test_opening_touches_the_manifest_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", some_docs(20), [5, 9])
    for shard in folder.glob("*.tokens"):
        shard.rename(shard.with_suffix(".away"))
    store = TokenStore(folder)
    assert len(store) == 20
    with pytest.raises(StoreError, match=r"every shard the manifest lists[\s\S]*00000.tokens"):
        store.read(np.array([0]))


def test_a_pickled_store_opens_again_and_notices_another(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", some_docs(20), [5])
    store = TokenStore(folder)
    copy = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1000
    assert (copy.gather(np.array([3]), 9) == store.gather(np.array([3]), 9)).all()
    assert copy.fingerprint() == store.fingerprint()
    frozen = pickle.dumps(store)
    store.close()
    for shard in folder.glob("*.tokens"):
        shard.unlink()
    make(folder, [[1, 2]], [])
    with pytest.raises(StoreError, match="build the pipeline again"):
        pickle.loads(frozen)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with TokenStore(make(tmp_path / "s", [[1, 2]], [])) as store:
        kept = store.gather(np.array([0]), 2)
    assert kept.tolist() == [[1, 2]]
    with pytest.raises(UsageError, match="an open store"):
        store.gather(np.array([0]), 2)
    with pytest.raises(UsageError, match="an open store"):
        store.read(np.array([0]))


@pytest.mark.parametrize("most", [1, 3, 100])
def test_threads_read_what_one_reads_even_when_maps_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(reader, "OpenArrays", lambda n, a, b: OpenArrays(n, a, b, most))
    docs = some_docs(120, 400)
    folder = make(tmp_path / "s", docs, list(range(10, 120, 10)), page_bytes=4096)
    stream = np.array([t for d in docs for t in d], np.uint16)
    store, errors = TokenStore(folder), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                starts = rng.integers(0, len(stream) - 300, 16)
                assert (store.gather(starts, 300) == stream[starts[:, None] + np.arange(300)]).all()
                picks = rng.integers(0, 120, 5)
                assert store.read(picks)["input_ids"].tolist() == [docs[i] for i in picks]
                at = rng.integers(0, len(stream), 9)
                assert (store.starts(store.documents_at(at)) <= at).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for start in (0, len(stream) - 10, 0):
        store.gather(np.array([start]), 10)
    assert sum(shard._map is not None for shard in store._shards) <= most


def test_verify_modes(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", some_docs(50), [20])
    assert not TokenStore(folder)._verified
    assert TokenStore(folder, verify="open")._verified
    lazy = TokenStore(folder)
    lazy.read(np.arange(50))
    lazy.gather(np.arange(0, lazy.n_tokens - 1), 1)
    assert lazy._verified
    with pytest.raises(UsageError, match="first-touch, open, off"):
        TokenStore(folder, verify="yes")


def test_facts(tmp_path: Path) -> None:
    docs = [[1, 2, 3], [4], [5, 6]]
    folder = make(tmp_path / "s", docs, [2], metadata={"made": "here"})
    store = TokenStore(folder)
    place = store.locate(2)
    assert place == {
        "shard": "00001.tokens",
        "document": 2,
        "document_in_shard": 0,
        "start": 4,
        "tokens": 2,
        "byte": 4096,
    }
    assert (folder / place["shard"]).read_bytes()[place["byte"] : place["byte"] + 4] == b"\x05\0\x06\0"
    facts = info(folder)
    assert (facts["records"], facts["tokens"], facts["files"], facts["eos_id"]) == (3, 6, 2, 7)
    assert facts["shard_metadata"] == {"made": "here"}
    assert facts["tokenizer"] == {"name": "test"}
    assert facts["columns"] == ["number", "pair", "runs"]
    assert facts["id"] in store.fingerprint()
    assert "3 documents, 6 tokens, uint16" in repr(store)
    assert info(folder / "00001.tokens")["records"] == 1


def test_verify_reports_counts_progress_and_extras(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", some_docs(50), [20])
    (folder / "stray.txt").write_text("x")
    seen: list[tuple[int, int]] = []
    report = verify(folder, lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.shards, report.documents) == (2, 50)
    assert report.tokens == TokenStore(folder).n_tokens
    assert report.extras == ["stray.txt"]
    assert seen[-1][0] == seen[-1][1] == report.bytes
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    report.raise_first()


def test_a_folder_without_manifest_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"a folder with manifest.json[\s\S]*has not finished"):
        TokenStore(tmp_path)
    with pytest.raises(StoreError, match="no such folder"):
        TokenStore(tmp_path / "nowhere")
