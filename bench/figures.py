"""Writes measured figures between the marks of README.md: `python -m bench.figures` after `make bench`.

Benchmarks that were not run keep their old figures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.common import RESULTS

README = Path(__file__).parent.parent / "README.md"
MARKS = re.compile(r"(<!-- bench:begin -->\n)(.*?)(<!-- bench:end -->)", re.DOTALL)
WINDOWS = "Windows of 1,024 tokens from a store of 50 M, batches of 32, shuffled, int64 torch tensors:"
PREPARE = "JSONL to tokens, 120 MB of Python source, byte-level BPE of 16,000:"
TARGETS = "Every target, as measured in the same run as its peers:"
HEADS = {
    WINDOWS: ("| loader | Mtokens/s | of one bare NumPy gather |", "|---|---:|---:|"),
    PREPARE: ("| what | MB/s |", "|---|---:|"),
    TARGETS: ("| bench | what | measured | target | |", "|---|---|---:|---:|---|"),
}


def result(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def rows_of(body: str) -> dict[str, list[str]]:
    """The rows of each table there is, by the head of its columns."""
    tables = [block.splitlines() for block in body.split("\n\n") if block.startswith("|")]
    return {table[0]: table[2:] for table in tables}


def lines(body: str) -> list[str]:
    old = rows_of(body)
    found = {title: old.get(head[0], []) for title, head in HEADS.items()}
    if windows := result("windows"):
        bare = windows["mtokens"]["bare gather"]
        found[WINDOWS] = [f"| {n} | {value:,.0f} | {value / bare:.2f} |" for n, value in windows["mtokens"].items()]
    if prepare := result("prepare"):
        found[PREPARE] = [f"| {name} | {value:.1f} |" for name, value in prepare["mb_per_second"].items()]
    measured = {path.stem: (result(path.stem) or {})["targets"] for path in RESULTS.glob("*.json")}
    kept = [row for row in found[TARGETS] if row.split("|")[1].strip() not in measured]
    new = ["| " + " | ".join([name, *map(str, row)]) + " |" for name, rows in measured.items() for row in rows]
    found[TARGETS] = sorted(kept + new, key=lambda row: row.split("|")[1])  # stable: rows of a bench stay in order
    return [line for title, rows in found.items() if rows for line in (title, "", *HEADS[title], *rows, "")]


def run() -> None:
    text = README.read_text()
    marked = MARKS.search(text)
    if marked is None:
        raise SystemExit(f"{README.name} has no marks for figures: <!-- bench:begin --> and <!-- bench:end -->")
    body = "\n".join(lines(marked[2]))
    README.write_text(MARKS.sub(lambda m: f"{m[1]}{body}{m[3]}", text))
    print(f"wrote {len(body)} characters into {README.name}")


if __name__ == "__main__":
    run()
