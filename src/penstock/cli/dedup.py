"""`penstock dedup`: records without duplicates, exact or almost the same."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import command, number
from penstock.cli.pipelines import add_input, add_output, opened, show_written, shows, written


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "dedup", "leave out duplicates: the first of equal or similar records stays", run,
        more="Compares the column --field.",
        examples=["data.jsonl --out unique", "data.jsonl --method minhash --threshold 0.7 --out unique"],
    )  # fmt: skip
    add_input(parser)
    parser.add_argument(
        "--method",
        choices=("exact", "minhash"),
        default="exact",
        help="equal values, or similar texts (default: exact)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.8,
        metavar="S",
        help="minhash: similarity from which texts are the same, 0 to 1",
    )
    parser.add_argument(
        "--ngram", type=number(1), default=5, metavar="N", help="minhash: words that are compared together"
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the records that stay."""
    with opened(args, args.paths) as (pipeline, usual):
        before = len(pipeline.rows())
        options = {"threshold": args.threshold, "ngram": args.ngram} if args.method == "minhash" else {}
        kept = pipeline.dedup(args.field, method=args.method, show_progress=shows(args), **options)
        made = written(args, kept, usual, args.out)
    return console.result(args, made | {"duplicates": before - made["rows"]}, _show)


def _show(facts: dict[str, Any]) -> None:
    console.out(f"{show_written(facts)}, {console.count(facts['duplicates'], 'duplicate')} left out")
