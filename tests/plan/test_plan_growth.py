"""What a plan costs as the data grows, in calls of functions: the same on every machine, unlike seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def calls(work: Callable[[], Any]) -> int:
    """Calls of Python and C functions that this takes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def parquet(folder: Path, groups: int) -> Path:
    """Files with 500 row groups each, of one row and two columns."""
    folder.mkdir()
    for file in range(groups // 500):
        table = pa.table({"text": [f"row {i}" for i in range(500)], "n": range(500)})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=1)
    return folder


@pytest.mark.parametrize("lanes", [None, 8])
def test_a_plan_takes_few_calls_per_row_group(tmp_path: Path, lanes: int | None) -> None:
    def cost(groups: int) -> int:
        rows = ps.read_parquet(parquet(tmp_path / str(groups), groups))
        order = rows.shuffle(seed=7, lanes=lanes) if lanes else rows.shuffle(seed=7)
        return calls(lambda: order.plan(batch=groups // 5, world=8, hosts=4))

    small, large = cost(1000), cost(4000)
    assert large < 4.4 * small  # no more than in proportion
    assert (large - small) / 3000 < 400  # 1,550 if each column chunk is read six times


@pytest.mark.parametrize("lanes", [None, 8])
def test_a_plan_of_records_requested_ahead_takes_calls_per_group_of_steps(tmp_path: Path, lanes: int | None) -> None:
    def cost(steps: int) -> int:
        (path := tmp_path / f"{steps}.jsonl").write_text('{"n": 1}\n' * (32 * steps))
        rows = ps.read_jsonl(path)
        order = rows.shuffle(seed=7, lanes=lanes, block=16, window=2) if lanes else rows.shuffle(seed=7)
        return calls(lambda: order.plan(batch=32, world=16, hosts=4))

    small, large = cost(100), cost(400)
    assert large < 2 * small  # 3.6 times if the order of each step of each rank is computed by itself
