"""Values that rows hold beside numbers come back from a store, and so from `.cache()`, with value and type."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
import zoneinfo
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import PenstockError
from penstock.store.values import decode_values, encode_values
from penstock.testing import assert_same_batches
from tests.hostile.fuzzing import fuzz

DAY = dt.datetime(2024, 5, 1, 12, 30, 0, 7)
VALUES: list[Any] = [
    "a", b"b", None, {"c": [1, 2.5, True]}, "\ud800", {"\ud800": 1}, (1, 2), [(1,), []], {1: 2, None: "x", (1, 2): 3},
    math.inf, {"a": math.inf}, 2**70, {"a": -(2**70)}, {"\0": ["date", "x"]}, DAY, DAY.date(), DAY.time(),
    DAY.replace(tzinfo=dt.timezone.utc), DAY.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),  # noqa: UP017
    DAY.replace(tzinfo=dt.timezone(dt.timedelta(hours=-3))), dt.timedelta(-3, 5, 7), decimal.Decimal("1.50"),
    uuid.UUID(int=7), 1 + 2j, {"bytes": b"\xff", "path": None}, np.float32(1.5), np.datetime64(1, "ns"),
    {"a": np.uint8(3), "b": [np.timedelta64(2, "s")]},
]  # fmt: skip


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int = 1


def test_values_and_types_come_back() -> None:
    found = decode_values(encode_values(VALUES), "here")
    for value, again in zip(VALUES, found, strict=True):
        assert again == value and type(again) is type(value), value
        assert repr(again) == repr(value)
    (nan,) = decode_values(encode_values([{"a": math.nan}]), "here")
    assert math.isnan(nan["a"])
    (nest,) = decode_values(encode_values([{"a": np.array([[1, 2]], np.int8)}]), "here")
    assert nest["a"].dtype == np.int8 and nest["a"].tolist() == [[1, 2]]


@pytest.mark.parametrize("value", [Colour.RED, Point(), {"a": {1, 2}}, object()])
def test_others_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_values([value])


def test_rows_of_a_cache_are_those_of_the_file(tmp_path: Path) -> None:
    """Dates became text, NaN in a dict None, tuples of a map lists."""
    table = pa.table({
        "day": [DAY.date(), None], "at": [DAY, DAY], "price": [decimal.Decimal("1.5"), decimal.Decimal("10.25")],
        "facts": [{"score": math.inf, "raw": b"ab"}, {"score": 1.0, "raw": None}],
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), "n": [1, 2],
    })  # fmt: skip
    rows = ps.from_records(table)
    want = list(rows.batch(1).to_numpy(threads=0))
    assert_same_batches(want, list(rows.cache(cache_dir=tmp_path, show_progress=False).batch(1).to_numpy(threads=0)))


def test_damaged_values_are_refused() -> None:
    column = encode_values([VALUES[3], VALUES[8], VALUES[18], VALUES[23], VALUES[27]])

    def read(data: bytes) -> Any:
        values = np.frombuffer(data, np.uint8)
        return repr(decode_values(Ragged(values, np.array([0, len(values)])), "here").tolist())

    for start, stop in zip(column.offsets[:-1].tolist(), column.offsets[1:].tolist(), strict=True):
        fuzz(read, column.values[start:stop].tobytes(), 400)
    with pytest.raises(PenstockError, match=r"a value as .tokenize\(\) writes it"):
        read(b"t" + b'{"\\u0000":["os.system","ls"]}')
