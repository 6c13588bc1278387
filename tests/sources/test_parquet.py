"""Parquet: types, row groups, nulls, damage, pickled types."""

from __future__ import annotations

import datetime
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, DataError, LimitError, StateError, StorageError, UsageError
from penstock.core.limits import Limits
from penstock.sources import parquet
from penstock.sources.base import Source
from penstock.sources.parquet import ParquetFiles


def write(path: Path, rows: int = 50, start: int = 0, group: int = 7) -> Path:
    numbers = list(range(start, start + rows))
    table = pa.table({"text": [f"text {i}" * (i % 5 + 1) for i in numbers], "n": pa.array(numbers, pa.int32())})
    pq.write_table(table, path, row_group_size=group)
    return path


def test_rows_over_files_and_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", rows=33, start=50)
    source = ParquetFiles(tmp_path)
    assert isinstance(source, Source)
    assert len(source) == 83
    order = np.random.default_rng(0).integers(0, 83, 200)
    batch = source.read(order)
    assert batch["n"].tolist() == order.tolist()
    assert batch["n"].dtype == np.int32
    assert batch["text"].tolist() == [f"text {i}" * (i % 5 + 1) for i in order]
    assert source.locate(58) == {"file": str(tmp_path / "b.parquet"), "row": 8, "row_group": 1}
    assert source.read(np.array([], np.int64))["n"].dtype == np.int32
    pruned = pickle.loads(pickle.dumps(ParquetFiles(tmp_path, columns=["n"])))
    assert list(pruned.read(np.array([1]))) == ["n"]
    assert source.describe()["row_groups"] == 8 + 5


def test_types(tmp_path: Path) -> None:
    day = datetime.date(2024, 1, 2)
    table = pa.table(
        {
            "s": pa.array(["a", None], pa.large_string()),
            "b": pa.array([b"\x00\xff", b""], pa.binary()),
            "f": pa.array([1.5, 2.5], pa.float32()),
            "t": pa.array([True, False]),
            "ids": pa.array([[1, 2, 3], []], pa.list_(pa.uint16())),
            "row": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "struct": pa.array([{"k": 1}, None]),
            "words": pa.array([["x"], ["y", "z"]]),
            "day": pa.array([day, day]),
            "dict": pa.array(["p", "q"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    batch = ParquetFiles(tmp_path / "a.parquet").read(np.array([1, 0]))
    assert batch["s"].tolist() == [None, "a"]
    assert batch["b"].tolist() == [b"", b"\x00\xff"]
    assert batch["f"].dtype == np.float32
    assert batch["t"].tolist() == [False, True]
    assert isinstance(batch["ids"], Ragged)
    assert batch["ids"].tolist() == [[], [1, 2, 3]]
    assert batch["ids"].dtype == np.uint16
    assert batch["row"].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert batch["struct"].tolist() == [None, {"k": 1}]
    assert batch["words"].tolist() == [["y", "z"], ["x"]]
    assert batch["day"].tolist() == [day, day]
    assert batch["dict"].tolist() == ["q", "p"]


def test_nulls_among_numbers_are_bad_records(tmp_path: Path) -> None:
    table = pa.table({"n": [1, None, 3], "ids": [[1], [2], [3, None]], "text": ["a", "b", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    source = ParquetFiles(tmp_path / "a.parquet")
    with pytest.raises(BadRecords) as caught:
        source.read(np.array([2, 0, 1]))
    assert [(e.row, e.expected, e.got) for e in caught.value.errors] == [
        (0, "numbers in column 'ids' (ragged int64)", "null among them"),
        (2, "a value in column 'n' (int64)", "null"),
    ]
    assert caught.value.errors[1].where == f"{tmp_path}/a.parquet, row 1"
    (chunk,) = source.iterate()
    assert chunk.texts == ["a", "b"]
    assert str(chunk.errors[0]).startswith("expected text in column 'text'\n  got:   null\n")
    assert chunk.error_positions == [(0, 3, 2)]


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff!"]).buffers())
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    source = ParquetFiles(tmp_path / "a.parquet")
    with pytest.raises(BadRecords, match="bytes that are not UTF-8"):
        source.read(np.arange(2))
    (chunk,) = source.iterate()
    assert (chunk.texts, len(chunk.errors)) == (["ok"], 1)


def test_one_pass_goes_on_from_every_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.parquet.PIECE_BYTES", 60)
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", rows=33, start=50)
    source = ParquetFiles(tmp_path)
    chunks = list(source.iterate())
    assert len(chunks) > 15
    assert [t for c in chunks for t in c.texts] == source.read(np.arange(83))["text"].tolist()
    for i, chunk in enumerate(chunks):
        rest = [(c.texts, c.positions, c.cursor) for c in source.iterate(chunk.cursor)]
        assert rest == [(c.texts, c.positions, c.cursor) for c in chunks[i + 1 :]]
    with pytest.raises(StateError, match="a cursor of this source"):
        next(source.iterate({"file": 0, "offset": 51, "line": 0}))
    with pytest.raises(UsageError, match=r"a text column 'n'\n  got:   text \(str\), n \(int32\)"):
        next(ParquetFiles(tmp_path, text="n").iterate())


def test_threads(tmp_path: Path) -> None:
    source = ParquetFiles(write(tmp_path / "a.parquet", rows=400))
    wrong: list[int] = []

    def work(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(0, 400, (5, 20)):
            if source.read(rows)["n"].tolist() != rows.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    with pytest.raises(DataError, match=f"a readable Parquet file(.|\n)*where: {path}"):
        ParquetFiles(path)
    middle = bytearray(good)
    middle[4:200] = bytes(196)
    path.write_bytes(middle)
    source = ParquetFiles(path)
    with pytest.raises(DataError, match=f"a readable Parquet file(.|\n)*where: {path}"):
        source.read(np.array([0]))
    path.write_bytes(good + b"PAR1")
    with pytest.raises(DataError, match="the file as it was when it was opened"):
        source.read(np.array([40]))
    path.unlink()
    with pytest.raises(StorageError, match="it does not exist"):
        source.read(np.array([40]))


def test_pickled_types_are_refused_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(marker), "w"))

    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Attack()),
    }
    for i, field in enumerate(
        [
            pa.field("x", pa.int64(), metadata=metadata),
            pa.field("x", pa.struct([pa.field("y", pa.int64(), metadata=metadata)])),
        ]
    ):
        path = tmp_path / f"{i}.parquet"
        rows = [1] if i == 0 else [{"y": 1}]
        pq.write_table(pa.table([pa.array(rows, field.type)], schema=pa.schema([field])), path)
        with pytest.raises(DataError, match="has a pickled Python type"):
            ParquetFiles(path)
    assert not marker.exists()


def test_schemas_must_agree(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "m": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1.5], "m": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"column 'n' of type int64, as in .*a.parquet\n  got:   float64"):
        ParquetFiles(tmp_path)
    assert len(ParquetFiles(tmp_path, columns=["m"])) == 2
    with pytest.raises(DataError, match="a column 'z'\n  got:   n, m"):
        ParquetFiles(tmp_path, columns=["z"])
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="at least one row"):
        ParquetFiles(tmp_path / "empty.parquet")


def test_bomb_by_the_footer(tmp_path: Path) -> None:
    values = pa.array(["x" * 1_000_000] * 3)
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    assert len(ParquetFiles(tmp_path / "a.parquet")) == 3
    with pytest.raises(LimitError, match="at most 200 bytes per stored byte"):
        ParquetFiles(tmp_path / "a.parquet", limits=Limits(expansion_free_bytes=1000))


def damage_group(path: Path, group: int, column: int = 0) -> None:
    """Zeroes the pages of one column of one row group."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)


@pytest.mark.parametrize("group", [0, 3, 7])
@pytest.mark.parametrize("column", [0, 1])
def test_the_rows_of_a_damaged_group_are_bad_records(tmp_path: Path, group: int, column: int) -> None:
    path = write(tmp_path / "b.parquet")
    write(tmp_path / "a.parquet", rows=10, start=100)
    damage_group(path, group, column)
    source = ParquetFiles(tmp_path)
    bad = [i for i in range(60) if source.locate(i) | {"row": 0} == {"file": str(path), "row": 0, "row_group": group}]
    order = np.random.default_rng(1).permutation(60)
    for _ in range(2):
        with pytest.raises(BadRecords) as caught:
            source.read(order)
        assert [int(order[e.row]) for e in caught.value.errors] == [i for i in order if i in bad]
        for error in caught.value.errors:
            row = int(order[error.row]) - 10
            assert error.expected == "a readable Parquet file"
            assert error.where == f"{path}, row {row}, row group {group}"
    good = np.array([i for i in range(60) if i not in bad])
    assert len(source.read(good)["n"]) == len(good)
    assert {name: len(values) for name, values in source.read(np.array([], np.int64)).items()} == {"text": 0, "n": 0}

    rows = ps.read_parquet(tmp_path).shuffle(seed=3).batch(5)
    with pytest.raises(DataError, match=f"readable Parquet file(.|\n)*{path}, row [0-9]+, row group {group}"):
        list(rows.to_numpy())
    skipping = ps.read_parquet(tmp_path, on_error="skip").shuffle(seed=3).batch(5).to_numpy(threads=2)
    seen = np.concatenate([batch["n"] for batch in skipping])
    assert len(seen) == 60 and not {i - 10 for i in bad} & set(seen.tolist())


@pytest.mark.parametrize("piece", [1, 4 << 20])
def test_a_damaged_group_is_counted_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(parquet, "PIECE_BYTES", piece)
    path = write(tmp_path / "a.parquet")
    damage_group(path, 3)
    source = ParquetFiles(path)
    chunks = list(source.iterate())
    assert [line - 1 for c in chunks for _, line, _ in c.error_positions] == list(range(21, 28))
    assert [line - 1 for c in chunks for _, line, _ in c.positions] == [*range(21), *range(28, 50)]
    assert {e.where for c in chunks for e in c.errors} == {f"{path}, row {i}, row group 3" for i in range(21, 28)}
    for number, chunk in enumerate(chunks):
        rest = list(source.iterate(chunk.cursor))
        assert [c.positions for c in rest] == [c.positions for c in chunks[number + 1 :]]
        assert [c.error_positions for c in rest] == [c.error_positions for c in chunks[number + 1 :]]

    with pytest.raises(DataError, match=f"{path}, row 21, row group 3"):
        ps.prepare(ps.read_parquet(path), "bytes", tmp_path / "none")
    ps.prepare(ps.read_parquet(path), "bytes", tmp_path / "store", on_error="skip")
    store = ps.open_store(tmp_path / "store")
    assert len(store.rows()) == 43
    for prepared in (
        ps.read_parquet(path, on_error="skip").tokenize("bytes"),
        ps.read_parquet(path).skip_errors().tokenize("bytes"),
    ):
        assert len(prepared.rows()) == 43


def test_what_is_not_damage_of_a_group_still_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    damage_group(path, 3)
    rows = ps.read_parquet(path, on_error="skip").batch(5)
    good = path.read_bytes()
    path.write_bytes(good + b"PAR1")
    with pytest.raises(DataError, match="the file as it was when it was opened"):
        list(rows.to_numpy())
    path.unlink()
    with pytest.raises(StorageError, match="it does not exist"):
        list(rows.to_numpy())
    error = parquet.damaged("a", OSError(5, "Input/output error"), 0)
    assert isinstance(error, StorageError)
