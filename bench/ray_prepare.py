"""`prepare` on a Ray cluster of one node with two processors, against `prepare` in one process, on the same corpus.

The start of the cluster and of its worker processes (each loads the tokenizer) is measured apart, by a first small job.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.common import judge, medians, rounds, save, table
from bench.prepare import write_corpus, write_tokenizer

CORPUS_BYTES = 120_000_000
COPIES = 4  # enough work that a worker's first second does not decide
GROUP_BYTES = 16 << 20
CPUS = 2


def rate(folder: Path, tokenizer: Path, size: int, **more: Any) -> float:
    from penstock.preparation.run import prepare
    from penstock.sources.jsonl import JsonlFiles

    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        made = prepare(JsonlFiles(str(folder)), str(tokenizer), out, group_bytes=GROUP_BYTES, **more)
        took = time.perf_counter() - began
        assert made.shards > CPUS
        return size / 1e6 / took


def run(count: int = 3, size: int = CORPUS_BYTES) -> dict[str, Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, tokenizer = folder / "corpus.jsonl", folder / "tokenizer.json"
        size = write_corpus(corpus, size)
        write_tokenizer(tokenizer, corpus)
        small, large = folder / "small", folder / "large"
        for parent, copies in ((small, 1), (large, COPIES)):
            parent.mkdir()
            for number in range(copies):
                os.link(corpus, parent / f"{number}.jsonl")
        total = COPIES * size
        began = time.perf_counter()
        ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="error")
        started = time.perf_counter() - began
        try:
            contenders = {
                "one process, two threads": lambda: rate(large, tokenizer, total, threads=CPUS),
                "Ray, one node of two processors": lambda: rate(large, tokenizer, total, cluster="ray"),
            }
            began = time.perf_counter()
            rate(small, tokenizer, size, cluster="ray")  # the workers start and load the tokenizer
            warm = time.perf_counter() - began
            found = rounds(contenders, count)
        finally:
            ray.shutdown()
    rates = medians(found)
    here, there = rates.values()
    table("JSONL to a token store", [(n, f"{v:.1f}") for n, v in rates.items()], ("what", "MB/s"))
    start = {"start of the cluster": started, "first job, beyond its work": max(0.0, warm - size / 1e6 / there)}
    table("Start", [(n, f"{v:.1f}") for n, v in start.items()], ("what", "seconds"))
    targets = [judge("of the local rate, after the start", there / here, 0.85)]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"mb_per_second": rates, "start_seconds": start, "targets": targets}
    save("ray_prepare", facts)
    return facts


if __name__ == "__main__":
    run()
