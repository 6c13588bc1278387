"""The shard writer: what it refuses, what it leaves on disk, and that equal input gives equal bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.core.errors import DataError, UsageError
from penstock.core.writeback import begin_writeback
from penstock.store import writer
from penstock.store.manifest import read_manifest, write_manifest
from penstock.store.reader import TokenStore
from penstock.store.verify import verify
from penstock.store.writer import ShardInfo, ShardWriter


def write(path: Path, docs: list[list[int]], **options: Any) -> ShardInfo:
    with ShardWriter(path, **{"vocab_size": 1000, **options}) as shard:
        shard.add(Ragged.of(docs, np.int64))
    return shard.finish()


@pytest.mark.parametrize(
    ("vocab", "name"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_the_type_follows_from_the_vocabulary(tmp_path: Path, vocab: int, name: str) -> None:
    write(tmp_path / "a", [[vocab - 1, 0]], vocab_size=vocab)
    with TokenStore(tmp_path / "a") as store:
        assert store.dtype.name == name
        assert store.vocab_size == vocab
        assert store.read(np.array([0]))["input_ids"].tolist() == [[vocab - 1, 0]]


@pytest.mark.parametrize(("bad", "shown"), [(1000, "id 1000"), (-1, "id -1"), (2**40, f"id {2**40}")])
def test_an_id_outside_the_vocabulary_is_named_with_its_document(tmp_path: Path, bad: int, shown: str) -> None:
    shard = ShardWriter(tmp_path / "a", vocab_size=1000)
    shard.add(Ragged.of([[1], [2]]))
    with pytest.raises(DataError) as caught:
        shard.add(Ragged.of([[1, 2], [], [3, 4, bad, 5], [bad]], np.int64))
    shard.abort()
    assert caught.value.expected == "token ids in [0, 1000), the vocabulary"
    assert caught.value.got == f"{shown} at token 2 of document 4"
    assert "special tokens" in caught.value.fix


def test_without_a_vocabulary_ids_must_fit_the_type(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path / "a", dtype="uint16")
    with pytest.raises(DataError, match=r"\[0, 65536\) for uint16"):
        shard.add([np.array([65536])])
    shard.add([np.array([65535])])
    assert shard.finish().vocab_size is None


def test_a_sliced_ragged_writes_only_its_rows(tmp_path: Path) -> None:
    whole = Ragged.of([[1, 2], [3, 4, 5], [6]], np.uint16)
    shifted = Ragged(whole.values, whole.offsets[1:])
    with ShardWriter(tmp_path / "a", vocab_size=1000) as shard:
        shard.add(shifted)
    assert TokenStore(tmp_path / "a").read(np.arange(2))["input_ids"].tolist() == [[3, 4, 5], [6]]


def test_nothing_is_under_the_final_name_before_finish_or_after_abort(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path / "a", vocab_size=10)
    shard.add([np.array([1, 2])])
    assert not (tmp_path / "a").exists()
    shard.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="aborted"):
        shard.finish()

    def fails() -> None:
        with ShardWriter(tmp_path / "b", vocab_size=10) as second:
            second.add([np.array([1])])
            raise KeyError("a user's own error")

    with pytest.raises(KeyError):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_shards_are_immutable(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1]])
    with pytest.raises(UsageError, match="shards are immutable"):
        ShardWriter(tmp_path / "a", vocab_size=10)
    write(tmp_path / "a", [[2]], overwrite=True)
    assert TokenStore(tmp_path / "a").read(np.array([0]))["input_ids"].tolist() == [[2]]


def test_equal_documents_give_equal_bytes_however_they_are_cut_into_calls(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, 1000, n).tolist() for n in rng.integers(0, 4000, 60)]
    source = np.arange(60, dtype=np.uint16)
    spans = Ragged.of([np.arange(n % 5) for n in range(60)], np.int32)
    for name, step in (("a", 60), ("b", 1), ("c", 7)):
        with ShardWriter(tmp_path / name, vocab_size=1000, metadata={"x": 1}) as shard:
            for at in range(0, 60, step):
                part = {"source": source[at : at + step], "spans": spans.slice(at, min(at + step, 60))}
                shard.add(Ragged.of(docs[at : at + step], np.int64), part)
    first = (tmp_path / "a").read_bytes()
    assert first == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_columns_must_stay_the_same(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path / "a", vocab_size=10)
    shard.add([[1]], {"s": np.array([1], np.uint16)})
    with pytest.raises(UsageError, match="the columns of the first call"):
        shard.add([[1]])
    with pytest.raises(UsageError, match="as in the first call"):
        shard.add([[1]], {"s": np.array([1.0])})
    with pytest.raises(UsageError, match="one row of column 's' for each of 1 documents"):
        shard.add([[1]], {"s": np.array([1, 2], np.uint16)})
    shard.abort()
    with pytest.raises(UsageError, match="a dtype that a store supports"):
        write_object(tmp_path)


def write_object(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "o", vocab_size=10) as shard:
        shard.add([[1]], {"s": np.array(["text"], object)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "vocab_size or dtype"),
        ({"vocab_size": 0}, "a vocabulary size in"),
        ({"vocab_size": 70_000, "dtype": "uint16"}, "a dtype that holds every id below 70000"),
        ({"dtype": "float32"}, "tokens with a dtype that a store supports: uint8, uint16, uint32"),
        ({"vocab_size": 5, "metadata": {"x": object()}}, "plain JSON"),
        ({"vocab_size": 5, "page_bytes": 5000}, "a power of two"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ShardWriter(tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


def test_token_ids_must_be_integers(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a", vocab_size=5) as shard, pytest.raises(UsageError, match="integer token ids"):
        shard.add([np.array([1.0])])


def test_shards_of_one_store_must_be_of_one_kind(tmp_path: Path) -> None:
    shards = [write(tmp_path / "a", [[1]]), write(tmp_path / "b", [[1]], vocab_size=999)]
    with pytest.raises(UsageError, match="the dtype, vocabulary and columns of a"):
        write_manifest(tmp_path, shards)
    with pytest.raises(UsageError, match="at least one shard"):
        write_manifest(tmp_path, [])


def test_the_id_is_of_content_and_meaning_never_of_place_or_tool(tmp_path: Path) -> None:
    ids = {}
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        shards = [write(tmp_path / name / f"{k}", [[1, 2], [k]]) for k in range(3)]
        ids[name] = write_manifest(tmp_path / name, shards, tokenizer={"sha256": "ab"}, tool=name).id
    assert ids["x"] == ids["y"] == read_manifest(tmp_path / "x").id
    assert write_manifest(tmp_path / "x", shards, tokenizer={"sha256": "cd"}).id != ids["x"]
    assert write_manifest(tmp_path / "x", shards, tokenizer={"sha256": "ab"}, eos_id=0).id != ids["x"]
    assert write_manifest(tmp_path / "x", shards[::-1], tokenizer={"sha256": "ab"}).id != ids["x"]


def test_the_disk_begins_while_a_shard_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def noted(handle: int, start: int, stop: int) -> bool:
        asked.append((start, stop))
        assert os.fstat(handle).st_size >= stop  # nothing that is still in the buffer of the file
        return begin_writeback(handle, start, stop)

    monkeypatch.setattr(writer, "begin_writeback", noted)
    piece = np.arange(700_001, dtype=np.uint32)
    with ShardWriter(tmp_path / "a.tokens", vocab_size=1 << 20) as shard:
        for _ in range(12):
            shard.add(Ragged(piece, np.array([0, len(piece)])))
    assert [start for start, _ in asked] == [0, *[stop for _, stop in asked[:-1]]]
    assert asked[-1][1] > 20 << 20 and len(asked) <= 4
    assert verify(tmp_path / "a.tokens").ok


def test_a_file_that_cannot_be_written_back_is_no_error() -> None:
    there, here = os.pipe()
    assert not begin_writeback(here, 0, 1)
    os.close(here), os.close(there)
    assert not begin_writeback(here, 0, 1)
