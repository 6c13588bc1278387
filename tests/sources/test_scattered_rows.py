"""Scattered rows of Parquet: the same rows, errors and order as from the row groups, whatever happens to the cache."""

from __future__ import annotations

import datetime
import os
import pickle
import shutil
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core import local_files
from penstock.core.errors import BadRecords, PenstockError
from penstock.core.limits import Limits
from penstock.sources import arrow_buffers, scattered_rows
from penstock.sources.parquet import ParquetFiles
from penstock.sources.scattered_rows import ScatteredRows
from penstock.testing import assert_elastic, assert_exact_resume
from penstock.testing.resume import assert_same
from tests.sources.test_parquet import damage_group

NEVER = Limits(row_cache_bytes=0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows are stored at the second scattered read, on disk."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scattered_rows, "MEMORY_BYTES", -1)
    monkeypatch.setattr(scattered_rows, "SHARE", 1 << 40)
    monkeypatch.setattr(scattered_rows, "WASTE", 0)
    monkeypatch.setattr(scattered_rows, "SLICE_SECONDS", 1000.0)
    return tmp_path / "cache" / "rows"


def table(n: int, seed: int, holes: bool = False) -> pa.Table:
    rng = np.random.default_rng(seed)

    def some(make: Any) -> list[Any]:
        return [None if rng.random() < 0.2 else make(int(i)) for i in rng.integers(0, 1000, n)]

    def numbers(make: Any) -> list[Any]:
        return some(make) if holes else [make(int(i)) for i in rng.integers(0, 1000, n)]

    day = datetime.date(2020, 1, 1)
    return pa.table(
        {
            "n": pa.array(np.arange(n) + 1000 * seed, pa.int32()),
            "text": pa.array(some(lambda i: "é" * (i % 7))),
            "wide": pa.array(some(lambda i: "y" * i), pa.large_string()),
            "raw": pa.array(some(lambda i: bytes([i % 256]) * (i % 90))),
            "fixed": pa.array(some(lambda i: b"%03d" % i), pa.binary(3)),
            "score": pa.array(numbers(float), pa.float32()),
            "flag": pa.array(numbers(lambda i: i % 3 == 0)),
            "ids": pa.array(numbers(lambda i: list(range(i % 9))), pa.list_(pa.uint16())),
            "flags": pa.array(numbers(lambda i: [True, False, True][: i % 4]), pa.list_(pa.bool_())),
            "pair": pa.array(numbers(lambda i: [1.5, i]), pa.list_(pa.float32(), 2)),
            "day": pa.array(some(lambda i: day + datetime.timedelta(i))),
            "time": pa.array(some(lambda i: i * 1001), pa.timestamp("ns", tz="UTC")),
            "price": pa.array(some(Decimal), pa.decimal128(10, 2)),
            "image": pa.array(some(lambda i: {"bytes": b"x" * i, "path": None if i % 2 else str(i)})),
            "deep": pa.array(some(lambda i: {"a": [{"b": [str(i)] * (j % 3)} for j in range(i % 4)]})),
            "map": pa.array(some(lambda i: [(f"k{j}", j) for j in range(i % 4)]), pa.map_(pa.string(), pa.int32())),
            "class": pa.array([f"c{i % 3}" for i in range(n)]).dictionary_encode(),
            "lists": pa.array(some(lambda i: [["a"], [None, "b"], None][: i % 4]), pa.list_(pa.list_(pa.string()))),
            "nothing": pa.nulls(n),
        }
    )


def files(folder: Path, holes: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for number, (rows, group) in enumerate([(50, 7), (33, 33), (19, 1), (9, 4)]):
        pq.write_table(table(rows, number, holes), folder / f"{number}.parquet", row_group_size=group)
    return folder


def stored(source: ParquetFiles) -> bool:
    return source._scattered._rows is not None


def reads(source: ParquetFiles, count: int = 6) -> list[Any]:
    """What random reads return or raise."""
    rng = np.random.default_rng(5)
    out: list[Any] = []
    for _ in range(count):
        rows = rng.integers(0, len(source), 40)
        try:
            out.append(source.read(rows))
        except BadRecords as error:
            out.append([(e.row, e.expected, e.got, e.where, e.fix) for e in error.errors])
    return out


def assert_equal(one: list[Any], other: list[Any]) -> None:
    for left, right in zip(one, other, strict=True):
        if isinstance(left, dict):
            assert_same(left, right)
        else:
            assert left == right


@pytest.mark.parametrize("memory", [-1, 1 << 30])
@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("holes", [False, True])
def test_rows_and_errors_are_those_of_the_row_groups(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, memory: int, damage: bool, holes: bool
) -> None:
    monkeypatch.setattr(scattered_rows, "MEMORY_BYTES", memory)
    folder = files(tmp_path / "data", holes)
    if damage:
        damage_group(folder / "0.parquet", 3)
        damage_group(folder / "3.parquet", 2, 4)
    plain, source = ParquetFiles(folder, limits=NEVER), ParquetFiles(folder)
    expected = reads(plain)
    assert not stored(plain) and not cache.exists()
    assert_equal(reads(source), expected)
    assert stored(source) and cache.exists() == (memory < 0)
    assert_same(source.read(np.array([], np.int64)), plain.read(np.array([], np.int64)))
    again = pickle.loads(pickle.dumps(source))
    assert_equal(reads(again), expected)
    assert stored(again)


def test_text_that_is_not_utf8_and_structs_with_a_name_twice(tmp_path: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"\xff!", b"fine"]).buffers())
    twice = pa.StructArray.from_arrays([pa.array([1, 2, 3])] * 2, names=["a", "a"])
    for name, column in (("text", raw), ("text", twice)):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({name: pa.concat_arrays([column] * 20)}), path, row_group_size=4)
        source = ParquetFiles(path)
        assert_equal(reads(source), reads(ParquetFiles(path, limits=NEVER)))
        assert stored(source)


def test_a_type_that_differs_between_files_is_read_from_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [{"a": 1}] * 30}), tmp_path / "a.parquet", row_group_size=5)
    pq.write_table(pa.table({"x": [{"b": "one"}] * 30}), tmp_path / "b.parquet", row_group_size=5)
    source = ParquetFiles(tmp_path)
    assert_equal(reads(source), reads(ParquetFiles(tmp_path, limits=NEVER)))
    assert not stored(source)
    assert "another one in other row groups" in source.note()


def test_a_large_value_that_is_repeated_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_buffers, "_MOST_DECODED", 50_000)
    path = tmp_path / "a.parquet"
    repeated = pa.array(["x" * 10_000] * 60).dictionary_encode()
    pq.write_table(pa.table({"text": repeated, "n": np.arange(60)}), path, row_group_size=20)
    source = ParquetFiles(path)
    assert_equal(reads(source), reads(ParquetFiles(path, limits=NEVER)))
    assert not stored(source) and "repeated to 200000 bytes" in source.note()


def test_the_law(tmp_path: Path) -> None:
    folder = files(tmp_path / "data")
    make = lambda rows=5: ps.read_parquet(folder, columns=["n", "text", "ids"]).shuffle(seed=3).batch(rows)  # noqa: E731
    assert_exact_resume(make, epochs=2)
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2))
    plain = ps.read_parquet(folder, columns=["n", "text", "ids"], limits=NEVER).shuffle(seed=3).batch(5)
    for one, other in zip(plain.to_numpy(threads=0), make().to_numpy(workers=1), strict=True):
        assert_same(one, other)


def test_a_file_of_the_same_size_and_time_is_another_one(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.parquet"

    def write(letter: str) -> None:
        rows = pa.table({"text": [letter * 9] * 60})
        pq.write_table(rows, path, row_group_size=7, use_dictionary=False, compression="none", write_statistics=False)
        os.utime(path, ns=(10**18, 10**18))

    write("a")
    size = path.stat().st_size
    for letter in "ab":
        write(letter)
        assert path.stat().st_size == size
        source = ParquetFiles(path)
        for found in reads(source):
            assert set(found["text"]) == {letter * 9}
        assert stored(source)
    assert len([p for p in cache.iterdir() if p.is_dir() and not p.name.startswith(".")]) == 2


def test_stored_rows_are_found_by_content_and_by_what_the_system_says(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattered_rows, "_SETTLED", 0)
    folder = files(tmp_path / "data")
    assert_equal(reads(ParquetFiles(folder)), reads(ParquetFiles(folder, limits=NEVER)))
    made = {p.name: p.stat().st_mtime_ns for p in cache.glob("*/manifest.json")}
    known = ParquetFiles(folder)
    known.read(np.arange(0, len(known), 5))
    assert stored(known) and known._kept.decoded == 0  # at the first read
    shutil.copytree(folder, tmp_path / "copy")
    copy = ParquetFiles(tmp_path / "copy")
    reads(copy)
    assert stored(copy)
    assert {p.name: p.stat().st_mtime_ns for p in cache.glob("*/manifest.json")} == made


@pytest.mark.parametrize("how", ["page", "cut", "hashes", "manifest", "gone"])
@pytest.mark.parametrize("when", ["before", "open"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, cache: Path, how: str, when: str) -> None:
    folder = files(tmp_path / "data")
    expected = reads(ParquetFiles(folder, limits=NEVER))
    source = ParquetFiles(folder)
    reads(source, 2)
    assert stored(source)
    (entry,) = [p for p in cache.iterdir() if p.is_dir() and not p.name.startswith(".")]
    largest = max((p for p in entry.iterdir() if p.name.isdigit()), key=lambda p: p.stat().st_size)
    if how == "page":
        data = bytearray(largest.read_bytes())
        data[:] = bytes(b ^ 255 for b in data)
        largest.write_bytes(data)
    elif how == "cut":
        os.truncate(largest, 100)
    elif how == "hashes":
        (entry / "hashes").write_bytes(bytes(len((entry / "hashes").read_bytes())))
    elif how == "manifest":
        (entry / "manifest.json").write_bytes(b'{"format": 3}')
    else:
        shutil.rmtree(entry)
    if when == "before":
        source = ParquetFiles(folder)
    assert_equal(reads(source), expected)
    assert_equal(reads(source), expected)


def test_without_room_or_permission_rows_come_from_the_row_groups(tmp_path: Path, cache: Path) -> None:
    folder = files(tmp_path / "data")
    expected = reads(ParquetFiles(folder, limits=NEVER))
    little = ParquetFiles(folder, limits=Limits(row_cache_bytes=5000))
    assert_equal(reads(little), expected)
    assert not stored(little) and "5.0 kB are allowed" in little.note()
    assert not list(cache.glob(".making*"))
    cache.parent.mkdir(exist_ok=True)
    shutil.rmtree(cache, ignore_errors=True)
    cache.write_text("a file")
    other = ParquetFiles(folder)
    assert_equal(reads(other), expected)
    assert not stored(other) and "could not be stored" in other.note()


def test_the_verdict_names_the_cheaper_shuffle(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(4000)}), path, row_group_size=100)
    loader = ps.read_parquet(path, limits=NEVER).shuffle(seed=1).batch(4).to_numpy(threads=0)
    loader.batch_at(0)
    assert ".shuffle(block=100, window=8) would read each row group once" in loader.stats()["verdict"]
    loader = ps.read_parquet(path).shuffle(seed=1).batch(4).to_numpy(threads=0)
    assert sum(1 for _ in loader) == 1000
    assert "shuffle(" not in loader.stats()["verdict"]


def test_sequential_reads_store_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattered_rows, "SHARE", 4)
    monkeypatch.setattr(scattered_rows, "WASTE", 4)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(4000)}), path, row_group_size=100)
    for pipeline in (ps.read_parquet(path), ps.read_parquet(path).shuffle(seed=1, block=100, window=2)):
        loader = pipeline.batch(50).to_numpy(threads=2)
        for _ in range(3):
            assert sum(len(batch["n"]) for batch in loader) == 4000
    assert not cache.exists()


def test_work_is_cut_into_slices_and_shared_by_threads(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path / "data")
    expected = reads(ParquetFiles(folder, limits=NEVER), 30)
    monkeypatch.setattr(scattered_rows, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(scattered_rows, "SLICE", 0.0)
    source = ParquetFiles(folder)
    reads(source, 9)
    assert not stored(source) and list(cache.glob(".making*"))
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(4):
                assert_equal(reads(source, 30), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and stored(source)
    unfinished = ParquetFiles(folder, columns=["n"])
    reads(unfinished, 9)
    assert list(cache.glob(".making*"))
    unfinished._scattered._work.close()  # type: ignore[union-attr]
    assert not list(cache.glob(".making*"))


def test_another_process_that_stores_the_same_rows_is_waited_for(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattered_rows, "SLICE_SECONDS", 0.2)
    folder = files(tmp_path / "data")
    expected = reads(ParquetFiles(folder, limits=NEVER))
    first = ParquetFiles(folder)
    reads(first)
    (entry,) = [p for p in cache.iterdir() if p.is_dir() and not p.name.startswith(".")]
    shutil.move(entry, tmp_path / "entry")
    second = ParquetFiles(folder)
    with local_files.lock(str(cache / f"{entry.name}.lock"), "storing rows"):
        assert_equal(reads(second, 3), expected[:3])
        assert not stored(second)
        shutil.move(tmp_path / "entry", entry)
    assert_equal(reads(second), expected)
    assert stored(second)


def test_a_killed_process_leaves_nothing_that_matters(tmp_path: Path, cache: Path) -> None:
    folder = files(tmp_path / "data")
    code = """
import os, sys, numpy as np
from penstock.sources import arrow_buffers, scattered_rows
scattered_rows.MEMORY_BYTES, scattered_rows.SHARE, scattered_rows.WASTE = -1, 1 << 40, 0
scattered_rows.SLICE_SECONDS = scattered_rows.SLICE = 0.0
from penstock.sources.parquet import ParquetFiles
source = ParquetFiles(sys.argv[1])
for _ in range(6):
    source.read(np.arange(0, len(source), 3))
assert source._scattered._rows is None
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, env=dict(os.environ))
    assert done.returncode == -9 and list(cache.glob(".making*"))
    source = ParquetFiles(folder)
    assert_equal(reads(source), reads(ParquetFiles(folder, limits=NEVER)))
    assert stored(source) and not list(cache.glob(".making*"))


def test_objects_are_stored_once_and_then_cost_no_requests(tmp_path: Path, s3: Any, fault_proxy: Any) -> None:
    from tests.remote.test_remote_lines import upload

    folder = files(tmp_path / "data")
    damage_group(folder / "0.parquet", 2)
    url = upload(s3, folder, "scattered")
    options = fault_proxy.options
    local = ParquetFiles(folder, limits=NEVER)
    expected = [f if isinstance(f, dict) else [e[:3] for e in f] for f in reads(local)]

    def shown(found: list[Any]) -> list[Any]:
        return [f if isinstance(f, dict) else [e[:3] for e in f] for f in found]

    source = ParquetFiles(url, storage_options=options)
    assert_equal(shown(reads(source)), expected)
    assert stored(source)
    fault_proxy.clear()
    rows = np.array([i for i in range(len(source)) if not 14 <= i < 21])
    assert_same(source.read(rows), local.read(rows))
    assert fault_proxy.requests == 0


def test_limits_and_fork(tmp_path: Path) -> None:
    source = ParquetFiles(files(tmp_path / "data"))
    scattered = ScatteredRows(source, source._files)
    scattered._pid = -1  # as in a forked copy: it stores nothing
    scattered._advance()
    assert scattered._work is None
    with pytest.raises(PenstockError):
        source.read(np.array([10**6]))
