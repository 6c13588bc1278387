"""`write`: the same rows again through our readers and through the libraries of each format; after a kill, too."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.storage import object_client
from penstock.storage.objects import list_files, read_all
from penstock.testing import assert_same

ROWS = [{"text": f"té {i}", "n": i, "x": i / 4, "ids": list(range(i % 4)), "flag": i % 2 == 0} for i in range(95)]


def rows() -> ps.Pipeline:
    return ps.from_records(ROWS)


def columns_of(pipeline: ps.Pipeline) -> dict:
    source = pipeline.rows()
    return source.read(np.arange(len(source)))


READERS = {
    "parquet": ps.read_parquet,
    "arrow": ps.read_arrow,
    "jsonl": lambda path: ps.read_jsonl(path, field=None, types={"ids": "ints"}),
}


@pytest.mark.parametrize("kind", READERS)
def test_rows_are_read_back(tmp_path: Path, kind: str) -> None:
    made = rows().write(tmp_path / "out", kind, shard_rows=40)
    assert (made.rows, made.files, made.skipped) == (95, 3, 0)
    assert_same(columns_of(READERS[kind](tmp_path / "out")), columns_of(rows()))
    again = rows().write(tmp_path / "again", kind, shard_rows=40)
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
    assert len(names) == 3 and again.bytes == made.bytes
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert rows().write(tmp_path / "out", kind, shard_rows=40) == made
    files = [path for path in before if path.is_file() and path.suffix != ".json"]
    assert all(path.stat().st_mtime_ns == before[path] for path in files)  # nothing was written again


def test_pyarrow_and_datasets_read_it(tmp_path: Path) -> None:
    import datasets

    rows().write(tmp_path / "out", "parquet", shard_rows=50)
    assert pq.read_table(tmp_path / "out").to_pylist() == ROWS
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[94]["text"] == "té 94"
    for kind in ("gz", "zstd"):
        rows().write(tmp_path / kind, "jsonl", compression=kind)
        assert [int(r["n"]) for r in ps.read_jsonl(tmp_path / kind, fields=["n"]).peek(2)] == [0, 1]


def png(value: int) -> bytes:
    return cv2.imencode(".png", np.full((4, 4, 3), value, np.uint8))[1].tobytes()


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset's
def test_webdataset(tmp_path: Path) -> None:
    import webdataset

    pipeline = ps.from_arrays({
        "key": [f"a/{i:03d}" for i in range(7)], "bytes": [png(i) for i in range(7)],
        "text": [f"té {i}" for i in range(7)], "label": np.arange(7),
        "vector": np.arange(14, dtype=np.float32).reshape(7, 2), "meta": [{"i": i} for i in range(7)],
    })  # fmt: skip
    made = pipeline.write(tmp_path / "out", "webdataset", shard_rows=4)
    assert made.files == 2
    found = columns_of(ps.read_tar(str(tmp_path / "out" / "shard-{000000..000001}.tar")))
    assert found["key"].tolist() == [f"a/{i:03d}" for i in range(7)] and found["png"][3] == png(3)
    assert found["text"].tolist()[2] == "té 2" and found["cls"].tolist() == list(range(7))
    assert found["vector.npy"].tolist() == np.arange(14).reshape(7, 2).tolist() and found["meta.json"][5] == {"i": 5}
    shards = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    theirs = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    assert [sample["text"] for sample in theirs] == found["text"].tolist()
    assert [sample["__key__"] for sample in theirs] == found["key"].tolist()
    assert all(int(sample["png"].max()) == i and sample["cls"] == i for i, sample in enumerate(theirs))
    with tarfile.open(shards[0]) as tar:
        assert {member.mtime for member in tar} == {0}
    named = pipeline.drop("key").write(tmp_path / "named", "webdataset", parts={"text": "caption.txt", "meta": "json"})
    again = ps.read_tar(tmp_path / "named").peek(1)[0]
    assert (
        named.rows == 7 and again["key"] == "000000000" and again["caption.txt"] == "té 0" and again["json"] == {"i": 0}
    )


def test_steps_run_and_rejected_records_are_left_out(tmp_path: Path) -> None:
    def odd(record: dict) -> bool:
        return record["n"] % 2 == 1

    def fails(record: dict) -> dict:
        if record["n"] % 10 == 5:
            raise ValueError("no fives")
        return record

    made = rows().filter(odd).map(fails).skip_errors().write(tmp_path / "out", "parquet", shard_rows=20)
    kept = columns_of(ps.read_parquet(tmp_path / "out"))["n"].tolist()
    assert kept == [n for n in range(95) if n % 2 == 1 and n % 10 != 5]
    assert (made.rows, made.skipped, made.filtered) == (len(kept), 9, 48)
    with pytest.raises(ps.DataError, match="budget|at most"):
        rows().map(fails).skip_errors(2).write(tmp_path / "few", "parquet", shard_rows=20)
    shuffled = rows().shuffle(seed=3)
    shuffled.write(tmp_path / "shuffled", "parquet", shard_rows=30)
    assert_same(columns_of(ps.read_parquet(tmp_path / "shuffled")), columns_of(shuffled))


CHILD = """
import os, sys, time, penstock as ps
def slow(record):
    if record["n"] == 60 and not os.path.exists(sys.argv[2]):
        open(sys.argv[2], "w").close()
        time.sleep(600)
    return record
rows = [{"text": f"t{i}", "n": i} for i in range(95)]
made = ps.from_records(rows).map(slow, version="1").write(sys.argv[1], sys.argv[3], shard_rows=10)
print(made.rows, made.files)
"""


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_a_killed_run_resumes_with_the_same_bytes(tmp_path: Path, kind: str) -> None:
    def run(out: str, mark: Path) -> subprocess.Popen:
        command = [sys.executable, "-c", CHILD, str(tmp_path / out), str(mark), kind]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    mark = tmp_path / "mark"
    first = run("out", mark)
    while not mark.exists():  # it stands in the middle of its seventh shard
        assert first.poll() is None
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    done = sorted(path for path in (tmp_path / "out").iterdir() if path.suffix in (".parquet", ".tar"))
    assert len(done) == 6 and not (tmp_path / "out" / ".penstock.json").exists()
    times = {path: path.stat().st_mtime_ns for path in done}
    second = run("out", mark)
    assert second.communicate()[0].split() == ["95", "10"]
    assert all(path.stat().st_mtime_ns == times[path] for path in done)
    assert run("whole", mark).communicate()[0].split() == ["95", "10"]
    for path in (tmp_path / "whole").iterdir():
        if path.suffix in (".parquet", ".tar"):
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert not list((tmp_path / "out").glob("*.tmp"))


TOKENS_CHILD = """
import os, sys, time
import numpy as np, penstock as ps
def slow(record):
    if record["n"] == 2600 and not os.path.exists(sys.argv[2]):
        open(sys.argv[2], "w").close()
        time.sleep(600)
    return {**record, "input_ids": [record["n"] % 7, record["n"]], "weight": [0.5, 1.5]}
rows = ps.from_arrays({"n": np.arange(3000), "text": [str(i) for i in range(3000)]}).map(slow, version="1")
made = rows.filter(lambda r: r["n"] % 10 > 0).write(sys.argv[1], "store", vocab_size=3000)
print(made.rows, made.filtered)
"""


def test_a_killed_write_of_a_token_store_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    def run(out: str) -> subprocess.Popen:
        command = [sys.executable, "-c", TOKENS_CHILD, str(tmp_path / out), str(tmp_path / "mark")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = run("out")
    while not (tmp_path / "mark").exists():
        assert first.poll() is None
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert not (tmp_path / "out" / "manifest.json").exists()
    for out in ("out", "all"):
        assert run(out).communicate()[0].split() == ["2700", "300"]
    names = sorted(path.name for path in (tmp_path / "all").iterdir() if path.is_file())
    for name in names:
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
    store = ps.open_store(tmp_path / "out")
    row = store.peek(2)[1]
    assert row["input_ids"].tolist() == [2, 2] and row["input_ids"].dtype == np.uint16
    assert (int(row["n"]), row["text"], row["weight"].tolist()) == (2, "2", [0.5, 1.5])


@pytest.mark.parametrize(("call", "text"), [
    (lambda out: rows().write(out, "store"), 'a column "input_ids"'),
    (lambda out: rows().write(out, "store", shard_rows=5), "no argument about files of rows"),
    (lambda out: rows().write(out, "parquet", vocab_size=5), "vocab_size= only for token stores"),
    (lambda out: ps.from_texts(["a"]).map(lambda r: {"input_ids": [0.5]}).write(out, "store"), 'column "input_ids"'),

    (lambda out: rows().write(out, "xls"), "format= one of parquet"),
    (lambda out: rows().write(out, shard_rows=0), "shard_rows= of at least 1"),
    (lambda out: rows().write(out, "parquet", compression="gz"), "with format=\"jsonl\""),
    (lambda out: rows().write(out, "parquet", parts={"a": "b"}), "with format=\"webdataset\""),
    (lambda out: rows().write(out, "webdataset", parts={"a": "b"}), "a column 'a' in parts="),
    (lambda out: rows().batch(2).write(out), "single records before .write"),
    (lambda out: rows().repeat().write(out), "a pipeline with an end"),
    (lambda out: ps.from_arrays({"b": [b"1"]}).write(out, "jsonl"), "values that JSON can hold"),
    (lambda out: ps.from_arrays({"x": np.zeros((2, 3, 3))}).write(out), "shape \\(3, 3\\)"),
    (lambda out: ps.from_arrays({"key": ["a.b"], "t": ["x"]}).write(out, "webdataset"), "has no dot"),
    (lambda out: ps.from_arrays({"key": ["../b"], "t": ["x"]}).write(out, "webdataset"), "keys of tar records"),
    (lambda out: ps.from_arrays({"key": ["\ud800"], "t": ["x"]}).write(out, "webdataset"), "keys of tar records"),
    (lambda out: ps.from_arrays({"t": ["a", None]}).write(out, "webdataset"), "got:   None"),
    (lambda out: ps.from_arrays({"t": ["\ud800"]}).write(out, "webdataset"), "surrogates not allowed"),
    (lambda out: ps.from_arrays({"t/n": [1]}).write(out, "webdataset"), "can end the name of a file"),
    (lambda out: ps.from_arrays({"T": [1], "t": [2]}).write(out, "webdataset"), "a part of its own"),
    (lambda out: ps.from_arrays({"t": np.array([1], "m8[ns]")}).write(out, "webdataset"), "written as .t.json"),
    (lambda out: ps.from_arrays({"t": np.array([[1, "a"]], object)}).write(out, "webdataset"), "an array of object"),
    (lambda out: ps.from_arrays({"t": np.array([["a", "b"]])}).write(out, "webdataset"), "an array of <U1"),
    (lambda out: ps.from_arrays({"x": [math.nan]}).write(out, "webdataset"), "nan is no number of JSON"),
    (lambda out: ps.from_arrays({"x": [1.0, math.inf]}).write(out, "jsonl"), "inf is no number of JSON"),
    (lambda out: ps.from_arrays({"x": [{"a": [math.nan]}]}).write(out, "jsonl"), "nan is no number of JSON"),
    (lambda out: ps.from_arrays({"x": [[1.0], [-math.inf, 2]]}).write(out, "jsonl"), "-inf is no number of JSON"),
    (lambda out: ps.from_arrays({"x": np.array([np.nan], "f2")}).write(out, "jsonl"), "nan is no number of JSON"),
    (lambda out: ps.from_arrays({"x": [{}]}).write(out), "no child field"),
    (lambda out: ps.from_arrays({"x": np.array([1j])}).write(out, "arrow"), "values that Parquet can hold"),
    (lambda out: ps.from_arrays({"x": [{"a": 1}, {"b": 2}]}).write(out), "would add 'b' as null"),
    (lambda out: ps.from_arrays({"x": [[{"a": 1}], [{"a": 2, "c": 3}]]}).write(out, "arrow"), "would add 'c' as null"),
    (lambda out: rows().write("http://host/x"), "a URL of s3, gs or az"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(tmp_path: Path, call, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        call(tmp_path / "out")


def test_another_job_in_the_same_place_is_refused(tmp_path: Path) -> None:
    rows().write(tmp_path / "out", shard_rows=40)
    with pytest.raises(ps.UsageError, match="rows of another pipeline or other arguments"):
        rows().take(5).write(tmp_path / "out", shard_rows=40)
    assert rows().take(5).write(tmp_path / "out", shard_rows=40, restart=True).rows == 5
    assert len(ps.read_parquet(tmp_path / "out").rows()) == 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ps.UsageError, match="1 files, such as notes.txt"):
        rows().write(tmp_path / "mine")


def test_storage_without_conditional_puts_is_refused_unless_nobody_else_writes(
    unconditional: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = unconditional.url("rows"), unconditional.options
    tokens = ps.from_records([{"input_ids": [5, 6]}, {"input_ids": [7]}])
    for kind, made in (("parquet", rows()), ("store", tokens)):
        with pytest.raises(ps.StorageError, match="refuses to create a file twice"):
            made.write(f"{url}/{kind}", kind, storage_options=options)
        assert list_files(f"{url}/{kind}", options) == []
    assert rows().write(f"{url}/parquet", shard_rows=40, storage_options=options, single_writer=True).rows == 95
    held = [(file.url, read_all(file.url, options)) for file in list_files(f"{url}/parquet", options)]
    with pytest.raises(ps.UsageError, match="rows of another pipeline"):
        rows().take(5).write(f"{url}/parquet", shard_rows=40, storage_options=options, single_writer=True)
    assert held == [(file.url, read_all(file.url, options)) for file in list_files(f"{url}/parquet", options)]
    with pytest.raises(ps.StorageError, match="cache_dir= can be a folder"), object_client.by_default(options):
        ps.from_texts(["a"]).tokenize("bytes", cache_dir=f"{url}/cache").peek(1)


def test_types_that_change_between_shards_are_refused(tmp_path: Path) -> None:
    mixed = ps.from_texts(["a"] * 6).map(lambda record: {"v": record["text"]}, version="1")
    assert mixed.write(tmp_path / "ok", shard_rows=2).rows == 6
    objects = ps.from_arrays({"v": ["a", "b", {"k": 1}, {"k": 2}]})
    with pytest.raises(ps.DataError, match="one schema, that of the first shard"):
        objects.write(tmp_path / "out", shard_rows=2)


def test_what_is_no_wrong_value_is_written(tmp_path: Path) -> None:
    values = ps.from_records([{"x": {"a": None, "b": 1.5}, "n": None, "z": -0.0}, {"x": None, "n": None, "z": 1.0}])
    assert values.write(tmp_path / "a", "jsonl").rows == 2
    assert (tmp_path / "a" / "part-00000.jsonl").read_bytes().splitlines()[
        0
    ] == b'{"x":{"a":null,"b":1.5},"n":null,"z":-0.0}'
    ps.from_arrays({"x": np.arange(3, dtype=">i4"), "y": np.ones((3, 2), ">f8")}).write(tmp_path / "b")
    (first, *_) = ps.read_parquet(tmp_path / "b").skip(2).peek()
    assert first["x"] == 2 and first["x"].dtype == np.int32 and first["y"].tolist() == [1.0, 1.0]
    nested = [{"x": [[1, 2], [3]]}, {"x": [[4]]}]  # of lists of different lengths NumPy has no array
    ps.from_records(nested).write(tmp_path / "c")
    assert ps.read_parquet(tmp_path / "c").peek() == ps.from_records(nested).peek() == nested


def test_sources_of_one_mixture_may_order_their_columns_differently(tmp_path: Path) -> None:
    one, other = ps.from_arrays({"a": [1, 2], "b": ["x", "y"]}), ps.from_arrays({"b": ["z", "w"], "a": [3, 4]})
    for kind, read in (("parquet", ps.read_parquet), ("arrow", ps.read_arrow)):
        ps.concat([one, other]).write(tmp_path / kind, kind, shard_rows=2)
        assert [(int(row["a"]), row["b"]) for row in read(tmp_path / kind).rows()] == [
            (1, "x"), (2, "y"), (3, "z"), (4, "w"),
        ]  # fmt: skip


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    tokens = ps.from_records([{"input_ids": [1, 2]}, {"input_ids": [3, 9, 1]}])
    with pytest.raises(ps.DataError, match=r"(?s)in \[0, 5\).*id 9.*row 1"):
        tokens.write(tmp_path / "out", "store", vocab_size=5)
    with pytest.raises(ps.DataError, match="id -1"):
        ps.from_records([{"input_ids": [1, -1]}]).write(tmp_path / "negative", "store")
    assert tokens.write(tmp_path / "out", "store", vocab_size=10).rows == 2
    assert ps.open_store(tmp_path / "out").definition.origin.vocab_size == 10
    for wrong, text in ((0, "a vocabulary size"), ("5", "vocab_size= as a number"), (True, "vocab_size= as a number")):
        with pytest.raises(ps.UsageError, match=text):
            tokens.write(tmp_path / "wrong", "store", vocab_size=wrong)  # type: ignore[arg-type]
