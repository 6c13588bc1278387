"""Mixtures: the cost of a batch over the number of sources, of `batch_at`, and of a change of weights over the changes.

python -m bench mixtures
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import curve, judge, save, table

SOURCES, CHANGES = (2, 20, 200, 2000), (1, 4, 16)


def mixture(sources: int) -> Any:
    import penstock as ps

    parts = [ps.from_arrays({"x": np.arange(1000) + 1000 * i}) for i in range(sources)]
    return ps.mix(parts, weights=[1.0 + i % 7 for i in range(sources)], seed=1).batch(32)


def batch(pipeline: Any, count: int = 1500) -> float:
    """Processor microseconds a batch."""
    run = iter(pipeline.to_numpy(threads=0))
    for _ in itertools.islice(run, 400):
        pass
    began = time.process_time()
    for _ in itertools.islice(run, count):
        pass
    return 1e6 * (time.process_time() - began) / count


def after_changes(pipeline: Any, sources: int, changes: int) -> float:
    """Processor milliseconds of the batch after the last of some changes of weights."""
    loader = pipeline.to_numpy(threads=0)
    for change in range(changes):
        for _ in itertools.islice(iter(loader), 5):
            pass
        loader.set_weights([1.0 + (i + change) % 5 for i in range(sources)])
    run = iter(loader)
    began = time.process_time()
    next(run)
    return 1e3 * (time.process_time() - began)


def at(pipeline: Any, step: int) -> float:
    loader = pipeline.to_numpy(threads=0)
    began = time.process_time()
    loader.batch_at(step)
    return 1e3 * (time.process_time() - began)


def run() -> dict[str, Any]:
    made = {n: mixture(n) for n in SOURCES}
    batches = {n: min(batch(p) for _ in range(3)) for n, p in made.items()}
    most = SOURCES[-1]
    changes = {k: min(after_changes(made[most], most, k) for _ in range(2)) for k in CHANGES}
    curves = [
        curve("a batch of 32, over sources", "us", batches, "at most 100 us at 2,000"),
        curve("batch_at(10**7), over sources", "ms", {n: at(p, 10**7) for n, p in made.items()}),
        curve(f"the batch after set_weights, over changes ({most:,} sources)", "ms", changes, "flat"),
    ]
    targets = [
        judge(f"us a batch of 32 at {most:,} sources", batches[most], 100, most=True),
        judge(
            "the batch after 16 changes over that after 1", changes[CHANGES[-1]] / changes[CHANGES[0]], 1.5, most=True
        ),
    ]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"curves": curves, "targets": targets}
    save("mixtures", facts)
    return facts


if __name__ == "__main__":
    run()
