"""`.cache()`: computed once, never stale, repaired when damaged, refused where it would freeze randomness."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same

calls: list[int] = []


def expensive(record: dict[str, Any]) -> dict[str, Any]:
    calls.append(int(record["x"]))
    if record["x"] % 100 == 3:
        raise ValueError("bad")
    n = int(record["x"])
    return {
        "x": n, "input_ids": np.arange(n % 5), "image": np.full((2, 3), n, np.float32), "name": f"row {n}",
        "labels": None, "_hidden": n,
    }  # fmt: skip


def pipeline(folder: Path, n: int = 2100, version: str = "1") -> ps.Pipeline:
    rows = ps.from_arrays({"x": np.arange(n)}).map(expensive, version=version).skip_errors(budget=30)
    return rows.cache(cache_dir=folder)


def test_rows_are_computed_once_and_are_those_of_the_pipeline(tmp_path: Path) -> None:
    cached = pipeline(tmp_path)
    calls.clear()
    want = [n for n in range(2100) if n % 100 != 3]
    rows = cached.rows()
    order = np.random.default_rng(1).permutation(len(want))
    got = rows.read(order)
    plain = ps.from_arrays({"x": np.array(want)[order]}).map(expensive, version="1").rows().read(np.arange(len(want)))
    calls.clear()
    got["_hidden"] = got["_hidden"].astype(np.int64)  # kept as a value
    assert_same({name: got[name] for name in plain}, plain)
    assert pipeline(tmp_path) == cached and pickle.loads(pickle.dumps(cached)) == cached
    list(cached.shuffle(seed=1).select("x", "image").batch(8).to_numpy(threads=0))
    assert calls == []
    assert cached.take(5).batch(5).to_numpy(threads=0).why(0, 3)["from"]["cached_row"] == 4
    loader = cached.batch(8).to_numpy(threads=0)
    assert "input_ids" in loader.batch_at(0)


def test_other_data_and_other_functions_are_other_rows(tmp_path: Path) -> None:
    pipeline(tmp_path, 10)
    calls.clear()
    pipeline(tmp_path, 11)
    assert set(calls) == set(range(11))
    calls.clear()
    pipeline(tmp_path, 10, version="2")
    assert set(calls) == set(range(10))


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    want = pipeline(tmp_path, 50).rows().read(np.arange(49))
    (shard,) = (tmp_path / "rows").glob("*/*.tokens")
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 0xFF
    shard.write_bytes(data)
    assert_same(pipeline(tmp_path, 50).rows().read(np.arange(49)), want)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.shuffle(seed=1), ["same order of rows", "put .shuffle() after .cache()"]),
        (lambda p: p.map(lambda r, rng: {"x": rng.random()}), ["no random draws before .cache()", "before the random"]),
        (lambda p: p.repeat(), ["a pipeline with an end before .cache()"]),
        (lambda p: p.batch(2), ["single records before .cache()"]),
    ],
)
def test_what_is_refused(change: Any, says: list[str], tmp_path: Path) -> None:
    with pytest.raises(ps.UsageError) as caught:
        change(ps.from_arrays({"x": np.arange(9)})).cache(cache_dir=tmp_path)
    assert all(text in str(caught.value) for text in says), str(caught.value)


def test_in_memory_the_rows_are_those_of_the_disk_and_bounded(tmp_path: Path) -> None:
    calls: list[int] = []

    def expensive(record: dict[str, Any]) -> dict[str, Any]:
        calls.append(record["x"])
        if record["x"] == 7:
            raise ValueError("bad")
        ids = np.arange(int(record["x"]) % 5)
        return {"x": record["x"], "text": f"row {record['x']}", "ids": ids, "image": np.full((2, 2), record["x"], "u1")}

    rows = ps.from_arrays({"x": np.arange(2500)}).map(expensive, version="1").skip_errors(3)
    rows = rows.filter(lambda record: record["x"] % 3 > 0, version="1")
    held = rows.cache(memory=1 << 20)
    assert len(calls) >= 2500
    calls.clear()
    disk = rows.cache(cache_dir=tmp_path)
    calls.clear()
    assert len(held.rows()) == len(disk.rows()) == sum(1 for x in range(2500) if x % 3 and x != 7)
    one, other = (p.shuffle(seed=1).pad(columns=["ids"]).batch(50).to_numpy() for p in (held, disk))
    for left, right in zip(one, other, strict=True):
        assert_same(left, right)
    assert not calls
    assert held == rows.cache(memory=1 << 24) and held != rows.filter(lambda record: record["x"] > 4).cache(
        memory=1 << 20
    )
    with pytest.raises(ps.LimitError, match=r"(?s)at most 10.0 kB.*\.cache\(\) on disk"):
        rows.cache(memory=10_000)
    with pytest.raises(ps.PenstockError, match="budget|bad records"):
        ps.from_arrays({"x": np.arange(50) % 8}).map(expensive, version="1").skip_errors(3).cache(memory=1 << 20)
    for wrong, text in (({"memory": 0}, "at least 1 byte"), ({"memory": 9, "cache_dir": tmp_path}, "leave one")):
        with pytest.raises(ps.UsageError, match=text):
            rows.cache(**wrong)
    with pytest.raises(ps.UsageError, match=r"\.shuffle\(\) after \.cache\(\)"):
        rows.shuffle(seed=1).cache(memory=1 << 20)
