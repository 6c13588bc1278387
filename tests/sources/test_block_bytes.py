"""Sizes of rows of Arrow columns of every type, beside what each row alone holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.read_budget import OverBudget, at_most
from penstock.sources.block_bytes import MOST_CHUNKS, TableBytes, spend_rows
from penstock.sources.parquet import ParquetFiles

TEXTS = ["", "a", None, "bcd", "é" * 500, "x"]
COLUMNS = {
    "text": (pa.array(TEXTS), [0, 1, 0, 3, 1000, 1]),
    "large": (pa.array(TEXTS, pa.large_string()), [0, 1, 0, 3, 1000, 1]),
    "bytes": (pa.array([b"ab", b"", None, b"c" * 9], pa.binary()), [2, 0, 0, 9]),
    "lists": (pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())), [8, 0, 0, 4]),
    "numbers": (pa.array([1, 2, 3], pa.int64()), [8, 8, 8]),
    "structs": (pa.array([{"b": b"abc", "n": 1}, {"b": b"", "n": 2}]), [11, 8]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), None),
    "none": (pa.array([None, None]), [0, 0]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_sizes_of_rows(name: str) -> None:
    array, want = COLUMNS[name]
    if want is None:
        assert TableBytes([pa.chunked_array([array])]).of(np.arange(3)) > 0
        return
    for column in (
        pa.chunked_array([array]),
        pa.chunked_array([array.slice(0, 1), array.slice(1, 0), array.slice(1)]),
        pa.chunked_array([pa.concat_arrays([array, array]).slice(len(array))]),
    ):
        sizes = TableBytes([column])
        assert [sizes.of(np.array([row])) for row in range(len(array))] == want
        assert sizes.largest == max(want)
        counted = [_counted(column, [row]) for row in range(len(array))]
        assert counted == want and _counted(column, [0, *range(len(array))]) == sum(want) + want[0]


def _counted(column: pa.ChunkedArray, rows: list[int]) -> int:
    """The least budget that these rows fit into."""
    for size in range(5000):
        try:
            with at_most(size):
                spend_rows([column], np.array(rows))
            return size
        except OverBudget:
            continue
    raise AssertionError("too many bytes")


def test_of_many_chunks_each_is_one_block() -> None:
    chunks = [pa.array(["a", "b" * 9]) for _ in range(MOST_CHUNKS + 1)]
    sizes = TableBytes([pa.chunked_array(chunks), pa.chunked_array([pa.array(range(2 * len(chunks)))])])
    assert sizes.of(np.array([0, 1, 4])) == 39
    assert sizes.largest == 13


def test_rows_of_parquet_count_the_columns_that_are_read(tmp_path: Path) -> None:
    texts = [str(i) * 400 for i in range(60)]
    for name, rows in (("a", slice(0, 40)), ("b", slice(40, 60))):
        table = pa.table({"text": texts[rows], "n": range(60)[rows]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=8, use_dictionary=False)
    every, both = np.arange(60), sum(map(len, texts)) + 60 * 8
    assert both <= ParquetFiles(tmp_path).bytes_of_rows(every) < 1.5 * both  # pages have headers
    assert 60 * 8 <= ParquetFiles(tmp_path, ["n"], text="n").bytes_of_rows(every) < both / 10
    assert ParquetFiles(tmp_path).largest_row() >= 800
