"""Tables of drawn types, written with drawn options: the rows of pyarrow, or a refusal."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import PenstockError
from penstock.sources.parquet import ParquetFiles

LEAVES: list[tuple[Any, Callable[[random.Random], Any]]] = [
    (pa.bool_(), lambda draw: draw.random() < 0.5),
    (pa.int8(), lambda draw: draw.choice((-128, 0, 127))),
    (pa.uint16(), lambda draw: draw.choice((0, 65535))),
    (pa.int32(), lambda draw: draw.choice((-(2**31), 2**31 - 1))),
    (pa.uint32(), lambda draw: draw.choice((0, 2**32 - 1))),
    (pa.int64(), lambda draw: draw.choice((-(2**63), 2**63 - 1, 5))),
    (pa.uint64(), lambda draw: draw.choice((0, 2**64 - 1))),
    (pa.float16(), lambda draw: draw.choice((0.5, -2.0))),
    (pa.float32(), lambda draw: draw.choice((1.5, math.inf, math.nan))),
    (pa.float64(), lambda draw: draw.choice((0.1, -0.0, math.nan))),
    (pa.string(), lambda draw: draw.choice(("", "a", "日本", "x" * 300, "\0", "é\n"))),
    (pa.large_string(), lambda draw: draw.choice(("", "a" * 50))),
    (pa.string_view(), lambda draw: draw.choice(("", "short", "longer than the view itself"))),
    (pa.binary(), lambda draw: draw.choice((b"", b"\xff\x00"))),
    (pa.binary(4), lambda draw: draw.randbytes(4)),
    (pa.decimal128(10, 2), lambda draw: decimal.Decimal(draw.randrange(-999, 999)) / 100),
    (pa.date32(), lambda draw: datetime.date(2000 + draw.randrange(50), 1, 1)),
    (pa.timestamp("us", "UTC"), lambda draw: datetime.datetime(2020, 1, draw.randrange(1, 28), tzinfo=datetime.UTC)),
    (pa.time64("us"), lambda draw: datetime.time(1, 2, draw.randrange(60))),
]


def column(draw: random.Random, depth: int = 0) -> tuple[Any, Callable[[random.Random], Any]]:
    """A type, and what draws a value of it."""
    if depth == 3 or draw.random() < 0.6:
        return draw.choice(LEAVES)
    kind, value = column(draw, depth + 1)
    match draw.randrange(5):
        case 0:
            return pa.list_(kind), lambda d: [value(d) for _ in range(d.randrange(4))]
        case 1:
            return pa.large_list(kind), lambda d: [value(d) for _ in range(d.randrange(4))]
        case 2:
            return pa.list_(kind, 2), lambda d: [value(d), value(d)]
        case 3:
            return pa.map_(pa.string(), kind), lambda d: [(f"k{i}", value(d)) for i in range(d.randrange(3))]
    return pa.struct([pa.field("a", kind), pa.field("b.c", pa.int8())]), lambda d: {"a": value(d), "b.c": 1}


def options(draw: random.Random) -> dict[str, Any]:
    return {
        "row_group_size": draw.choice((1, 7, 1000)),
        "compression": draw.choice(("none", "snappy", "gzip", "brotli", "zstd", "lz4")),
        "data_page_version": draw.choice(("1.0", "2.0")),
        "version": draw.choice(("1.0", "2.4", "2.6")),
        "use_dictionary": draw.random() < 0.5,
        "write_statistics": draw.random() < 0.5,
        "write_page_index": draw.random() < 0.5,
        "write_page_checksum": draw.random() < 0.5,
        "data_page_size": draw.choice((1, 100, 1 << 20)),
        "store_schema": draw.random() < 0.6,
    }


def plain(value: Any) -> Any:
    """The value in Python's own types, such that NaN equals NaN."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def test_rows_are_those_of_pyarrow(tmp_path: Path) -> None:
    path, counts = tmp_path / "a.parquet", Counter[str]()
    for seed in range(150):
        draw = random.Random(seed)
        rows, nulls = draw.choice((1, 5, 60)), draw.random() < 0.2
        columns = {}
        for name in draw.sample(["text", "a", "b.c", "日本", "x y", ""], draw.randint(1, 3)):
            kind, value = column(draw)
            columns[name] = pa.array(
                [None if nulls and draw.random() < 0.1 else value(draw) for _ in range(rows)], kind
            )
        try:
            pq.write_table(pa.table(columns), path, **options(draw))
            table = pq.read_table(path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a type that this version cannot write or read
            continue
        expected = table.to_pylist()
        picks = np.array([draw.randrange(rows) for _ in range(min(rows, 20))])
        try:
            found = ParquetFiles(path).read(picks)
        except PenstockError:
            counts["refused"] += 1
            continue
        assert set(found) == set(table.column_names), seed
        for name, values in found.items():
            ours = [plain(values[i]) for i in range(len(picks))]
            assert ours == [plain(expected[i][name]) for i in picks], (seed, name)
        counts["read"] += 1
    assert counts["read"] > 80
