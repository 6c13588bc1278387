"""Tables in memory: pyarrow, pandas, Polars, and anything with the Arrow C stream interface."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume, assert_same

ROWS = {"text": [f"row {i}" for i in range(50)], "n": list(range(50)), "x": [i / 4 for i in range(50)],
        "ids": [list(range(i % 5)) for i in range(50)]}  # fmt: skip


class Stream:
    """Not a table of any known library."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(ROWS).__arrow_c_stream__(requested_schema)


TABLES = {
    "pyarrow": lambda: pa.table(ROWS),
    "in chunks": lambda: pa.concat_tables([pa.table(ROWS).slice(0, 7), pa.table(ROWS).slice(7)]),
    "batch": lambda: pa.RecordBatch.from_pydict(ROWS),
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas with an index": lambda: pd.DataFrame(ROWS, index=range(100, 150)),
    "polars": lambda: pl.DataFrame(ROWS),
    "stream": Stream,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_the_same_rows(kind: str) -> None:
    found = ps.from_records(TABLES[kind]())
    expected = ps.from_records(pa.table(ROWS))
    columns = found.rows().read(np.array([49, 0, 3, 3]))
    assert_same(columns, expected.rows().read(np.array([49, 0, 3, 3])))
    assert columns["ids"].tolist() == [[0, 1, 2, 3], [], [0, 1, 2], [0, 1, 2]]
    assert columns["n"].dtype == np.int64 and columns["text"].tolist()[0] == "row 49"
    if "polars" not in kind:  # whose lists and texts have other Arrow types
        assert found.definition.fingerprint() == expected.definition.fingerprint()
    assert found.definition.fingerprint() != ps.from_records(pa.table(ROWS).slice(1)).definition.fingerprint()
    assert len(pickle.loads(pickle.dumps(found)).rows()) == 50
    loader = found.shuffle(seed=3).batch(4).to_numpy()
    assert loader.why(2, 1)["from"]["row"] == int(loader.batch_at(2)["n"][1])


def test_categories_of_polars(tmp_path: Path) -> None:
    """Their dictionaries hold views, which pyarrow cannot take values from; chunks have dictionaries of their own."""
    frames = [pl.DataFrame({"c": pl.Series(names, dtype=pl.Categorical)}) for names in (["a", None, "b"], ["z", "a"])]
    frame = pl.concat(frames, rechunk=False)
    assert ps.from_records(frame).rows().read(np.array([4, 3, 1, 0]))["c"].tolist() == ["a", "z", None, "a"]
    assert ps.from_records(frame).fingerprint() == ps.from_records(frame.rechunk()).fingerprint()
    enum = frame.with_columns(frame["c"].cast(pl.Enum(["a", "b", "z"])), pl.struct("c").alias("s"))
    assert ps.from_records(enum).peek(1) == [{"c": "a", "s": {"c": "a"}}]
    frame.write_ipc(tmp_path / "a.arrow")
    assert [row["c"] for row in ps.read_arrow(tmp_path / "a.arrow").peek(5)] == ["a", None, "b", "z", "a"]


def test_the_law() -> None:
    def make(batch: int) -> ps.Pipeline:
        return ps.from_records(pl.DataFrame(ROWS)).shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)


def test_columns_are_chosen() -> None:
    assert ps.from_records(pd.DataFrame(ROWS), ["n"]).peek(1) == [{"n": 0}]
    with pytest.raises(ps.UsageError, match=r"a field 'm'\n  got:   'text', 'n'"):
        ps.from_records(pd.DataFrame(ROWS), ["m"])


def test_missing_numbers() -> None:
    frame = pd.DataFrame({"x": [1.5, None, 2.5], "n": pd.array([1, None, 3], "Int64"), "t": ["a", None, "b"]})
    columns = ps.from_records(frame[["x", "t"]]).rows().read(np.arange(3))
    assert np.isnan(columns["x"][1]) and columns["t"].tolist() == ["a", None, "b"]
    with pytest.raises(ps.BadRecords, match=r"(?s)column 'n'.*null.*pandas DataFrame, row 1"):
        ps.from_records(frame).rows().read(np.arange(3))
    kept = ps.from_records(frame).skip_errors().batch(3).to_numpy().batch_at(0)["n"].tolist()
    assert set(kept) == {1, 3}


@pytest.mark.parametrize(("table", "text"), [
    (lambda: pd.DataFrame({"x": [1, "a", b"c"]}), "values of one type"),
    (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names"),
    (lambda: pd.DataFrame({"x": []}), "at least one row"),
    (lambda: pa.table({}), "different names"),
    (lambda: pd.Series([1, 2]), r"a table\n  got:   one column, a pandas Series\n  fix:   .*\.to_frame\(\)"),
    (lambda: pl.Series("n", [1, 2]), r"one column, a polars Series(.|\n)*\.to_frame\(\)"),
    (lambda: pl.LazyFrame({"n": [1]}), r"got:   LazyFrame\n  fix:   .*\.collect\(\)"),
])  # fmt: skip
def test_what_is_no_table_is_refused(table, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        ps.from_records(table())
