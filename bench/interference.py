"""Steps per second of a trainer of small torch operations, beside the same trainer with batches in memory.

python -m bench interference
python bench/interference.py --only images --rounds 3

A step is about 14 ms of small matrix products: much Python, no large kernel. Batches are 8 JPEGs of 500 x 400, decoded
and cropped to 224, or 32 windows of 1,024 token ids. All contenders take turns in one process, after the batches in
which `threads=None` decides; a figure is the median over turns of steps a second beside the in-memory turn next to it.
What the decision itself costs (before and after the move) is printed too. `memory again` is the machine's noise.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import penstock as ps
from bench import images, windows
from bench.common import judge, save, table

STEP, STEPS, REFILL, LEAST = 14e-3, 30, 10, 0.97
LEAST_STEPS, MOST_STEPS = 300, 1500  # in which `threads=None` decides
OPTIONS: dict[str, dict[str, Any]] = {
    "threads=None": {},
    "threads=0": {"threads": 0},
    "threads=1": {"threads": 1},
    "threads=2": {"threads": 2},
    "isolate": {"isolate": True},
    "isolate, threads=1": {"isolate": True, "threads": 1},
}


class Trainer:
    """A step of small operations that takes about `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.x, self.w = torch.randn(16, 32), torch.randn(32, 32) / 6
        self.repeats = 50
        took = []
        for _ in range(20):
            began = time.perf_counter()
            self(None)
            took.append(time.perf_counter() - began)
        self.repeats = max(1, round(self.repeats * seconds / statistics.median(took)))

    def __call__(self, batch: Any) -> None:
        x = self.x
        for _ in range(self.repeats):
            x = torch.tanh(x @ self.w) + 0.1 * x


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def peers(dataset: Any, rows: int) -> dict[str, Any]:
    return {
        f"DataLoader, {n}": torch.utils.data.DataLoader(dataset, rows, shuffle=True, num_workers=n) for n in (0, 1, 2)
    }


def contenders(kind: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loaders of Penstock by name, and those of torch."""
    if kind == "images":
        images.make_folder(folder)
        files = sorted(folder.glob("*.jpg"))
        rows = ps.read_images(folder, labels=None).shuffle(seed=1).repeat()
        pipeline = rows.decode_images(
            images.SIDE, crop="random", dtype="float32", mean=images.MEAN, std=images.STD
        ).batch(8)
        others = peers(images.Pictures(files), 8)
    else:
        windows.write_store(folder)
        pipeline = ps.open_store(folder).windows(windows.LENGTH).shuffle(seed=1).repeat().batch(windows.BATCH)
        others = peers(windows.PerItem(folder / "raw.bin"), windows.BATCH)
    return {name: pipeline.to_torch(**options) for name, options in OPTIONS.items()}, others


def deciding(loader: Any, run: Iterator[Any], train: Trainer, alone: float) -> dict[str, Any]:
    """Steps until `threads=None` has decided, what they lost beside a trainer alone, and what it decided."""
    began, taken, known = time.perf_counter(), 0, loader._known
    for batch in islice(run, MOST_STEPS):
        train(batch)
        taken += 1
        if known.trials or known.failed or (taken >= LEAST_STEPS and not loader._stats.children):
            break
    lost = time.perf_counter() - began - taken * alone
    return {"steps": taken, "lost_seconds": round(lost, 3), "verdict": loader.stats()["verdict"]}


def timed(run: Iterator[Any], train: Trainer) -> float:
    for batch in islice(run, REFILL):
        train(batch)
    began = time.perf_counter()
    for batch in islice(run, STEPS):
        train(batch)
    return STEPS / (time.perf_counter() - began)


def measure(kind: str, count: int) -> dict[str, Any]:
    torch.set_num_threads(1)  # so small an operation gains nothing from a second, which would spin on the other core
    train = Trainer(STEP)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = contenders(kind, Path(folder))
        kept = list(islice(iter(ours["threads=0"]), 4))
        memory = itertools.cycle(kept)
        alone = 1 / statistics.median([timed(memory, train) for _ in range(3)])
        runs: dict[str, Iterator[Any]] = {name: endless(loader) for name, loader in ours.items()}
        decided = deciding(ours["threads=None"], runs["threads=None"], train, alone)
        print(f"  {kind}: step {1e3 * alone:.1f} ms; deciding {decided}", flush=True)
        runs |= {name: endless(loader) for name, loader in theirs.items()} | {"memory again": memory}
        found: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(count):
            for name, run in runs.items():
                base = timed(memory, train)
                found[name].append(timed(run, train) / base)
            print(f"  round {number + 1} of {count}", flush=True)
        verdict = ours["threads=None"].stats()["verdict"]
        for run in runs.values():
            if hasattr(run, "close"):
                run.close()
    rates = {name: statistics.median(values) for name, values in found.items()}
    return {"step_ms": 1e3 * alone, "rates": rates, "deciding": decided, "verdict": verdict}


def run(kinds: tuple[str, ...] = ("images", "tokens"), count: int = 5) -> dict[str, Any]:
    facts: dict[str, Any] = {kind: measure(kind, count) for kind in kinds}
    rows = [(name, *(f"{facts[k]['rates'][name]:.3f}" for k in kinds)) for name in facts[kinds[0]]["rates"]]
    table("steps/s beside batches in memory", rows, ("contender", *kinds))
    targets = []
    for kind in kinds:
        rates = facts[kind]["rates"]
        print(f"  {kind}: {facts[kind]['verdict']}")
        targets.append(judge(f"{kind}: threads=None over in memory", rates["threads=None"], LEAST))
        targets.append(judge(f"{kind}: threads=None over threads=0", rates["threads=None"] / rates["threads=0"], 0.99))
    table("targets", targets, ("what", "found", "wanted", ""))
    save("interference", facts | {"targets": targets})
    return facts | {"targets": targets}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=("images", "tokens"))
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    run((chosen.only,) if chosen.only else ("images", "tokens"), chosen.rounds)
