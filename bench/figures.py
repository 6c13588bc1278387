"""Puts measured figures between the marks of README.md: `python -m bench.figures` after `make bench`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.common import RESULTS

README = Path(__file__).parent.parent / "README.md"
MARKS = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)


def result(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def lines() -> list[str]:
    out: list[str] = []
    windows = result("windows")
    if windows:
        out += ["Windows of 1,024 tokens from a store of 50 M, batches of 32, shuffled, int64 torch tensors:", ""]
        out += ["| loader | Mtokens/s | of one bare NumPy gather |", "|---|---:|---:|"]
        bare = windows["mtokens"]["bare gather"]
        out += [f"| {name} | {value:,.0f} | {value / bare:.2f} |" for name, value in windows["mtokens"].items()]
        out.append("")
    prepare = result("prepare")
    if prepare:
        out += ["JSONL to tokens, 120 MB of Python source, byte-level BPE of 16,000:", ""]
        out += ["| what | MB/s |", "|---|---:|"]
        out += [f"| {name} | {value:.1f} |" for name, value in prepare["mb_per_second"].items()]
        out.append("")
    targets = [
        (n, *row) for n in sorted(p.stem for p in RESULTS.glob("*.json")) for row in (result(n) or {})["targets"]
    ]
    if targets:
        out += [
            "Every target, as measured in the same runs:",
            "",
            "| bench | what | measured | target | |",
            "|---|---|---:|---:|---|",
        ]
        out += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in targets]
        out.append("")
    return out


def run() -> None:
    text = README.read_text()
    body = "\n".join(lines())
    README.write_text(MARKS.sub(lambda m: f"{m[1]}{body}{m[2]}", text))
    print(f"wrote {len(body)} characters into {README.name}")


if __name__ == "__main__":
    run()
