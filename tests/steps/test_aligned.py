"""Columns beside the tokens in packs and windows: compared with plain loops over documents; what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.testing.resume import assert_same_batches, batches

LENGTHS = np.random.default_rng(3).integers(0, 60, 150)
IDS = [np.arange(n) + 100 * i for i, n in enumerate(LENGTHS)]  # every id says its document and its place


def records() -> ps.Pipeline:
    return ps.from_arrays({
        "input_ids": Ragged.of(IDS), "weight": Ragged.of([ids.astype(np.float32) / 2 for ids in IDS]),
        "mask": Ragged.of([ids % 3 == 0 for ids in IDS]), "document": np.arange(len(IDS)),
        "labels": Ragged.of([-ids - 1 for ids in IDS]), "text": [str(i) for i in range(len(IDS))],
        "pair": np.zeros((len(IDS), 2)),
    })  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("aligned") / "store"
    records().write(folder, "store")
    return str(folder)


OPTIONS = [
    {"strategy": "best_fit", "overlong": "split"}, {"strategy": "best_fit", "overlong": "truncate"},
    {"strategy": "best_fit", "overlong": "drop"}, {"strategy": "concat"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("length", [7, 64])
def test_packs_cut_and_pad_columns_as_tokens(store: str, options: dict, length: int) -> None:
    plain = ps.open_store(store).pack(length, labels=None, pad_id=9, **options)
    columns = {"weight": -1.5, "mask": True, "document": -7, "labels": -100}
    packed = ps.open_store(store).pack(length, labels=None, pad_id=9, columns=columns, **options)
    rows = packed.rows()
    assert len(rows) == len(plain.rows())
    seen = 0
    for row, bare in zip(packed.peek(len(rows)), plain.peek(len(rows)), strict=True):
        held = row["segment_ids"] > 0
        ids = row["input_ids"].astype(int)
        assert {name: value.tolist() for name, value in bare.items()} == {name: row[name].tolist() for name in bare}
        assert (row["weight"] == np.where(held, ids / 2, -1.5)).all() and row["weight"].dtype == np.float32
        assert (row["mask"] == np.where(held, ids % 3 == 0, True)).all() and row["mask"].dtype == bool
        assert (row["document"] == np.where(held, ids // 100, -7)).all()
        assert (row["labels"] == np.where(held, -ids - 1, -100)).all()
        seen += int(held.sum())
    if options.get("overlong", "split") == "split":
        assert seen == LENGTHS.sum()


def test_windows_cut_columns_as_tokens(store: str) -> None:
    for length, stride in ((1, 1), (16, 5), (90, 90), (300, 7)):
        windows = ps.open_store(store).windows(length, stride, columns=["weight", "document", "mask"])
        batch = windows.shuffle(seed=1).batch(16).to_numpy().batch_at(0)
        ids = batch["input_ids"].astype(int)
        assert (batch["weight"] == ids / 2).all() and (batch["document"] == ids // 100).all()
        assert (batch["mask"] == (ids % 3 == 0)).all() and batch["mask"].shape == (16, length)


def test_with_labels_of_the_next_token_values_stay_beside_their_own(store: str) -> None:
    batch = ps.open_store(store).pack(64, columns=["weight"]).batch(4).to_torch().batch_at(0)
    inside = batch["labels"] != -100
    assert (batch["weight"][inside] == (batch["labels"][inside] - 1) / 2).all() and int(batch["valid_labels"])


def test_why_shows_them_and_they_are_part_of_the_plan(store: str) -> None:
    tokens = ps.open_store(store)
    packed = tokens.pack(64, columns=["weight"]).shuffle(seed=1).batch(4)
    assert packed.to_numpy().why(0, 1)["from"]["columns"] == ["weight"]
    assert "columns=(('weight', 0),)" in repr(packed)
    others = [tokens.pack(64), tokens.pack(64, columns={"weight": 1}), tokens.pack(64, columns=["weight", "mask"])]
    assert len({p.shuffle(seed=1).batch(4).fingerprint() for p in others} | {packed.fingerprint()}) == 4
    assert tokens.pack(64, columns=[]) == tokens.pack(64) and pickle.loads(pickle.dumps(packed)) == packed
    assert ps.from_config(packed.to_config()) == packed
    windows = tokens.windows(8, columns=["mask"])
    assert ps.from_config(windows.to_config()) == windows != tokens.windows(8)


def test_a_document_with_another_number_of_values_is_refused(tmp_path: Path) -> None:
    values = [ids if i != 70 else ids[:-1] for i, ids in enumerate(IDS)]
    assert len(IDS[70])
    ps.from_arrays({"input_ids": Ragged.of(IDS), "tag": Ragged.of(values)}).write(tmp_path, "store")
    store = ps.open_store(tmp_path)
    for rows in (store.pack(32, columns=["tag"]), store.windows(32, columns=["tag"])):
        with pytest.raises(ps.DataError, match=rf"as tokens: {len(IDS[70])}") as caught:
            list(rows.batch(1).to_numpy(threads=0))
        assert "document 70" in str(caught.value) and f"{len(IDS[70]) - 1} values" in str(caught.value)


def test_refusals_say_what_to_write(store: str) -> None:
    tokens = ps.open_store(store)
    wrong = [
        ({"columns": ["nothing"]}, "'nothing'; it has .*'weight'"), ({"columns": ["text"]}, "in column 'text'"),
        ({"columns": ["labels"]}, "labels=None"), ({"columns": ["input_ids"]}, "does not make itself"),
        ({"columns": "weight"}, "names of columns"), ({"columns": {"weight": "x"}}, "names of columns"),
        ({"columns": {"mask": 7}}, "padding that column 'mask'"), ({"columns": ["weight", "weight"]}, "once"),
    ]  # fmt: skip
    for arguments, words in wrong:
        with pytest.raises(ps.UsageError, match=words):
            tokens.pack(64, **arguments).peek(1)
    with pytest.raises(ps.UsageError, match="nothing is padded"):
        tokens.windows(8, columns={"mask": 1})  # type: ignore[arg-type]
    with pytest.raises(ps.UsageError, match=r'pipeline.write\("folder", "store"\)'):
        ps.open_tokens([1, 2, 3]).pack(2, columns=["weight"]).peek(1)
    with pytest.raises(ps.DataError, match="as tokens"):
        tokens.pack(64, columns=["pair"]).peek(1)


def test_chosen_documents_have_the_columns_of_a_store_that_is_written_of_them(store: str, tmp_path: Path) -> None:
    tokens = ps.open_store(store)
    joined = ps.concat([tokens, tokens.filter(lambda r: len(r["input_ids"]) > 30, exact=True, cache_dir=tmp_path)])
    made = joined.write(tmp_path / "joined", "store")
    assert made.rows == len(IDS) + (LENGTHS > 30).sum()
    for verb in ("pack", "windows"):
        here, there = (
            getattr(rows, verb)(64, columns=["document", "weight"]).batch(4).to_numpy()
            for rows in (joined, ps.open_store(tmp_path / "joined"))
        )
        assert_same_batches(batches(here, None), batches(there, None))
    with pytest.raises(ps.UsageError, match=r'pipeline.write\("folder", "store"\).*pack'):
        tokens.map(dict).pack(64).peek(1)
    with pytest.raises(ps.UsageError, match="tokenize"):
        ps.from_texts(["a", "b"]).take(1).pack(8).peek(1)


def test_columns_beside_tokens_are_the_same_behind_a_url(s3: Any, tmp_path: Path) -> None:
    url = s3.url("aligned") + "/store"
    made = records().write(url, "store", storage_options=s3.options)
    assert made.rows == len(IDS) and records().write(url, "store", storage_options=s3.options) == made
    records().write(tmp_path / "store", "store")
    local = ps.open_store(tmp_path / "store")
    remote = ps.open_store(url, storage_options=s3.options, cache_dir=tmp_path / "cache")
    for cut in (
        lambda p: p.pack(48, columns=["weight", "mask", "document"]),
        lambda p: p.windows(16, columns=["mask"]),
    ):
        one, other = (cut(p).shuffle(seed=1).batch(4).to_numpy(threads=t) for p, t in ((local, 0), (remote, 2)))
        assert_same_batches(batches(one, 8), batches(other, 8))


def test_labels_of_ones_own_never_overflow_the_type_of_ids(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [70_000, 5, -100]}, {"input_ids": [4], "labels": [7]}]
    ps.from_records(rows).write(tmp_path, "store", vocab_size=100)
    packed = ps.open_store(tmp_path).pack(6, labels=None, columns=["labels"]).batch(1)
    for ids in ("int8", "int16", "int64"):
        batch = packed.to_numpy(ids=ids).batch_at(0)
        assert batch["input_ids"].dtype == ids and batch["labels"].dtype == np.int64
        assert batch["labels"].tolist() == [[70_000, 5, -100, 7, -100, -100]]
    assert packed.to_jax().batch_at(0)["labels"].tolist() == [[70_000, 5, -100, 7, -100, -100]]


def test_child_processes_make_the_same_batches(store: str) -> None:
    rows = ps.open_store(store).pack(48, columns=["weight", "document"]).window_shuffle(9, seed=3).batch(4)
    assert_same_batches(batches(rows.to_numpy(threads=0), 6), batches(rows.to_numpy(workers=2), 6))
