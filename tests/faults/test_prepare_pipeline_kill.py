"""`prepare` over a pipeline that drops records, killed with SIGKILL after each shard: the same bytes and ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import penstock as ps

SCRIPT = """
import sys, time
import numpy as np
import penstock as ps

def fails(record, rng):
    time.sleep(0.0003)  # slow enough to be met in the middle
    if record["n"] % 11 == 4:
        raise ValueError("eleven")
    return {"text": f"{record['text']} {rng.integers(10**9)}"}

texts = [f"record {i} " + "word " * (i % 50) for i in range(8000)]
pipeline = (
    ps.from_arrays({"n": np.arange(len(texts)), "text": texts})
    .shuffle(seed=3)
    .filter(lambda c: c["n"] % 3 > 0, batched=True)
    .map(fails)
    .skip_errors()
)
made = ps.prepare(pipeline, "bytes", sys.argv[1], shard_tokens=20_000, show_progress=False)
print(made.documents, made.skipped, made.resumed)
"""
DOCUMENTS = sum(1 for n in range(8000) if n % 3 and n % 11 != 4)
SKIPPED = sum(1 for n in range(8000) if n % 3 and n % 11 == 4)


def start(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_killed_after_each_shard_gives_the_same_bytes(tmp_path: Path) -> None:
    child = start(tmp_path / "clean")
    said, error = child.communicate(timeout=120)
    assert child.returncode == 0, error
    assert said.split() == [str(DOCUMENTS), str(SKIPPED), "False"]
    kills = 0
    for shards in (1, 2):
        child = start(tmp_path / "cut")
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if len(list((tmp_path / "cut").glob("done/*/*.json"))) >= shards:
                os.kill(child.pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        child.communicate(timeout=60)
        kills += child.returncode == -signal.SIGKILL
    assert kills
    child = start(tmp_path / "cut")
    said, error = child.communicate(timeout=120)
    assert child.returncode == 0, error
    assert said.split() == [str(DOCUMENTS), str(SKIPPED), "True"]
    assert contents(tmp_path / "cut") == contents(tmp_path / "clean")
    assert len(ps.open_store(tmp_path / "cut").rows()) == DOCUMENTS
