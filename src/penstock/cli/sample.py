"""`penstock sample`: records chosen at random, on stdout as JSON lines or written as files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from penstock.cli import console
from penstock.cli.arguments import command, number
from penstock.cli.pipelines import add_input, add_output, opened, show_written, written

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

_BLOCK = 256


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "sample", "choose records at random: to stdout as JSON lines, or to files", run,
        more="The same seed chooses the same records. Without --out, bytes and long arrays are shown by their size.",
        examples=["data.jsonl -n 5", "corpus -n 1000 --seed 7 --out small", "- -n 3 < data.jsonl"],
    )  # fmt: skip
    add_input(parser)
    parser.add_argument("--rows", "-n", type=number(1), default=10, metavar="N", help="number of records (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (default: 0)")
    parser.add_argument("--first", action="store_true", help="the first records instead of random ones")
    add_output(parser, required=False)


def run(args: argparse.Namespace) -> int:
    """Prints or writes the sample."""
    with opened(args, args.paths) as (pipeline, usual):
        size = len(pipeline.rows())
        if not size:
            console.note("there are no records")
            return 1
        count = min(args.rows, size)
        if count < args.rows:
            console.note(f"there are only {console.count(size, 'record')}")
        chosen = pipeline.take(count) if args.first else pipeline.sample(count, args.seed)
        if args.out is not None:
            found = written(args, chosen, usual, args.out)
            return console.result(args, found, lambda facts: console.out(show_written(facts)))
        _print(chosen, count)
    return 0


def _print(chosen: Pipeline, count: int) -> None:
    import numpy as np

    from penstock.core.columns import row

    rows = chosen.rows()
    for start in range(0, count, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, count))
        columns = rows.read(numbers)
        for i in range(len(numbers)):
            console.as_json({name: _plain(value) for name, value in row(columns, i).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if hasattr(value, "ndim") and value.ndim > 1:
        return f"<{value.dtype} of shape {list(value.shape)}>"
    return value
