"""Writes measured figures into the docs and draws them: `python -m bench.figures` after `make bench`.

`docs/explanation/measured.md` has all figures, README.md a few of them and the chart of windows. Benchmarks that were
not run keep their old figures. Results of different machines are not mixed, unless `--mixed` says so: the table then
names the machine of each. Curves (`curves` of a result) become `docs/explanation/growth.svg`, each with its exponent.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench import plots
from bench.common import RESULTS

README = Path(__file__).parent.parent / "README.md"
PAGE = README.parent / "docs" / "explanation" / "measured.md"
CURVES = README.parent / "docs" / "explanation" / "growth.svg"
CHART = README.parent / "docs" / "explanation" / "windows.svg"
MARKS = re.compile(r"(<!-- bench:begin -->\n)(.*?)(<!-- bench:end -->)", re.DOTALL)
WINDOWS = "Windows of 1,024 tokens from a store of 50 M, batches of 32, shuffled, int64 torch tensors:"
PREPARE = "JSONL to tokens, 120 MB of Python source, byte-level BPE of 16,000:"
TARGETS = "Every target, as measured in the same run as its peers:"
HEADS = {
    WINDOWS: ("| loader | Mtokens/s | of one bare NumPy gather |", "|---|---:|---:|"),
    PREPARE: ("| what | MB/s |", "|---|---:|"),
    TARGETS: ("| bench | what | measured | target | |", "|---|---|---:|---:|---|"),
}

SHORT = {  # a few targets, in words for someone who has read nothing else
    ("windows", "times the best of torch and Grain"): "token windows: times the faster of torch's DataLoader and Grain",
    ("images", "float32 / torch DataLoader"): "JPEGs to 224 pixels: times torch's DataLoader",
    ("images", "float32 / faster of tf.data and DALI"): "the same: times the faster of tf.data and DALI (CPU)",
    ("audio", "times lhotse"): "WAV files, resampled and padded: times lhotse",
    ("prepare", "times HF datasets.map"): "JSON lines to tokens: times HF `datasets.map`",
    ("start", "first batch of 1 B tokens, ms, median of 7"): "first batch of a store of 1 B tokens, ms",
    ("start", "state, bytes"): "state for a checkpoint, bytes",
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


def short(rows: list[str]) -> list[str]:
    """The figures of the README, from the rows of all targets; a target that was missed is counted."""
    found = {tuple(cells[:2]): cells for row in rows for cells in [[c.strip() for c in row.strip("|").split("|")]]}
    chosen = [(say, found[key]) for key, say in SHORT.items() if key in found]
    missed = sum(cells[-1] == "MISSED" for cells in found.values())
    table = [f"| {say} | {cells[2]} | {cells[3]} | {cells[4]} |" for say, cells in chosen]
    said = f"Of {len(found)} targets {len(found) - missed} were met and {missed} missed."
    return ["| what | measured | target | |", "|---|---:|---:|---|", *table, "", said, ""]


def machines() -> dict[str, list[str]]:
    """The benches of each machine that results are from."""
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        facts = (result(path.stem) or {}).get("machine")
        name = f"{facts['cpus']} x {facts['cpu']} ({facts['id']})" if facts else "an unknown machine"
        found.setdefault(name, []).append(path.stem)
    return found


def run(mixed: bool = False) -> None:
    found = machines()
    if len(found) > 1:
        said = "; ".join(f"{', '.join(names)} on {machine}" for machine, names in found.items())
        if not mixed:
            raise SystemExit(
                f"results of {len(found)} machines are not mixed: {said}\nrun them again here, or: --mixed"
            )
        print(f"results of {len(found)} machines: {said}")
    curves = [c for path in sorted(RESULTS.glob("*.json")) for c in (result(path.stem) or {}).get("curves", [])]
    if curves:
        CURVES.write_text(plots.curves(curves, "; ".join(found)))
        print(f"drew {len(curves)} curves into {CURVES.name}")
    body = lines(_marked(PAGE)[2])
    tables = rows_of("\n".join(body))
    _write(PAGE, body)
    _write(README, short(tables.get(HEADS[TARGETS][0], [])))
    if windows := tables.get(HEADS[WINDOWS][0]):
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in windows]
        rates = [(name, float(rate.replace(",", ""))) for name, rate, _ in cells]
        CHART.write_text(plots.bars(rates, "Million tokens per second", "penstock"))


def _marked(page: Path) -> re.Match[str]:
    found = MARKS.search(page.read_text())
    if found is None:
        raise SystemExit(f"{page.name} has no marks for figures: <!-- bench:begin --> and <!-- bench:end -->")
    return found


def _write(page: Path, body: list[str]) -> None:
    text = "\n".join(body)
    page.write_text(MARKS.sub(lambda m: f"{m[1]}{text}{m[3]}", page.read_text()))
    print(f"wrote {len(text)} characters into {page.name}")


if __name__ == "__main__":
    run("--mixed" in sys.argv[1:])
