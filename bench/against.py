"""Compares the hot paths of two source trees: one process for each, taking turns, so that load affects both alike.

    git worktree add /tmp/before main~20
    python -m bench.against /tmp/before                      # this tree against that one, all paths
    python -m bench.against /tmp/before windows packed --rounds 15

A ratio is the old cost over the new one: below 1 the new tree is slower. `cpu` is processor time of all threads, which
says more on a loaded machine. `of plain` is the new cost in units of the plain implementation in `bench/hot_paths.py`,
measured in the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common import table

HERE = Path(__file__).resolve().parents[1]


def serve(folder: Path) -> None:
    """Measures the paths that are named on standard input, one per line; `-name` measures the plain implementation."""
    from bench.hot_paths import HOT_PATHS, measure, one_thread

    one_thread()
    built: dict[str, Any] = {}
    for line in sys.stdin:
        name, seconds = line.rstrip("\n").rsplit(" ", 1)
        path = HOT_PATHS[name.removeprefix("-")]
        if name not in built:
            built[name] = (path.plain if name[0] == "-" else path.ours)(folder)
        sys.stdout.write(json.dumps(measure(built[name], float(seconds), path.least)) + "\n")
        sys.stdout.flush()


class Tree:
    """A process that measures one source tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        paths = os.pathsep.join([str(root / "src"), str(HERE)])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.against", "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def cost(self, name: str, seconds: float) -> tuple[float, float]:
        if self.process.stdin is None or self.process.stdout is None:
            raise SystemExit("the measuring process has no pipes")
        self.process.stdin.write(f"{name} {seconds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the measuring process ended in {name!r}: see its error above")
        cpu, wall = json.loads(line)
        return cpu, wall

    def close(self) -> None:
        self.process.communicate()


def compare(before: Tree, after: Tree, names: list[str], rounds: int, seconds: float) -> Iterator[tuple[str, ...]]:
    """One row per path."""
    for name in names:
        found: list[list[tuple[float, float]]] = []
        for turn in range(rounds + 1):
            order = [(before, name), (after, name), (after, f"-{name}")]
            costs = {
                place: order[place][0].cost(order[place][1], seconds) for place in ((0, 1, 2), (1, 0, 2))[turn & 1]
            }
            found.append([costs[place] for place in range(3)])
        old, new, plain = zip(*found[1:], strict=True)  # the first round warms up
        cpu = statistics.median(a[0] / b[0] for a, b in zip(old, new, strict=True))
        wall = statistics.median(a[1] for a in old) / statistics.median(b[1] for b in new)
        unit = statistics.median(b[0] / c[0] for b, c in zip(new, plain, strict=True))
        micro = [f"{1e6 * statistics.median(one[0] for one in some):,.1f}" for some in (old, new)]
        row = (name, *micro, f"{cpu:.2f}", f"{wall:.2f}", f"{unit:.2f}")
        print("  " + "  ".join(row), flush=True)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the root of the other source tree")
    parser.add_argument("names", nargs="*", help="paths of bench/hot_paths.py; all by default")
    parser.add_argument("--after", type=Path, default=HERE, help="the tree to judge; this one by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.25, help="processor time of one measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.before)
        return 0
    from bench.hot_paths import HOT_PATHS, write_data

    if unknown := sorted(set(asked.names) - set(HOT_PATHS)):
        parser.error(f"no such path: {', '.join(unknown)}; there are {', '.join(HOT_PATHS)}")
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name))
        trees = Tree(asked.before.resolve(), Path(name)), Tree(asked.after.resolve(), Path(name))
        try:
            rows = list(compare(*trees, asked.names or list(HOT_PATHS), asked.rounds, asked.seconds))
        finally:
            for tree in trees:
                tree.close()
    head = ("path", "before, cpu us", "after, cpu us", "cpu ratio", "wall ratio", "cpu of plain")
    table(f"{asked.after} against {asked.before}", rows, head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
