"""`penstock diff`: what differs between two datasets, or two configurations of pipelines.

Rows are compared in `row_diff.py`, which imports NumPy; this module must not, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_allow, add_json, add_tokens, command, number


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "diff", "what differs between two stores, datasets or configurations", run,
        more="Exit code 0 if nothing differs, 1 if something does. Rows are compared one by one, in their order.",
        examples=["corpus corpus-v2", "a.jsonl b.jsonl --json", "train.toml train-new.toml"],
    )  # fmt: skip
    parser.add_argument("old", metavar="OLD", help="store, files, folder, URL or configuration")
    parser.add_argument("new", metavar="NEW", help="what it is compared with")
    parser.add_argument(
        "--rows", "-n", type=number(0), default=5, metavar="N", help="differing rows to show (default: 5)"
    )
    parser.add_argument("--field", default="text", metavar="NAME", help="field or column with the text (default: text)")
    parser.add_argument("--by", choices=("file", "line", "paragraph"), help="what a record of a text file is")
    parser.add_argument("--split-name", metavar="NAME", help="split of a dataset that has splits")
    add_tokens(parser)
    add_allow(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the differences."""
    from penstock.cli import row_diff
    from penstock.cli.pipelines import opened
    from penstock.read.config import from_config, is_config

    if is_config(args.old) and is_config(args.new):
        old, new = (from_config(path, allow_functions=args.allow) for path in (args.old, args.new))
        facts = row_diff.plans(old, new)
    else:
        with opened(args, [args.old]) as (old, _), opened(args, [args.new]) as (new, _):
            facts = row_diff.data(old, new, args.rows)
    facts = {"old": args.old, "new": args.new} | facts
    return console.result(args, facts, _show, code=0 if facts["same"] else 1)


def _show(facts: dict[str, Any]) -> None:
    if facts["same"]:
        console.out("no difference" + (f": {console.count(facts['rows']['old'], 'row')}" if "rows" in facts else ""))
        return
    for line in facts.get("steps", []):
        console.out(line)
    for name, (old, new) in facts.get("facts", {}).items():
        console.out(f"{name}: {old} -> {new}")
    if "rows" in facts and facts["rows"]["old"] != facts["rows"]["new"]:
        console.out(f"rows: {facts['rows']['old']:,} -> {facts['rows']['new']:,}")
    if facts.get("differ"):
        console.out(f"{facts['differ']:,} of {facts['compared']:,} rows differ")
    for one in facts.get("examples", []):
        console.out(f"row {one['row']}, {one['column']}:")
        console.table([("-", one["old"]), ("+", one["new"])], indent="  ")
