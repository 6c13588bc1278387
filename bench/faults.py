"""The same faults against Penstock and four other loaders: who answers, with what, and when.

    python -m bench faults
    python -m bench.faults penstock "dead worker"

Each case is a process of its own with 2 worker processes and at most `LIMIT` seconds: dead worker (killed by SIGKILL),
stuck worker (a timeout of 3 seconds where the loader has one), parent killed (are the workers gone?), elastic resume
(a state of 2 workers, read by 3), changed data (between a state and its use), a /dev/shm of 1 MB, a file that is
truncated while it is read. The others are torch's DataLoader, StatefulDataLoader, Grain and MosaicML Streaming, each in
the environment that has it (`bench.peers`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench._fault_cases import ROWS
from bench.common import judge, save, table
from bench.peers import python_with

LIMIT = 40.0
LOADERS = {"penstock": "penstock", "torch DataLoader": "torch", "StatefulDataLoader": "torchdata", "grain": "grain",
           "MosaicML Streaming": "streaming"}  # fmt: skip
FAULTS = ("dead worker", "stuck worker", "parent killed", "elastic resume", "changed data", "tiny /dev/shm",
          "truncated file")  # fmt: skip
SMALL_SHM = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]
# What counts as an answer: an error that names the fault, the right rows, or a clean end.
GOOD = {
    "dead worker": ("WorkerDied", "RuntimeError"),
    "stuck worker": ("WorkerDied", "RuntimeError"),
    "parent killed": ("no process left",),
    "elastic resume": ("the same rows",),
    "changed data": ("UsageError", "DataError", "StateError", "StoreError", "ResumeError"),
    "tiny /dev/shm": (f"{ROWS // 8} batches", "StorageError", "LimitError"),
    "truncated file": ("StoreError", "DataError", "StorageError"),
}


def case(python: str, loader: str, fault: str, folder: Path) -> tuple[str, float]:
    """What the training loop saw, and after how many seconds."""
    command = [python, "-m", "bench._fault_cases", loader, fault, str(folder)]
    if fault == "tiny /dev/shm":
        if subprocess.run([*SMALL_SHM, "true"], check=False, capture_output=True).returncode:
            return "not tried: this machine allows no mounts", 0.0
        command = [*SMALL_SHM, *command]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        if fault == "parent killed":
            return killed(process), time.perf_counter() - began
        out, _ = process.communicate(timeout=LIMIT)
        took = time.perf_counter() - began
        lines = [line for line in out.splitlines() if line.startswith('"')]
        return (json.loads(lines[-1]) if lines else f"the training process died: {process.returncode}"), took
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT:.0f} s", LIMIT
    finally:
        end_session(process.pid)
        process.wait()


def killed(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if process.stdout.readline().strip() != '"ready"':
        return "did not start"
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while (left := session(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    return f"{len(left)} processes left" if left else "no process left"


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def end_session(leader: int) -> None:
    for pid in session(leader):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def run(loaders: list[str] | None = None, faults: list[str] | None = None) -> dict[str, Any]:
    names = {name: python for name in loaders or LOADERS if (python := python_with(LOADERS[name], name))}
    found: dict[str, dict[str, tuple[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for fault in faults or FAULTS:
            found[fault] = {}
            for name, python in names.items():
                found[fault][name] = case(python, name, fault, Path(folder))
                print(f"  {fault}: {name}: {found[fault][name][0]} ({found[fault][name][1]:.1f} s)", flush=True)
    rows = [(fault, name, said, f"{took:.1f}") for fault, by in found.items() for name, (said, took) in by.items()]
    table("faults", rows, ("fault", "loader", "what the training loop saw", "seconds since its process began"))
    if loaders or faults:
        return {}  # a part of it is not a result
    tried = {fault: by["penstock"][0] for fault, by in found.items()}
    tried = {fault: said for fault, said in tried.items() if not said.startswith("not tried")}
    met = [fault for fault, said in tried.items() if said.startswith(GOOD[fault])]
    targets = [judge(f"faults answered, of {len(tried)}", len(met), len(tried))]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"faults": {fault: dict(by) for fault, by in found.items()}, "targets": targets}
    save("faults", facts)
    return facts


if __name__ == "__main__":
    run(sys.argv[1:2] or None, sys.argv[2:] or None)
