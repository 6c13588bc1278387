"""Writes measured figures into the docs and draws them: `python -m bench.figures` after `make bench`.

`docs/explanation/measured.md` has all figures, README.md a few of them and the chart of windows. Benchmarks that were
not run keep their old figures; the column "run" has the date and the machine of each. Results of different machines are
not mixed, unless `--mixed` says so. Curves (`curves` of a result) become `docs/explanation/growth.svg`, each with its
exponent; the picture keeps the data of benchmarks that were not run.
"""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

from bench import plots
from bench.common import RESULTS
from bench.faults import LOADERS

README = Path(__file__).parent.parent / "README.md"
PAGE = README.parent / "docs" / "explanation" / "measured.md"
CURVES = README.parent / "docs" / "explanation" / "growth.svg"
CHART = README.parent / "docs" / "explanation" / "windows.svg"
MARKS = re.compile(r"(<!-- bench:begin -->\n)(.*?)(<!-- bench:end -->)", re.DOTALL)
WINDOWS = "Windows of 1,024 tokens from a store of 50 M, batches of 32, shuffled, int64 torch tensors:"
PREPARE = "JSONL to tokens, 120 MB of Python source, byte-level BPE of 16,000:"
TARGETS = "Every target, as measured in the same run as its peers:"
FAULTS = "What the training loop saw of a fault, and how many seconds after its process began:"
MISSING = "Peers that were left out of these runs:"
HEADS = {
    WINDOWS: ("| loader | Mtokens/s | of one bare NumPy gather |", "|---|---:|---:|"),
    PREPARE: ("| what | MB/s |", "|---|---:|"),
    TARGETS: ("| bench | what | measured | target | | run |", "|---|---|---:|---:|---|---|"),
    FAULTS: ("| fault | " + " | ".join(LOADERS) + " |", "|---" * (len(LOADERS) + 1) + "|"),
    MISSING: ("| bench | left out | why |", "|---|---|---|"),
}
METADATA = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)

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


def results() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


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
    if faults := result("faults"):
        played = faults["faults"].items()
        found[FAULTS] = [_row(name, *(_seen(by.get(loader)) for loader in LOADERS)) for name, by in played]
    judged, missing = {}, {}
    for name, facts in results().items():
        if "targets" in facts:
            judged[name] = [_row(name, *target, _when(facts)) for target in facts["targets"]]
        missing[name] = [_row(name, *peer) for peer in facts.get("left out", {}).items()]
    found[TARGETS] = _renewed(found[TARGETS], judged)
    found[MISSING] = _renewed(found[MISSING], missing)
    return [line for title, rows in found.items() if rows for line in (title, "", *HEADS[title], *rows, "")]


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _seen(answer: Any) -> str:
    return f"{answer[0].strip().rstrip(':')}, {answer[1]:.0f} s" if answer else "not tried"


def _when(facts: dict[str, Any]) -> str:
    return f"{facts.get('date', 'unknown')}, {(facts.get('machine') or {}).get('id', 'unknown')}"


def _renewed(old: list[str], new: dict[str, list[str]]) -> list[str]:
    """Rows by benchmark, in the first cell: those of a new run replace its old ones; their order within it stays."""
    kept = [row for row in old if _cells(row)[0] not in new]
    return sorted(kept + [row for rows in new.values() for row in rows], key=lambda row: _cells(row)[0])


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def short(rows: list[str]) -> list[str]:
    """The figures of the README, from the rows of all targets; a target that was missed is counted."""
    found = {tuple(cells[:2]): cells[2:] for cells in map(_cells, rows)}
    chosen = [(say, found[key]) for key, say in SHORT.items() if key in found]
    verdicts = [cells[2].partition(":")[0] for cells in found.values()]
    said = f"Of {len(found)} targets {verdicts.count('met')} were met and {verdicts.count('MISSED')} missed"
    said += f"; {verdicts.count('NOT MEASURED')} were not measured." if "NOT MEASURED" in verdicts else "."
    runs = sorted({cells[3] for cells in found.values()})
    said += f" They are of {len(runs)} runs: {'; '.join(runs)} (date, machine)." if len(runs) > 1 else ""
    table = [_row(say, *cells) for say, cells in chosen]
    return ["| what | measured | target | | run |", "|---|---:|---:|---|---|", *table, "", said, ""]


def machines() -> dict[str, list[str]]:
    """The benches of each machine that results are from."""
    found: dict[str, list[str]] = {}
    for bench, made in results().items():
        facts = made.get("machine")
        name = f"{facts['cpus']} x {facts['cpu']} ({facts['id']})" if facts else "an unknown machine"
        found.setdefault(name, []).append(bench)
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
    draw_curves()
    body = lines(_marked(PAGE)[2])
    tables = rows_of("\n".join(body))
    _write(PAGE, body)
    _write(README, short(tables.get(HEADS[TARGETS][0], [])))
    if windows := tables.get(HEADS[WINDOWS][0]):
        cells = [_cells(row) for row in windows]
        rates = [(name, float(rate.replace(",", ""))) for name, rate, _ in cells]
        CHART.write_text(plots.bars(rates, "Million tokens per second", "penstock"))


def draw_curves() -> None:
    """Draws the curves of results, beside those of the picture whose benchmarks were not run."""
    old = METADATA.search(CURVES.read_text()) if CURVES.exists() else None
    known: dict[str, Any] = json.loads(unescape(old[1])) if old else {}
    new = {name: {"run": _when(f), "curves": f["curves"]} for name, f in results().items() if f.get("curves")}
    if new:
        known |= new
        found = [one for name in sorted(known) for one in known[name]["curves"]]
        runs = "; ".join(f"{name}: {known[name]['run']}" for name in sorted(known))
        CURVES.write_text(plots.curves(found, runs, json.dumps(known)))
        print(f"drew {len(found)} curves into {CURVES.name}")


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
