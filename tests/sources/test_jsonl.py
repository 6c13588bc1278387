"""JSON lines: fields and types, every kind of bad line, compressed files, one pass and random access."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import zstandard

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, UsageError
from penstock.core.limits import Limits
from penstock.sources.base import Source
from penstock.sources.jsonl import JsonlFiles

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def write(path: Path, rows: list[object], pack: str = "") -> Path:
    path = path.with_name(path.name + pack)
    path.write_bytes(PACK[pack]("".join(json.dumps(r) + "\n" for r in rows).encode()))
    return path


@pytest.mark.parametrize("pack", PACK)
def test_random_access_and_one_pass(tmp_path: Path, pack: str) -> None:
    rows = [{"id": i, "text": f"text {i} é\n" * (i % 7)} for i in range(500)]
    write(tmp_path / "a.jsonl", rows[:200], pack)
    write(tmp_path / "b.jsonl", rows[200:], pack)
    source = JsonlFiles(tmp_path)
    assert isinstance(source, Source)
    assert len(source) == 500
    order = np.random.default_rng(0).permutation(500)
    assert source.read(order)["text"].tolist() == [rows[i]["text"] for i in order]
    assert [t for c in source.iterate() for t in c.texts] == [r["text"] for r in rows]
    again = pickle.loads(pickle.dumps(source))
    assert again.read(order[:9])["text"].tolist() == source.read(order[:9])["text"].tolist()
    assert source.locate(201)["line"] == 2
    assert source.describe() == {
        "kind": "jsonl", "files": 2, "bytes": sum(p.stat().st_size for p in tmp_path.iterdir()), "records": 500,
        "files_without_records": 0, "fields": ["text"],
    }  # fmt: skip


def test_fields_have_one_type_each(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "n": 1, "x": 1.5, "ok": True, "ids": [1, 2], "w": [0.5], "meta": {"k": [1]}},
        {"text": "b", "n": 2, "x": 2, "ok": False, "ids": [], "w": [1, 2], "extra": 1},
    ]
    source = JsonlFiles(write(tmp_path / "a.jsonl", rows), field=None)
    batch = source.read(np.array([1, 0, 1]))
    assert list(batch) == ["text", "n", "x", "ok", "ids", "w", "meta"]
    assert [batch[k].dtype.name for k in ("n", "x", "ok")] == ["int64", "float64", "bool"]
    assert batch["meta"].tolist() == [None, {"k": [1]}, None]
    assert isinstance(batch["ids"], Ragged)
    assert batch["ids"].tolist() == [[], [1, 2], []]
    assert batch["w"].dtype == np.float64
    some = JsonlFiles(source.paths, fields=["n", "text"])
    assert {k: v.tolist() for k, v in some.read(np.array([0])).items()} == {"n": [1], "text": ["a"]}


BAD = {
    "not json": (b'{"text": "a"', "valid JSON", "unexpected end", "repair the line"),
    "not object": (b'["text"]', "a JSON object on each line", "an array: '[\"text\"]'", "read by penstock.read_json"),
    "scalar": (b"3", "a JSON object on each line", "a number: '3'", "write {"),
    "missing": (b'{"body": "a"}', "a field 'text'", "only 'body'", "name the field that holds it"),
    "empty": (b"{}", "a field 'text'", "only an empty object", "name the field"),
    "null": (b'{"text": null}', "field 'text' of type str", "null", "repair the record"),
    "number": (b'{"text": 3}', "field 'text' of type str", "a number", "repair the record"),
    "bytes": (b'{"text": "a\xff"}', "JSON in UTF-8", "byte 0xff at byte 11 of the line", "convert the file"),
    "nul": (b'{"text": "a\0"}', "valid JSON", "control character", "repair the line"),
    "surrogate": (b'{"text": "\\ud800"}', "valid JSON", "surrogate", "repair the line"),
    "nan": (b'{"text": NaN}', "valid JSON", "", "repair the line"),
    "long": (b'{"text": "' + b"x" * 300 + b'"}', "a line of at most 200 bytes", "a longer one", "limits.line_bytes"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("pack", PACK)
def test_each_kind_of_bad_line_is_named_the_same_way_by_both_readers(tmp_path: Path, name: str, pack: str) -> None:
    line, expected, got, fix = BAD[name]
    path = tmp_path / f"a.jsonl{pack}"
    path.write_bytes(PACK[pack](b'{"text": "first"}\n\n' + line + b'\n{"text": "last"}'))
    source = JsonlFiles(path, limits=Limits(line_bytes=200))
    (chunk,) = source.iterate()
    assert chunk.texts == ["first", "last"]
    assert chunk.positions == [(0, 1, 0), (0, 4, 20 + len(line))]
    assert chunk.error_positions == [(0, 3, 19)]
    with pytest.raises(BadRecords) as caught:
        source.read(np.array([2, 1, 0, 1]))
    assert [e.row for e in caught.value.errors] == [1, 3]
    for error in [*chunk.errors, *caught.value.errors]:
        assert error.expected == expected
        assert got in error.got
        assert error.where == f"{path}, line 3, byte 19"
        assert fix in error.fix
    assert source.read(np.array([2, 0]))["text"].tolist() == ["last", "first"]


@pytest.mark.parametrize("pack", [".gz", ".zst"])
@pytest.mark.parametrize("how", ["cut", "flip"])
def test_damaged_compression_loses_nothing_in_silence(tmp_path: Path, pack: str, how: str) -> None:
    rng = np.random.default_rng(0)
    rows = [{"text": rng.bytes(60).hex()} for _ in range(400)]
    path = write(tmp_path / "a.jsonl", rows, pack)
    good = write(tmp_path / "b.jsonl", [{"text": "after"}])
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    else:
        data[-6 if pack == ".gz" else -1] ^= 0xFF  # the checksum
    path.write_bytes(data)
    source = JsonlFiles([path, good])
    chunks = list(source.iterate())
    texts = [t for c in chunks for t in c.texts]
    errors = [e for c in chunks for e in c.errors]
    assert texts[-1] == "after"
    assert texts[:-1] == [r["text"] for r in rows[: len(texts) - 1]]
    assert len(errors) == 1
    assert errors[0].expected == "complete compressed data"
    assert ("the file ends in the middle of it" in errors[0].got) == (how == "cut")
    assert f"line {len(texts)}, byte" in errors[0].where
    assert errors[0].where.endswith("and everything after it in this file")
    assert len(source) == len(texts) + 1
    with pytest.raises(BadRecords) as caught:
        source.read(np.arange(len(source)))
    assert str(caught.value.errors[0]) == str(errors[0])
    fine = np.delete(np.arange(len(source)), caught.value.errors[0].row)
    for one in (source, pickle.loads(pickle.dumps(source))):
        assert one.read(fine)["text"].tolist() == texts


def test_types_are_held(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", [{"n": 1, "ids": [1]}, {"n": "one", "ids": [1]}, {"n": 2, "ids": [1.5]}, {"n": 2**70}]
    )
    source = JsonlFiles(path, field=None)
    with pytest.raises(BadRecords) as caught:
        source.read(np.arange(4))
    got = [(e.expected, e.got) for e in caught.value.errors]
    assert got == [
        ("field 'n' of type int", "a string"),
        ("field 'ids' of type ints", "a list whose item 0 is 1.5, which is no integer"),
        ("field 'n' of type int", "1.1805916207174113e+21, beyond 64-bit signed integers"),
    ]
    assert "types={'n': 'object'}" in caught.value.errors[0].fix
    loose = JsonlFiles(path, fields=["n"], types={"n": "object"})
    assert loose.read(np.arange(3))["n"].tolist() == [1, "one", 2]


def test_depth_on_both_sides(tmp_path: Path) -> None:
    def nest(n: int) -> object:
        return [nest(n - 1)] if n else "x"

    path = write(tmp_path / "a.jsonl", [{"v": nest(63)}, {"v": nest(64)}])
    source = JsonlFiles(path, fields=["v"])
    assert len(source.read(np.array([0]))["v"]) == 1
    with pytest.raises(BadRecords, match="JSON at most 64 levels deep"):
        source.read(np.array([1]))


def test_wrong_arguments(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "a", "n": 1}])
    with pytest.raises(UsageError, match="fields as a list of names"):
        JsonlFiles(path, fields="text")
    with pytest.raises(UsageError, match="at least one field"):
        JsonlFiles(path, fields=[])
    with pytest.raises(UsageError, match="types as one of str, int"):
        JsonlFiles(path, fields=["n"], types={"n": "int32"})
    with pytest.raises(UsageError, match="one text field for a one-pass read\n  got:   fields text, n"):
        JsonlFiles(path, field=None).iterate()
    (tmp_path / "b.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"a record to take the fields from(.|\n)*fields=\['text'\]"):
        JsonlFiles(tmp_path / "b.jsonl", field=None)


def test_fingerprint_depends_on_content_and_fields(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"text": "a", "n": 1}])
    b = write(tmp_path / "b.jsonl", [{"text": "a", "n": 1}])
    c = write(tmp_path / "c.jsonl", [{"text": "b", "n": 1}])
    assert JsonlFiles(a).fingerprint() == JsonlFiles(b).fingerprint() != JsonlFiles(c).fingerprint()
    assert JsonlFiles(a).fingerprint() != JsonlFiles(a, fields=["n"]).fingerprint()
