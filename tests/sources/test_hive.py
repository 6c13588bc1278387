"""Columns in the names of folders, as Hive and Spark write partitioned Parquet."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.sources.parquet import ParquetFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for year in (2023, 2024):
        for language in ("de", "en%2FGB"):
            place = tmp_path / "data=x" / "corpus" / f"year={year}" / f"language={language}"
            place.mkdir(parents=True)
            pq.write_table(pa.table({"text": [f"{year} {language} {i}" for i in range(2)]}), place / "part-0.parquet")
    return tmp_path / "data=x" / "corpus"


def rows(pipeline: Any) -> list[dict[str, Any]]:
    return [
        {name: getattr(value, "item", lambda v=value: v)() for name, value in row.items()} for row in pipeline.peek(8)
    ]


def test_partitions_are_columns(folder: Path) -> None:
    found = rows(ps.read_parquet(folder))
    assert len(found) == 8
    for row in found:
        assert row["text"].startswith(f"{row['year']} {row['language'].replace('/', '%2F')} ")
        assert isinstance(row["year"], int)
    shuffled = ps.read_parquet(folder).shuffle(seed=1).batch(4).to_numpy(threads=2)
    for batch in shuffled:
        assert batch["year"].dtype == "int64"
        assert all(text.startswith(str(year)) for text, year in zip(batch["text"], batch["year"], strict=True))


@pytest.mark.parametrize(
    "paths",
    ["{0}/year=*/language=de/*.parquet", "{0}/year={{2023,2024}}/language=de", ["{0}/year=2023", "{0}/year=2024"]],
)
def test_patterns_and_lists(folder: Path, paths: Any) -> None:
    asked = paths.format(folder) if isinstance(paths, str) else [path.format(folder) for path in paths]
    found = rows(ps.read_parquet(asked))
    assert {row["year"] for row in found} == {2023, 2024}
    assert "data" not in found[0]


def test_what_was_asked_for_itself_is_no_column(folder: Path) -> None:
    assert set(rows(ps.read_parquet(folder / "year=2023"))[0]) == {"text", "language"}
    assert set(rows(ps.read_parquet(folder / "year=2023/language=de/part-0.parquet"))[0]) == {"text"}


def test_choosing_columns(folder: Path) -> None:
    assert set(rows(ps.read_parquet(folder, partitions="ignore"))[0]) == {"text"}
    assert set(rows(ps.read_parquet(folder, columns=["text", "year"]))[0]) == {"text", "year"}
    assert set(rows(ps.read_parquet(folder, columns=["text"]))[0]) == {"text"}
    with pytest.raises(ps.UsageError, match="at least one column that the files store"):
        ps.read_parquet(folder, columns=["year"])
    with pytest.raises(ps.UsageError, match='partitions="columns" or "ignore"'):
        ps.read_parquet(folder, partitions="drop")  # type: ignore[arg-type]


def test_partitions_are_part_of_the_identity(folder: Path) -> None:
    before = ParquetFiles(folder)
    assert pickle.loads(pickle.dumps(before)).read([5])["year"] == before.read([5])["year"]
    ids = before.fingerprint(), ParquetFiles(folder, partitions="ignore").fingerprint()
    os.rename(folder / "year=2024", folder / "year=2025")
    after = ParquetFiles(folder)
    assert len({*ids, after.fingerprint()}) == 3
    assert ParquetFiles(folder, partitions="ignore").fingerprint() == ids[1]


def test_a_column_of_the_file_is_taken_from_it(tmp_path: Path) -> None:
    (tmp_path / "n=7").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "n=7" / "a.parquet")
    assert rows(ps.read_parquet(tmp_path)) == [{"n": 1}]


@pytest.mark.parametrize("other", ["month=1", "year=__HIVE_DEFAULT_PARTITION__", "plain"])
def test_uneven_partitions_are_refused(folder: Path, other: str) -> None:
    place = folder / other / "language=de"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a"]}), place / "a.parquet")
    with pytest.raises(ps.DataError, match='(?s)partition.*partitions="ignore"'):
        ps.read_parquet(folder)
    assert len(ps.read_parquet(folder, partitions="ignore").rows()) == 9
