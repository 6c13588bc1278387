"""Packing: the plan of 10 M documents at 4096 tokens, a random pack, and packed batches against plain windows.

Documents are log-normal (median 400 tokens, mean about 740, clipped at 32,768). Batches are 8 packs of 4096, windows 32
of 1024: the same 32,768 tokens, int64 torch tensors, from the same store in two shards. 0.38 of windows was asked for
when windows came at 0.75 of a bare gather's rate: the last target is their product, which faster windows do not move.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from bench.common import Again, judge, medians, rate, rounds, save, table
from bench.windows import bare
from penstock.core.columns import Ragged
from penstock.order.pack import PackPlan
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

DOCUMENTS, TOKENS, LENGTH = 10_000_000, 50_000_000, 4096


def lengths(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(6, 1.1, count)
    return np.clip(drawn, 1, 32_768).astype(np.int32)


def plan() -> tuple[float, float, float]:
    """Seconds to plan, peak MB besides the lengths, and fill ratio."""
    held = lengths(DOCUMENTS)
    PackPlan.build(held[:100_000], capacity=LENGTH, key=1)
    began = time.perf_counter()
    made = PackPlan.build(held, capacity=LENGTH, key=1)
    took = time.perf_counter() - began
    tracemalloc.start()
    PackPlan.build(held, capacity=LENGTH, key=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return took, most / 1e6, made.report().fill


def random_pack() -> float:
    """Milliseconds for one pack of a warm superblock, the median of 500."""
    made = PackPlan.build(lengths(1_000_000), capacity=LENGTH, key=1)
    made.pack([0])
    took = []
    for number in np.random.default_rng(1).integers(0, made.n_packs, 500).tolist():
        began = time.perf_counter()
        made.pack([number])
        took.append(time.perf_counter() - began)
    return float(np.median(took)) * 1e3


def write_store(folder: Path) -> np.ndarray:
    """Documents in two shards; returns their tokens as a mapped file."""
    drawn = lengths(TOKENS // 700)
    offsets = np.concatenate([[0], np.cumsum(drawn)])
    tokens = np.random.default_rng(0).integers(0, 50_257, int(offsets[-1])).astype(np.uint16)
    half = len(drawn) // 2
    shards = []
    for number, (a, b) in enumerate(((0, half), (half, len(drawn)))):
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=50_257) as shard:
            shard.add(Ragged(tokens[offsets[a] : offsets[b]], offsets[a : b + 1] - offsets[a]))
        shards.append(shard.finish())
    write_manifest(folder, shards)
    tokens.tofile(folder / "raw.bin")
    return np.memmap(folder / "raw.bin", np.uint16, "r")


def run(seconds: float = 1.0, count: int = 13) -> dict[str, Any]:
    took, megabytes, fill = plan()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_store(folder)
        windows = ps.open_store(folder).windows(1024).shuffle(seed=1).batch(32)
        packed = ps.open_store(folder).pack(LENGTH).shuffle(seed=1).batch(8)
        budget = ps.open_store(folder).shuffle(seed=1).batch_tokens(8 * LENGTH, multiple=64, overlong="truncate")
        for pipeline in (windows, packed, budget):  # pages verified once, as on any long run
            list(zip(range(3000), pipeline.to_torch(), strict=False))
        found = rounds(
            {
                "bare gather": lambda: rate(Again(lambda: bare(tokens)), seconds),
                "plain windows": lambda: rate(windows.to_torch(), seconds),
                "packed": lambda: rate(packed.to_torch(), seconds),
                "packed, 2 threads": lambda: rate(packed.to_torch(threads=2), seconds),
                "token budget, padded": lambda: rate(budget.to_torch(), seconds),
            },
            count,
        )
    million = {name: value * 8 * LENGTH / 1e6 for name, value in medians(found).items()}
    table(
        "Batches of 32,768 tokens, shuffled, int64 torch tensors",
        [(name, f"{value:,.0f}", f"{value / million['plain windows']:.2f}") for name, value in million.items()],
        ("loader", "Mtokens/s", "of windows"),
    )
    targets = [
        judge("seconds to plan 10 M documents", took, 2, most=True),
        judge("MB to plan them", megabytes, 200, most=True),
        judge("fill", fill, 0.995),
        judge("ms for a random pack", random_pack(), 1, most=True),
        judge("packed: of the plain-window rate", million["packed"] / million["plain windows"], 0.38),
        judge("packed: of a bare gather of windows", million["packed"] / million["bare gather"], 0.75 * 0.38),
    ]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"mtokens": million, "targets": targets}
    save("packing", facts)
    return facts


if __name__ == "__main__":
    run()
