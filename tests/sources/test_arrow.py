"""Every Arrow type in a Parquet file: read exactly, or refused by the column's name when that column is used."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import BadRecords
from penstock.sources.parquet import ParquetFiles

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "struct": (pa.array([{"a": 1, "b": ["x"]}, {"a": 2, "b": None}]), [{"a": 1, "b": ["x"]}, {"a": 2, "b": None}]),
    "structs": (pa.array([[{"a": 1}], []]), [[{"a": 1}], []]),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())), [[("a", 1)], []]),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    "dictionaries": (pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode()), [["a"], ["b"]]),
    "decimal": (pa.array([decimal.Decimal("1.50"), None]), [decimal.Decimal("1.50"), None]),
    "decimal256": (pa.array([decimal.Decimal(10**60), None], pa.decimal256(70, 0)), [decimal.Decimal(10**60), None]),
    "date": (pa.array([0, 10**8], pa.int32()).cast(pa.date32()), [dt.date(1970, 1, 1), np.datetime64(10**8, "D")]),
    "timestamp": (
        pa.array([1, 2**62], pa.timestamp("us")),
        [dt.datetime(1970, 1, 1, microsecond=1), np.datetime64(2**62, "us")],
    ),
    "timestamp ns": (
        pa.array([1000, 1], pa.timestamp("ns")),
        [dt.datetime(1970, 1, 1, microsecond=1), np.datetime64(1, "ns")],
    ),
    "zone": (
        pa.array([0, None], pa.timestamp("ns", "UTC")),
        [dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), None],  # noqa: UP017
    ),
    "time": (pa.array([1_000, 3], pa.time64("ns")), [dt.time(microsecond=1), np.timedelta64(3, "ns")]),
    "time32": (pa.array([1, None], pa.time32("ms")), [dt.time(microsecond=1000), None]),
    "duration": (pa.array([7, None], pa.duration("us")), [dt.timedelta(microseconds=7), None]),
    "duration ns": (pa.array([7, 1000], pa.duration("ns")), [np.timedelta64(7, "ns"), dt.timedelta(microseconds=1)]),
    "times in structs": (
        pa.array([{"a": [1]}, None], pa.struct([("a", pa.list_(pa.timestamp("ns")))])),
        [{"a": [np.datetime64(1, "ns")]}, None],
    ),
    "times in maps": (
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.duration("ns"))),
        [[("a", np.timedelta64(1, "ns"))], None],
    ),
    "fixed lists": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
    "fixed texts": (pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)), [["a", "b"], ["c", "d"]]),
    "large lists": (pa.array([[1], []], pa.large_list(pa.int64())), [[1], []]),
    "list views": (pa.array([[1], []], pa.list_view(pa.int64())), [[1], []]),
    "large text": (pa.array(["a", None], pa.large_string()), ["a", None]),
    "text view": (pa.array(["a", None], pa.string_view()), ["a", None]),
    "bytes view": (pa.array([b"a", None], pa.binary_view()), [b"a", None]),
    "views in structs": (pa.array([{"a": ["x"]}, None], pa.struct([("a", pa.list_(pa.string_view()))])),
                         [{"a": ["x"]}, None]),
    "views in maps": (pa.array([[("k", "x")], None], pa.map_(pa.string(), pa.string_view())), [[("k", "x")], None]),
    "lists of nulls": (pa.array([[None] * 3, [None] * 2], pa.list_(pa.null())), [[None] * 3, [None] * 2]),
    "fixed lists of nulls": (pa.array([[None] * 3] * 2, pa.list_(pa.null(), 3)), [[None] * 3] * 2),
    "half": (pa.array(np.array([1.5, 2], np.float16)), [1.5, 2.0]),
    "null": (pa.nulls(2), [None, None]),
    "bools": (pa.array([[True], [False, True]]), [[True], [False, True]]),
    "uuid": (pa.array([b"0" * 16, b"1" * 16], pa.uuid()), [b"0" * 16, b"1" * 16]),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_read_exactly(tmp_path: Path, name: str) -> None:
    array, expected = TYPES[name]
    pq.write_table(pa.table({"text": ["one", "two"], "x": array}), tmp_path / "a.parquet")
    source = ParquetFiles(tmp_path / "a.parquet")
    found = source.read(np.array([1, 0, 1]))["x"].tolist()
    assert found == [expected[i] for i in (1, 0, 1)]
    assert [type(value) for value in found] == [type(expected[i]) for i in (1, 0, 1)]
    assert [t for chunk in source.iterate() for t in chunk.texts] == ["one", "two"]


def test_bytes_that_are_not_utf8_inside_a_struct_are_a_bad_row(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"]).buffers())
    pq.write_table(pa.table({"x": pa.StructArray.from_arrays([broken], ["a"])}), tmp_path / "a.parquet")
    source = ParquetFiles(tmp_path / "a.parquet")
    assert source.read(np.array([0]))["x"].tolist() == [{"a": "ok"}]
    with pytest.raises(BadRecords, match=r"(?s)column 'x'.*UnicodeDecodeError.*a\.parquet, row 1"):
        source.read(np.array([0, 1]))
    kept = ps.read_parquet(tmp_path / "a.parquet", on_error="skip").peek()
    assert kept == [{"x": {"a": "ok"}}] * len(kept)


def test_a_struct_with_a_name_twice_is_refused_only_when_it_is_used(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    pq.write_table(pa.table({"x": twice, "text": ["one"]}), tmp_path / "a.parquet")
    assert ParquetFiles(tmp_path / "a.parquet", ["text"]).read(np.array([0]))["text"].tolist() == ["one"]
    with pytest.raises(ps.PenstockError, match="column 'x'"):
        ParquetFiles(tmp_path / "a.parquet").read(np.array([0]))
