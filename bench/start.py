"""Start-up: import time, first batch from a store of 1 B tokens, restore, memory of a pipeline of 10^12 samples."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import judge, save, table

TOKENS = 1_000_000_000


PIPELINE = "import penstock as ps; ps.open_tokens(range(99)).windows(4).shuffle(seed=7).batch(4)"


def import_seconds(codes: Sequence[str]) -> list[float]:
    """Processor seconds that each code takes in a fresh interpreter with bytecode, the least of 9; they take turns."""
    # Of the main thread: those of BLAS, which NumPy starts, spin as long as the process lives.
    timed = "import time; t = time.thread_time(); {}; print(time.thread_time() - t)"
    found: list[list[float]] = [[] for _ in codes]
    with tempfile.TemporaryDirectory() as bytecode:
        settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        settings["PYTHONPYCACHEPREFIX"] = bytecode
        for turn in range(10):
            for code, times in zip(codes, found, strict=True):
                command = [sys.executable, "-c", timed.format(code)]
                out = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
                if turn:  # the first one writes the bytecode
                    times.append(float(out.stdout))
    return [min(times) for times in found]


def write_store(folder: Path) -> None:
    from penstock.core.columns import Ragged
    from penstock.store.manifest import write_manifest
    from penstock.store.writer import ShardWriter

    piece = np.random.default_rng(0).integers(0, 50_257, 10_000_000).astype(np.uint16)
    offsets = np.arange(0, len(piece) + 1, 1000)
    shards = []
    for number in range(4):
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=50_257) as shard:
            for _ in range(TOKENS // len(piece) // 4):
                shard.add(Ragged(piece, offsets))
        shards.append(shard.finish())
    write_manifest(folder, shards)


FIRST = """
import time, json, sys
import numpy, torch, penstock as ps
import penstock.read, penstock.outputs.torch, penstock.sources.tokens
times = []
for turn in range(int(sys.argv[2])):
    t = time.perf_counter()
    loader = ps.open_store(sys.argv[1]).windows(1024).shuffle(seed=1).batch(32).to_torch()
    next(iter(loader))
    times.append(time.perf_counter() - t)
print(json.dumps(times))
"""

RESTORE = """
import time, json, sys
import numpy, penstock as ps
class Virtual:
    def __len__(self): return 10**12
    def read(self, indices): return {"x": indices}
    def fingerprint(self): return "virtual"
    def describe(self): return {"kind": "virtual"}
    def locate(self, index): return {"row": index}
def make(): return ps.Pipeline(Virtual()).shuffle(seed=1).batch(32).to_numpy(threads=0)
make().batch_at(0)
def restore(step):
    best = []
    for _ in range(31):
        state = make().state_dict() | {"step": step, "n": 32 * step}
        del state["check"]  # as earlier versions wrote it: a changed state is refused
        t = time.perf_counter()
        loader = make(); loader.load_state_dict(state); next(iter(loader))
        best.append(time.perf_counter() - t)
    return sorted(best)[15]
import re
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
facts = {"at_10": restore(10), "at_1e6": restore(10**6), "state": len(json.dumps(make().state_dict()))}
loader = make()
run = iter(loader)
for _ in range(3000): next(run)
facts["memory_mb"] = peak() - before
print(json.dumps(facts))
"""


def forget(folder: Path) -> None:
    """Asks the operating system to evict the shards from the page cache."""
    for path in folder.glob("*.tokens"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def child(code: str, *arguments: str) -> Any:
    out = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def run() -> dict[str, Any]:
    ours, pipeline, numpy = import_seconds(["import penstock; penstock.open_store", PIPELINE, "import numpy"])
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        write_store(Path(name))
        print(f"  wrote {TOKENS:,} tokens in {time.perf_counter() - began:.1f} s")
        first = child(FIRST, name, "7")
        cold = []
        for _ in range(5):
            forget(Path(name))
            cold += child(FIRST, name, "1")
    facts = child(RESTORE)
    targets = [
        judge(
            "import penstock; penstock.open_store, CPU ms more than numpy's own",
            1e3 * (ours - numpy),
            60,
            most=True,
        ),
        judge(
            "import and a pipeline of windows, CPU ms more than numpy's own",
            1e3 * (pipeline - numpy),
            60,
            most=True,
        ),
        judge("first batch of 1 B tokens, ms, first time in a process", 1e3 * first[0], 100, most=True),
        judge("first batch of 1 B tokens, ms, median of 7", 1e3 * statistics.median(first), 100, most=True),
        judge("first batch of 1 B tokens, ms, files not in memory", 1e3 * statistics.median(cold), 100, most=True),
        judge("restore at step 10^6, times that at step 10", facts["at_1e6"] / facts["at_10"], 1.5, most=True),
        judge("state, bytes", facts["state"], 1024, most=True),
        judge("10^12 virtual samples, MB more", facts["memory_mb"], 50, most=True),
    ]
    imports = [1e3 * ours, 1e3 * pipeline, 1e3 * numpy]
    table("Starting and restoring", targets, ("what", "measured", "target", ""))
    print(f"  import: penstock {1e3 * ours:.0f} ms, numpy {1e3 * numpy:.0f} ms; restore: {1e3 * facts['at_10']:.2f} ms")
    save(
        "start",
        {
            "targets": targets,
            "import_ms": imports,
            "first_ms": first,
            "cold_ms": cold,
            **facts,
        },
    )
    return {"targets": targets}


if __name__ == "__main__":
    run()
