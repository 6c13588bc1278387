"""What snapshots cost a trainer: processor time of the measured calls of a batch, and of a line a second.

The difference is far below the noise of a training run, so its parts are measured: batches are taken as quickly as
possible with and without measured verbs, and lines are written as quickly as possible. The share is that of a trainer
whose step takes 5 ms, which is short. The target is under 0.5% of its time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from bench.common import judge, save, table
from penstock.engine.run_file import RunFile

STEP_SECONDS = 0.005


def pipelines() -> dict[str, Callable[[], ps.Pipeline]]:
    """A path of a few microseconds for a batch, and one with a Python function for each row."""
    tokens = np.arange(1 << 20)
    return {
        "windows": lambda: ps.open_tokens(tokens).windows(128).shuffle(seed=7).batch(16),
        "map and filter": lambda: (
            ps.from_arrays({"x": range(1 << 16)})
            .map(dict)
            .filter(lambda row: row["x"] % 5 != 0)
            .shuffle(seed=7)
            .batch(16)
        ),
    }


def _batch_seconds(pipeline: ps.Pipeline, path: str | None, batches: int) -> float:
    """Processor seconds of one batch, in the thread that takes it."""
    loader = pipeline.to_numpy(threads=0)
    if path is not None:
        loader.write_snapshots(path, seconds=1000)
    run = iter(loader)
    next(run)
    began = time.thread_time()
    for _ in islice(run, batches):
        pass
    spent = time.thread_time() - began
    run.close()
    return spent / batches


def _line_seconds(pipeline: ps.Pipeline, path: str, lines: int = 200) -> float:
    """Processor seconds of one line, with thinning."""
    loader = pipeline.to_numpy(threads=0).write_snapshots(path)
    list(islice(loader, 30))
    file = RunFile(path)
    began = time.thread_time()
    for _ in range(lines):
        file.append(loader._snapshot())
    spent = time.thread_time() - began
    file.close()
    return spent / lines


def run(batches: int = 2000, count: int = 7) -> dict[str, Any]:
    """Measures both in turn, and prints the least of each: other load only lengthens it."""
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, make in pipelines().items():
            path = str(Path(folder) / f"{name}.jsonl")
            plain, more = [], []
            for _ in range(count):
                plain.append(_batch_seconds(make(), None, batches))
                more.append(_batch_seconds(make(), path, batches))
            line = _line_seconds(make(), path)
            extra = max(0.0, min(more) - min(plain))
            share = extra / STEP_SECONDS + line
            worst = max(worst, share)
            rows.append(
                (name, f"{min(plain) * 1e6:.1f} us", f"{extra * 1e6:+.2f} us", f"{line * 1e6:.0f} us", f"{share:.3%}")
            )
    head = ("pipeline", "a batch", "measured", "a line", f"of a trainer with steps of {STEP_SECONDS * 1e3:g} ms")
    table("processor time", rows, head)
    facts = {"rows": rows, "targets": [judge("snapshots, share of the trainer's time", worst, 0.005, most=True)]}
    save("snapshots", facts)
    return facts


if __name__ == "__main__":
    run()
