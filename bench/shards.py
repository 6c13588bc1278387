"""Random windows of a store of 10,000 shards beside one of 4, in a process that may open 1,024 files.

python -m bench shards
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import curve, judge, save, table

COUNTS, TOKENS, LENGTH, ROWS, FILES = (4, 1_000, 10_000), 120_000_000, 128, 32, 1024


def write_store(folder: Path, shards: int) -> None:
    """Stores of equal size: one shard is written and copied, so that each has its own pages in memory."""
    import shutil
    from dataclasses import replace

    from penstock.core.columns import Ragged
    from penstock.store.manifest import write_manifest
    from penstock.store.writer import ShardWriter

    folder.mkdir()
    each = TOKENS // shards
    tokens = np.random.default_rng(0).integers(0, 50_000, each).astype(np.uint16)
    first = folder / "00000.tokens"
    with ShardWriter(first, vocab_size=50_000) as shard:
        shard.add(Ragged(tokens, np.linspace(0, each, 5).astype(np.int64)))
    info = shard.finish()
    for number in range(1, shards):
        shutil.copyfile(first, folder / f"{number:05d}.tokens")
    write_manifest(folder, [replace(info, name=f"{number:05d}.tokens") for number in range(shards)])


def measure(folder: str) -> dict[str, float]:
    """Runs in a process of its own, with a limit on open files: processor microseconds a batch, least of several."""
    import resource
    import time

    import penstock as ps

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    began = time.process_time()
    loader = ps.open_store(folder).windows(LENGTH).shuffle(seed=1).batch(ROWS).to_numpy(threads=0)
    opened = time.process_time() - began
    run = iter(loader)
    for _ in islice(run, 2500):  # nearly every shard has been opened and verified once
        pass
    found = []
    for _ in range(5):
        began = time.process_time()
        for _ in islice(run, 400):
            pass
        found.append(1e6 * (time.process_time() - began) / 400)
    return {"batch": min(found), "open": 1e3 * opened}


def run() -> dict[str, Any]:
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for count in COUNTS:
            write_store(Path(name) / str(count), count)
        for count in COUNTS:
            call = [sys.executable, "-P", __file__, "--measure", str(Path(name) / str(count))]
            found[count] = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    few, many = COUNTS[0], COUNTS[-1]
    batches = {count: cost["batch"] for count, cost in found.items()}
    curves = [
        curve(f"a batch of {ROWS} windows, over shards, {FILES:,} files", "us", batches, "1.5 of few"),
        curve("opening a store, over shards", "ms", {count: cost["open"] for count, cost in found.items()}),
    ]
    targets = [judge(f"a batch at {many:,} shards over one at {few}", batches[many] / batches[few], 1.5, most=True)]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"curves": curves, "targets": targets}
    save("shards", facts)
    return facts


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        run()
