"""`threads=None` beside 0 and 1, for batches that cost about as much as those at which threads begin.

python -m bench near_threshold

A batch computes for 0.05 to 2 ms in NumPy, and so does the trainer between two batches. The loaders take turns in one
process, after the batches in which `threads=None` decides; a figure is the least cost of a turn beside the least of
`threads=0`. A second loader without threads shows what the machine's other load does to such a figure.

Threads compute batches before they are taken: processor time is that of a unit of work, which is counted, and the time
is of turns in which about as many batches were computed as taken. The time must not be longer.
Where it is much shorter, because a thread does the work, handing batches over may cost processor time: see the table.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import penstock as ps
from bench.common import judge, save, table

COSTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0)  # milliseconds of a batch
LOADERS: dict[str, int | None] = {"0": 0, "0 again": 0, "1": 1, "None": None}
DECIDING, AHEAD, BATCHES, TURNS, MOST = 100, 100, 40, 6, 1.03
BALANCED = 0.1  # turns in which threads computed fewer batches by more than this part lived on those made before


class Work:
    """Sorts numbers for about this time, without the GIL."""

    def __init__(self, milliseconds: float) -> None:
        self.numbers = np.random.default_rng(0).random(1_000)
        self.calls = 0  # counted with the GIL held, and not exactly if threads take turns in the middle
        took = []
        for _ in range(200):
            began = time.perf_counter()
            np.sort(self.numbers)
            took.append(time.perf_counter() - began)
        self.repeats = max(1, round(milliseconds / 1e3 / min(took)))

    def __call__(self, record: Any = None) -> Any:
        for _ in range(self.repeats):
            np.sort(self.numbers)
        self.calls += 1
        return record


def measure(cost: float) -> dict[str, tuple[float, float]]:
    """Processor time and time of a step beside `threads=0`, by `threads`."""
    work = Work(cost)
    pipeline = ps.from_arrays({"x": np.arange(1_000_000)}).map(work, version="1").batch(1)
    runs = {name: iter(pipeline.to_numpy(threads=threads)) for name, threads in LOADERS.items()}
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in runs}
    for turn in range(TURNS + 1):
        for name, run in runs.items():
            for _ in islice(run, AHEAD if turn else DECIDING):  # threads have made some while others had their turn
                work()
            calls, cpu, wall = work.calls, time.process_time(), time.perf_counter()
            for _ in islice(run, BATCHES if turn else 0):
                work()
            if turn:
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                found[name].append((cpu / (work.calls - calls), wall, work.calls - calls))
    for run in runs.values():
        run.close()
    least = {name: _least(took) for name, took in found.items()}
    return {name: (cpu / least["0"][0], wall / least["0"][1]) for name, (cpu, wall) in least.items() if name != "0"}


def _least(turns: list[tuple[float, float, int]]) -> tuple[float, float]:
    """The least processor time of a unit of work, and the least time of a turn that computed what it took."""
    enough = max(calls for _, _, calls in turns) * (1 - BALANCED / 2)
    enough = min(enough, 2 * BATCHES * (1 - BALANCED / 2))
    return min(cpu for cpu, _, _ in turns), min(wall for _, wall, calls in turns if calls >= enough)


def run() -> dict[str, Any]:
    costs = {cost: measure(cost) for cost in COSTS}
    names = [name for name in LOADERS if name != "0"]
    rows = [(f"{c:g}", *(f"{value:.2f}" for name in names for value in costs[c][name])) for c in COSTS]
    table("a step beside threads=0", rows, ("ms", *(f"{name}, {kind}" for name in names for kind in ("cpu", "time"))))
    worst = max(costs, key=lambda cost: costs[cost]["None"][1])
    name = f"time with threads=None over threads=0, at worst ({worst:g} ms)"
    targets = [judge(name, costs[worst]["None"][1], MOST, most=True)]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"costs": {str(cost): found for cost, found in costs.items()}, "targets": targets}
    save("near_threshold", facts)
    return facts


if __name__ == "__main__":
    run()
