"""`make bench`: all benchmarks, or those named: `python -m bench windows start`.

One that fails is named at the end, after the others have run, and the exit code is 1. A missed target is not a failure.
"""

from __future__ import annotations

import importlib
import sys
import traceback
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
    missed, broken = [], []
    for name in wanted:
        try:
            module = importlib.import_module(f"bench.{name}")
            print(f"\n== {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
            facts = module.run() or {}
        except (Exception, SystemExit):
            traceback.print_exc()
            broken.append(name)
            continue
        missed += [f"{name}: {target[0]} ({target[3]})" for target in facts.get("targets", []) if target[3] != "met"]
    print("\nall targets met" if not missed else "\nmissed: " + "; ".join(missed))
    if broken:
        print("broken: " + ", ".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
