"""`make bench`: all benchmarks, or those named: `python -m bench windows start`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT = ("against", "common", "figures", "hot_paths", "mds_peer", "peers", "plots")
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_") and p.stem not in NOT)


def main() -> int:
    wanted = sys.argv[1:] or NAMES
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
    missed = []
    for name in wanted:
        print(f"\n== {name}: {(importlib.import_module(f'bench.{name}').__doc__ or '').splitlines()[0]}", flush=True)
        facts = importlib.import_module(f"bench.{name}").run() or {}
        missed += [f"{name}: {t[0]}" for t in facts.get("targets", []) if t[3] != "met"]
    print("\nall targets met" if not missed else "\nmissed: " + "; ".join(missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
