"""JSON files that hold an array of records."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume

ROWS = [{"text": f"t{i}", "n": i, "ids": list(range(i % 3 + 1))} for i in range(60)]


def test_arrays_and_objects_that_hold_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS[:20], indent=1))
    (tmp_path / "b.json").write_text(json.dumps({"version": "1", "tags": ["x"], "data": ROWS[20:40]}))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(ROWS[40:]).encode()))
    pipeline = ps.read_json(tmp_path)
    columns = pickle.loads(pickle.dumps(pipeline)).rows().read(np.array([59, 0, 25]))
    assert columns["text"].tolist() == ["t59", "t0", "t25"] and columns["n"].dtype == np.int64
    assert columns["ids"].tolist() == [[0, 1, 2], [0], [0, 1]]
    assert ps.read_json(tmp_path, fields=["n"]).peek(1) == [{"n": 0}]
    loader = pipeline.shuffle(seed=1).batch(5).to_numpy()
    at, n = loader.why(2, 2)["from"], int(loader.batch_at(2)["n"][2])
    assert at["file"].endswith("abc"[n // 20] + ".json" + ".gz" * (n >= 40)) and at["record"] == n % 20
    made = ps.prepare(ps.read_json(tmp_path, fields=["text"]), "bytes", tmp_path / "store")
    assert made.documents == 60


def test_the_law(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))

    def make(batch: int) -> ps.Pipeline:
        return ps.read_json(tmp_path / "a.json").shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)


@pytest.mark.parametrize(("text", "options", "message"), [
    ('{"a": [{"x": 1}], "b": [{"y": 1}]}', {}, r"several: 'a', 'b'(.|\n)*key='a'"),
    ('{"a": [{"x": 1}]}', {"key": "c"}, "an array 'c'(.|\n)*only arrays 'a'"),
    ('{"a": 1}', {}, "got:   none(.|\n)*read_jsonl"), ('{"x": 1}\n{"x": 2}\n', {}, r"read_jsonl\(path\)"),
    ("[1, 2]", {}, "JSON objects with fields"), ("[]", {}, "an empty array"), ("[{", {}, "repair the file"),
    ('[{"x": 1}]', {"limits": ps.Limits(record_bytes=4)}, "at most 4 bytes"), ("5", {}, "one JSON array"),
    ('[{"x": 1}]', {"fields": ["y"]}, "a field 'y'"),
])  # fmt: skip
def test_what_is_no_array_is_refused(tmp_path: Path, text: str, options: dict, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ps.PenstockError, match=message):
        ps.read_json(tmp_path / "a.json", **options).rows().read(np.array([0]))


def test_bad_records_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"n": 1}, 5, {"n": "x"}, {"n": 2}, {"n": 1 << 70}]))
    with pytest.raises(ps.BadRecords) as caught:
        ps.read_json(tmp_path / "a.json").rows().read(np.arange(5))
    assert [(e.row, e.where.rpartition(", ")[2]) for e in caught.value.errors] == [
        (1, "record 1"), (2, "record 2"), (4, "record 4"),
    ]  # fmt: skip
    batch = ps.read_json(tmp_path / "a.json", on_error="skip").batch(5).to_numpy().batch_at(0)
    assert set(batch["n"].tolist()) == {1, 2}
