"""`penstock stats`: what the columns of a dataset hold: counts, lengths, tokens, values and classes.

The work is in `column_stats.py`, which imports NumPy; this module must not, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokenizer, command, number
from penstock.cli.pipelines import add_input, opened

_MOST = 100_000


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "stats", "what columns hold: counts, lengths, tokens, numbers and classes", run,
        examples=["data.jsonl", "corpus --json", "data.jsonl --tokenizer tokenizer.json", "pictures --rows 1000"],
    )  # fmt: skip
    add_input(parser)
    add_tokenizer(parser, what="whose tokens are counted, in the column --field")
    parser.add_argument(
        "--rows", "-n", type=number(1), default=_MOST, metavar="N",
        help=f"records to read, evenly spread where there are more (default: {_MOST:,})",
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the figures of each column."""
    from penstock.cli.column_stats import stats_of
    from penstock.tokenizers import as_tokenizer

    tokenizer = None if args.tokenizer is None else as_tokenizer(args.tokenizer)
    with opened(args, args.paths) as (pipeline, _):
        found = stats_of(pipeline, args.rows, args.field, tokenizer)
    facts = {"path": args.paths[0] if len(args.paths) == 1 else args.paths} | found
    good = found["read"] - found["bad"]
    if not good:
        console.note("no record could be read" if found["records"] else "there are no records")
    return console.result(args, facts, _show, code=0 if good else 1)


def _show(facts: dict[str, Any]) -> None:
    read = f"{facts['read']:,} of " if facts["read"] < facts["records"] else ""
    console.out(f"{read}{console.count(facts['records'], 'record')}, {console.count(len(facts['columns']), 'column')}")
    for reason, count in facts["reasons"].items():
        console.out(f"!! {console.count(count, 'bad record')}: {reason}")
    for name, one in facts["columns"].items():
        console.out(f"{name}: {one['kind']}" + (f", {one['missing']:,} missing" if one["missing"] else ""))
        rows: list[tuple[str, Any]] = []
        for what in ("length", "tokens", "value"):
            if what in one:
                rows.append((what, _spread(one[what])))
        if "total" in one:
            rows.append(("in total", f"{one['total']:,} {one['unit']}"))
        if "classes" in one:
            shown = [f"{value} {count:,}" for value, count in list(one["classes"].items())[:12]]
            more = len(one["classes"]) - len(shown)
            rows.append(("classes", ", ".join(shown) + (f" and {more:,} more" if more else "")))
        console.table(rows, indent="  ")


def _spread(one: dict[str, float]) -> str:
    return "  ".join(
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}" for name, value in one.items()
    )
