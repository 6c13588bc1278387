"""The Run page: what a running loader writes, as it is now; finished runs beside each other; hostile files as text."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.view.run_facts import read_run, run_paths
from penstock.view.session import open_session


def record(path: Path, rows: int = 400, **options) -> None:
    loader = ps.from_arrays({"x": range(rows)}).map(dict).shuffle(seed=1).batch(4).to_numpy(**options)
    for _ in loader.write_snapshots(path, seconds=0.1):
        time.sleep(0.002)


def test_the_page_follows_a_loader_that_runs(viewer, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = ps.from_arrays({"x": range(100)}).map(dict).repeat().batch(4).to_numpy(threads=1)
    client = viewer(loader)
    assert 'href="/run"' not in client.get("/plan").text
    run = iter(loader.write_snapshots(path, seconds=0.1))
    text = client.get("/run").text
    assert "nothing is written yet" in text and 'data-refresh="1"' in text
    next(run)
    while not run_paths(str(path)):
        time.sleep(0.01)
    seen: list[int] = []
    for _ in range(2000):
        next(run)
        time.sleep(0.005)
        text = client.get("/run").text
        assert 'data-refresh="1"' in text and "run.jsonl: running" in text
        step = int(re.search(r"<b>([\d,]+)</b><span>next step", text)[1].replace(",", ""))
        if not seen or step > seen[-1]:
            seen.append(step)
        if len(seen) == 3:
            break
    assert len(seen) == 3 and seen[-1] <= loader.step
    run.close()
    text = client.get("/run").text
    assert "run.jsonl: ended" in text and "data-refresh" not in text
    assert f"<b>{loader.step:,}</b><span>next step" in text
    for part in ("Throughput", "Waiting for data", "Memory", "Seconds of each step", "map, ", ".batch(", "Verdict"):
        assert part in text, part


def test_finished_runs_are_compared_and_ranks_belong_together(viewer, tmp_path: Path) -> None:
    record(tmp_path / "one.jsonl")
    record(tmp_path / "two.jsonl", threads=2)
    text = viewer([tmp_path / "one.jsonl", tmp_path / "two.jsonl"]).get("/run").text
    assert "2 runs" in text and "Runs compared" in text and text.count("<polyline") >= 6
    assert "<td>100</td><td>100</td>" in text.replace(",", "")  # batches
    for rank in range(2):
        mine = ps.from_arrays({"x": range(40)}).shard(rank, 2).batch(4).to_numpy()
        list(mine.write_snapshots(tmp_path / "many.jsonl"))
    assert [Path(one).name for one in run_paths(str(tmp_path / "many.jsonl"))] == [
        "many.rank0.jsonl",
        "many.rank1.jsonl",
    ]
    assert "many.rank1.jsonl: ended" in viewer(tmp_path / "many.jsonl").get("/run").text
    with pytest.raises(UsageError, match="several files of snapshots"):
        open_session([str(tmp_path / "one.jsonl"), str(tmp_path)])


def test_rates_are_differences_of_totals(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        for n in range(1000):
            facts = {"id": "a" if n < 500 else "b", "time": 1000 + n, "seconds": n % 500, "rows": 64 * (n % 500)}
            facts |= {"waited": 0.25 * (n % 500), "memory": {"process": 5_000_000}, "step": n, "running": True}
            file.write(json.dumps({"penstock_run": 1, **facts}) + "\n")
        file.write('{"penstock_run": 1, "step": 77')  # being written
    found = read_run(str(path), now=2005.0)
    assert (found.runs, found.step, found.unreadable, found.age) == (2, 999, 0, 6.0)
    assert found.running and not found.silent and read_run(str(path), now=3000.0).silent
    assert {round(point.rows, 6) for point in found.points} == {64.0}
    assert {round(point.waiting, 6) for point in found.points} == {0.25}
    assert len(found.points) <= 241 and found.points[-1].seconds == 999


HOSTILE = [
    {"verdict": "<script>alert(1)</script>", "verbs": {"<img src=x onerror=alert(2)>": 1e308, "b": "x", "c": None}},
    {"pipeline": ["<script>alert(3)</script>" * 1000, None, {"a": 1}], "host": ["<b>"], "id": {"x": 1}, "time": "late"},
    {"memory": [1], "storage": {"hit_rate": "<svg onload=alert(4)>"}, "step": -5, "rank": True, "world": 0},
    {
        "seconds": 10**400,
        "rows": -1,
        "waited": [],
        "batches": 1.5,
        "verbs": 7,
        "storage": {"requests": 1, "x" * 999: 2},
    },
]


def test_a_hostile_file_of_snapshots_is_shown_as_text(viewer, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(0)>.jsonl"
    for most in range(1, len(HOSTILE) + 1):
        lines = [json.dumps({"penstock_run": 1, "time": float(n), **facts}) for n, facts in enumerate(HOSTILE[:most])]
        junk = ["[" * 100_000, "\x00\xff", '{"penstock_run": 2}', '{"penstock_run": 1, "time": NaN, "rows": Infinity}']
        path.write_text("\n".join([lines[0], *junk, *lines[1:]]) + "\n", encoding="latin-1")
        answer = viewer(path).get("/run")
        assert answer.status == 200
        assert not re.search(r"<(script>|img|svg onload)", answer.text.replace('<script src="/static', ""))
        assert "nan" not in answer.text.lower() and len(answer.text) < 100_000


def test_tokens_are_counted_where_rows_have_one_length(viewer, tmp_path: Path) -> None:
    loader = ps.open_tokens(np.arange(5000)).windows(10).batch(5).to_numpy(threads=0)
    list(loader.write_snapshots(tmp_path / "run.jsonl"))
    assert read_run(str(tmp_path / "run.jsonl")).tokens == 499 // 5 * 5 * 10
    text = viewer(tmp_path / "run.jsonl").get("/run").text
    assert "tokens/s" in text and 'href="/data"' not in text
