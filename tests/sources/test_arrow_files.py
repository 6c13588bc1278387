"""Arrow IPC files of both formats."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume

TABLE = pa.table({"text": [f"t{i}" for i in range(100)], "n": list(range(100)),
                  "ids": [list(range(i % 4)) for i in range(100)]})  # fmt: skip


def write(path: Path, kind: str, compression: str | None = None, table: pa.Table = TABLE) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_both_formats(tmp_path: Path, kind: str, compression: str | None) -> None:
    path = write(tmp_path / "a.arrow", kind, compression)
    pipeline = ps.read_arrow(path)
    columns = pickle.loads(pickle.dumps(pipeline)).rows().read(np.array([99, 0, 3, 3]))
    assert columns["text"].tolist() == ["t99", "t0", "t3", "t3"] and columns["n"].dtype == np.int64
    assert columns["ids"].tolist() == [[0, 1, 2], [], [0, 1, 2], [0, 1, 2]]
    assert pipeline.rows().read(np.array([], np.int64))["n"].tolist() == []
    loader = pipeline.shuffle(seed=1).batch(5).to_numpy()
    assert loader.why(2, 2)["from"]["row"] == int(loader.batch_at(2)["n"][2])
    two = ps.read_arrow([path, write(tmp_path / "b.arrow", "file")], columns=["n"])
    assert len(two.rows()) == 200 and two.definition.origin.locate(150) == {
        "file": str(tmp_path / "b.arrow"),
        "row": 50,
    }
    made = ps.prepare(ps.read_arrow(path), "bytes", tmp_path / "store")
    assert made.documents == 100


def test_the_law(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", "file")

    def make(batch: int) -> ps.Pipeline:
        return ps.read_arrow(path).shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)
    assert_exact_resume(lambda: ps.read_arrow(path).shuffle(seed=7, lanes=4).batch(8), epochs=1)


def test_what_huggingface_saves(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"x": [1, 2, 3]}).save_to_disk(tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob("*.arrow")
    assert [row["x"] for row in ps.read_arrow(path).peek()] == [1, 2, 3]


def test_nulls_are_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", "stream", table=pa.table({"n": [1, None, 3]}))
    with pytest.raises(ps.BadRecords, match=r"(?s)column 'n'.*null.*a\.arrow, row 1"):
        ps.read_arrow(path).rows().read(np.arange(3))
    kept = ps.read_arrow(path, on_error="skip").batch(3).to_numpy().batch_at(0)["n"].tolist()
    assert set(kept) == {1, 3}


@pytest.mark.parametrize(("columns", "text"), [(["nix"], "a column 'nix'"), ([], "at least one column")])
def test_wrong_columns(tmp_path: Path, columns: list[str], text: str) -> None:
    with pytest.raises(ps.PenstockError, match=text):
        ps.read_arrow(write(tmp_path / "a.arrow", "file"), columns=columns)


def test_other_schemas_and_empty_files_are_refused(tmp_path: Path) -> None:
    other = write(tmp_path / "b.arrow", "file", table=pa.table({"text": [1], "n": [1], "ids": [[1]]}))
    with pytest.raises(ps.DataError, match="column 'text' of type str, as in"):
        ps.read_arrow([write(tmp_path / "a.arrow", "file"), other])
    with pytest.raises(ps.DataError, match="at least one row"):
        ps.read_arrow(write(tmp_path / "c.arrow", "file", table=TABLE.slice(0, 0)))
    (tmp_path / "d.arrow").write_bytes(b"")
    with pytest.raises(ps.DataError, match=r"d\.arrow"):
        ps.read_arrow(tmp_path / "d.arrow")


def test_behind_a_url(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://arrow/a.arrow", "wb") as file:
        file.write(write(tmp_path / "a.arrow", "file").read_bytes())
    assert ps.read_arrow("memory://arrow/a.arrow").rows().read(np.array([50]))["n"].tolist() == [50]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_column_that_only_a_later_file_has_is_not_dropped_without_a_word(kind: str, tmp_path: Path) -> None:
    for name, table in (("a", pa.table({"n": [1], "c": ["x"]})), ("b", pa.table({"w": [0.5], "c": ["y"], "n": [2]}))):
        ps.from_records(table).write(tmp_path / name, kind)
    folders, read = [tmp_path / "a", tmp_path / "b"], ps.read_arrow if kind == "arrow" else ps.read_parquet
    with pytest.raises(ps.DataError, match=r"(?s)the columns of .*: n, c.*'w' too.*columns=\['n', 'c'\]"):
        read(folders)
    with pytest.raises(ps.DataError, match="a column 'w'"):
        read(folders, columns=["n", "w"])
    assert [(int(row["n"]), row["c"]) for row in read(folders, columns=["n", "c"]).rows()] == [(1, "x"), (2, "y")]
