"""`.tokenize()` keeps the other columns of each document: values, alignment, kinds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.store.values import decode_values, encode_values
from penstock.testing import assert_elastic, assert_exact_resume

ROWS = 2500  # more than two blocks

calls: list[int] = []


def shout(record: dict[str, Any]) -> dict[str, Any]:
    calls.append(record["n"])
    if record["n"] % 50 == 7:
        raise ValueError("a bad record")
    return {**record, "caption": f"{record['n']}!"}


def records() -> ps.Pipeline:
    return ps.from_arrays({
        "caption": [str(i) for i in range(ROWS)], "n": np.arange(ROWS), "text": [f"other {i}" for i in range(ROWS)],
        "label": (np.arange(ROWS) % 5).astype(np.int8), "good": np.arange(ROWS) % 2 == 0,
        "image": np.arange(ROWS * 4, dtype=np.uint8).reshape(ROWS, 2, 2), "bytes": [b"\x00%d" % i for i in range(ROWS)],
        "language": [None if i % 3 else "fr" for i in range(ROWS)], "meta": [{"at": [i, 0.5]} for i in range(ROWS)],
        "audio": Ragged.of([np.full(i % 4, i, np.float32) for i in range(ROWS)]), "_own": np.arange(ROWS) * 2,
    })  # fmt: skip


def test_every_kind_of_column_stays_with_its_document(tmp_path: Path) -> None:
    kept = records().map(shout, version="1").skip_errors().filter(lambda r: r["n"] % 3 > 0)
    tokens = kept.tokenize("bytes", field="caption", cache_dir=tmp_path, shard_tokens=1000)
    want = [i for i in range(ROWS) if i % 3 and i % 50 != 7]
    calls.clear()
    rows = tokens.rows()
    assert len(rows) == len(want)
    order = np.random.default_rng(1).permutation(len(want))
    got, source = rows.read(order), records().rows().read(np.array(want)[order])
    assert sorted(got) == sorted({*source, "input_ids"} - {"caption"})
    assert [bytes(ids[:-1].tolist()).decode() for ids in got["input_ids"]] == [f"{want[i]}!" for i in order]
    for name in sorted({*source} - {"caption"}):
        assert got[name].tolist() == source[name].tolist(), name
        if name not in ("_own", "language", "meta", "bytes", "text"):
            assert got[name].dtype == source[name].dtype, name
    again = records().map(shout, version="1").skip_errors().filter(lambda r: r["n"] % 3 > 0)
    assert again.tokenize("bytes", field="caption", cache_dir=tmp_path, shard_tokens=1000) == tokens
    list(tokens.select("input_ids", "label").shuffle(seed=1).pad().batch(50).to_torch(threads=0))
    assert calls == []  # no step before runs again, neither for the cache nor at load time


def test_the_law_with_columns(tmp_path: Path) -> None:
    tokens = records().tokenize("bytes", field="caption", keep=["label", "language", "image"], cache_dir=tmp_path)
    assert sorted(tokens.peek(1)[0]) == ["image", "input_ids", "label", "language"]
    make = lambda b: tokens.take(200).shuffle(seed=1).pad(to=6).batch(b)  # noqa: E731
    assert_exact_resume(lambda: make(24), most=6)
    assert_elastic(make, batch=24, worlds=(1, 2, 3, 4), threads=(0, 2), most=4)
    batch = make(8).to_numpy(threads=0).batch_at(3)
    lengths = batch["attention_mask"].sum(1) - 1
    number = [int(bytes(ids[:n].tolist())) for ids, n in zip(batch["input_ids"], lengths, strict=True)]
    assert batch["label"].tolist() == [n % 5 for n in number]
    assert batch["language"].tolist() == [None if n % 3 else "fr" for n in number]


def test_without_other_columns_the_store_is_that_of_earlier_versions(tmp_path: Path) -> None:
    plain = ps.from_texts(["a", "b"]).tokenize("bytes", cache_dir=tmp_path)
    alone = ps.from_arrays({"text": ["a", "b"], "n": [1, 2]}).tokenize("bytes", keep=[], cache_dir=tmp_path)
    both = ps.from_arrays({"text": ["a", "b"], "n": [1, 2]}).tokenize("bytes", cache_dir=tmp_path)
    mapped = ps.from_texts(["a", "b"]).map(dict).tokenize("bytes", cache_dir=tmp_path)
    assert sorted(plain.peek(1)[0]) == sorted(alone.peek(1)[0]) == sorted(mapped.peek(1)[0]) == ["input_ids"]
    assert plain.fingerprint() == mapped.fingerprint()
    assert sorted(both.peek(1)[0]) == ["input_ids", "n"]
    zipped = ps.from_texts(["a", "b"]).zip(ps.from_arrays({"n": [1, 2]})).tokenize("bytes", cache_dir=tmp_path)
    joined = ps.concat([ps.from_arrays({"text": ["a", "b"], "n": [1, 2]})]).tokenize("bytes", cache_dir=tmp_path)
    assert zipped == joined == both
    packed = both.pack(4).batch(1).to_numpy(threads=0).batch_at(0)
    assert "n" not in packed and packed["input_ids"].tolist() == [[97, 256, 98, 256]]


def test_texts_that_the_tokenizer_refuses_take_their_columns_with_them(tmp_path: Path) -> None:
    texts = ["one", "\ud800", "three"]
    rows = ps.from_arrays({"text": texts, "n": [1, 2, 3], "s": ["x", "y", "z"]})
    made = rows.tokenize("bytes", on_error="skip", cache_dir=tmp_path)
    assert [(int(row["n"]), row["s"]) for row in made.peek()] == [(1, "x"), (3, "z")]


@pytest.mark.parametrize(
    ("columns", "arguments", "says"),
    [
        ({"input_ids": [1, 2]}, {}, ["a name of the token store's own", "'input_ids'", ".rename("]),
        ({"n": [1, 2]}, {"keep": ["m"]}, ["a column 'm' that .tokenize() keeps", "columns n, text"]),
        ({"n": [1, 2]}, {"keep": "n"}, ["a list of columns for keep="]),
    ],
)
def test_what_is_refused(columns: dict[str, Any], arguments: Any, says: list[str], tmp_path: Path) -> None:
    rows = ps.from_arrays({"text": ["a", "b"], **columns})
    with pytest.raises(ps.UsageError) as caught:
        rows.tokenize("bytes", cache_dir=tmp_path, **arguments)
    assert all(text in str(caught.value) for text in says), str(caught.value)


def test_values_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.UsageError, match=r"(?s)JSON in column 'n', which .tokenize\(\) keeps.*\.drop\('n'\)"):
        ps.from_texts(["a"]).map(lambda r: {**r, "n": object()}).tokenize("bytes", cache_dir=tmp_path)


def test_a_column_of_another_kind_in_later_rows_is_refused(tmp_path: Path) -> None:
    changing = ps.from_texts([str(i) for i in range(2000)]).map(
        lambda r: {**r, "score": 1 if int(r["text"]) < 1500 else "half"}
    )
    with pytest.raises(ps.UsageError, match="(?s)values of one type in column 'score'.*int64.*row 1500"):
        changing.tokenize("bytes", cache_dir=tmp_path)
    numbers = ps.from_texts([str(i) for i in range(2000)]).map(
        lambda r: {**r, "score": 1 if int(r["text"]) < 1500 else 0.5}
    )
    with pytest.raises(ps.UsageError, match="(?s)numbers of one type in column 'score'.*int64.*float64"):
        numbers.tokenize("bytes", cache_dir=tmp_path)


@pytest.mark.parametrize("data", [b"", b"x", b"nn", b"j{", b"a\xff\xff\xff\x7f[]", b'a\x0c\x00\x00\x00["O",[1,1]]   '])
def test_damaged_values_are_errors(data: bytes) -> None:
    with pytest.raises(ps.StoreError, match="a value as .tokenize"):
        decode_values(Ragged(np.frombuffer(data, np.uint8), np.array([0, len(data)])), "here")
    values = ["\ud800", b"", None, [1, {"a": None}], np.arange(6, dtype=">i2").reshape(2, 3), True, 1.5]
    found = decode_values(encode_values(values), "here").tolist()
    assert found[4].tolist() == [[0, 1, 2], [3, 4, 5]] and found[:4] + found[5:] == values[:4] + values[5:]


def test_prepare_keeps_columns_too(tmp_path: Path) -> None:
    ps.prepare(records(), "bytes", tmp_path / "a", field="caption", keep=["label", "language"])
    store = ps.open_store(tmp_path / "a")
    assert sorted(store.peek(1)[0]) == ["input_ids", "label", "language"]
    tokenized = records().tokenize("bytes", field="caption", keep=["label", "language"], cache_dir=tmp_path / "cache")
    for one, other in zip(store.peek(9), tokenized.peek(9), strict=True):
        assert {name: repr(value) for name, value in one.items()} == {name: repr(v) for name, v in other.items()}
    assert ps.prepare(records(), "bytes", tmp_path / "a", field="caption", keep=["label", "language"]).already
    with pytest.raises(ps.UsageError, match="other data or settings"):
        ps.prepare(records(), "bytes", tmp_path / "a", field="caption", keep=["label"])
    everything = ps.prepare(records(), "bytes", tmp_path / "b", field="caption", keep=None)
    assert everything.documents == ROWS and "meta" in ps.open_store(tmp_path / "b").peek(1)[0]
    ps.prepare(records(), "bytes", tmp_path / "c", field="caption")
    assert list(ps.open_store(tmp_path / "c").peek(1)[0]) == ["input_ids"]
    with pytest.raises(ps.UsageError, match="'nothing'"):
        ps.prepare(records(), "bytes", tmp_path / "d", field="caption", keep=["nothing"])


def test_every_reader_of_records_keeps_its_columns(tmp_path: Path) -> None:
    rows = ps.from_records([{"text": f"t{i}", "n": i} for i in range(3)])
    for kind in ("jsonl", "parquet", "arrow"):
        rows.write(tmp_path / kind, kind)
    (tmp_path / "a.csv").write_text("text,n\nt0,0\nt1,1\n")
    (tmp_path / "a.json").write_text('[{"text": "t0", "n": 0}, {"text": "t1", "n": 1}]')
    readers = [
        ps.read_jsonl(tmp_path / "jsonl", field=None), ps.read_jsonl(tmp_path / "jsonl", fields=["n", "text"]),
        ps.read_parquet(tmp_path / "parquet"), ps.read_arrow(tmp_path / "arrow"), ps.read_csv(tmp_path / "a.csv"),
        ps.read_json(tmp_path / "a.json"), rows,
    ]  # fmt: skip
    for reader in readers:
        tokens = reader.tokenize("bytes", cache_dir=tmp_path / "cache")
        assert [int(row["n"]) for row in tokens.peek(2)] == [0, 1]
