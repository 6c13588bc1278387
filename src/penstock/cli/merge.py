"""`penstock merge`: several datasets as one, one after another."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import command
from penstock.cli.pipelines import add_input, add_output, opened, show_written, written
from penstock.core.errors import UsageError


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "merge", "write several datasets as one, in the order in which they are named", run,
        more="All must have the same columns; stores must have been made with the same tokenizer.",
        examples=["monday.jsonl tuesday.jsonl --out week", "web books code --out corpus"],
    )  # fmt: skip
    add_input(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the rows of all."""
    from penstock.read.combine import concat

    if len(args.paths) < 2:
        raise UsageError("at least two datasets to merge", got=args.paths[0], fix="penstock convert, for one")
    with ExitStack() as stack:
        found = [stack.enter_context(opened(args, [path])) for path in args.paths]
        kinds = {usual for _, usual in found}
        if "store" in kinds and len(kinds) > 1:
            raise UsageError("datasets of one kind", got="tokens and others", fix="penstock prepare the texts first")
        made = written(args, concat([pipeline for pipeline, _ in found]), found[0][1], args.out)
    return console.result(args, made, lambda facts: console.out(show_written(facts)))
