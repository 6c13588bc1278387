"""`make bench`: all benchmarks, or those named: `python -m bench windows start`; `--minutes 5` for each, 10 otherwise.

Each runs in a process of its own, which is ended with those that it started when its minutes are over: all of them take
at most as many times that long as there are benchmarks. One that fails or is ended is named at the end, after the
others have run, and the exit code is 1. A missed target is not a failure. `--here` runs them in this process, without a
limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import common

HERE = Path(__file__).parent
NOT = ("against", "common", "figures", "hot_paths", "mds_peer", "peers", "plots")
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_") and p.stem not in NOT)
MINUTES = 10.0


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the most that one may take (default: 10)")
    parser.add_argument("--here", action="store_true", help="run them in this process, without a limit")
    asked = parser.parse_args()
    wanted = asked.names or NAMES
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
    missed, broken, began = [], [], time.monotonic()
    if not asked.here:
        print(f"{len(wanted)} benchmarks, at most {len(wanted) * asked.minutes:g} minutes", flush=True)
    for name in wanted:
        facts, failure = _here(name) if asked.here else _in_child(name, 60 * asked.minutes)
        missed += [f"{name}: {target[0]} ({target[3]})" for target in facts.get("targets", []) if target[3] != "met"]
        broken += [f"{name}{failure}"] if failure is not None else []
    if not asked.here:
        print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")
    if not asked.here or len(wanted) > 1 or missed:
        print("\nall targets met" if not missed else "\nmissed: " + "; ".join(missed))
    if broken:
        print("broken: " + ", ".join(broken))
    return 1 if broken else 0


def _here(name: str) -> tuple[dict[str, Any], str | None]:
    """What a benchmark found, and how it failed, if it did."""
    try:
        module = importlib.import_module(f"bench.{name}")
        print(f"\n== {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        return module.run() or {}, None
    except (Exception, SystemExit):
        traceback.print_exc()
        return {}, ""


def _in_child(name: str, seconds: float) -> tuple[dict[str, Any], str | None]:
    """The same of one that runs in a process of its own; its result is read from the file that it saves."""
    path, began = common.RESULTS / f"{name}.json", time.time()
    failure = limited([sys.executable, "-m", "bench", "--here", name], seconds)
    if failure is not None:
        return {}, failure
    saved = path.exists() and path.stat().st_mtime >= began - 1
    return (json.loads(path.read_text()), None) if saved else ({}, " (saved no result)")


def limited(command: Sequence[str], seconds: float) -> str | None:
    """Runs a command; None if it succeeds. It is ended, with all processes of its session, after this time."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # then nothing is left behind
    process = subprocess.Popen(command, cwd=HERE.parent, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f" (ended after {seconds / 60:g} minutes)"
    else:
        return None if code == 0 else f" (exit code {code})"
    finally:
        _end(process)
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the session of a process."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
