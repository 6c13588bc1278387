"""`penstock plan`: the size of a training run (windows, steps, tokens) without running it."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_windows, command, number


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "plan", "show the size of a training run: windows, steps, tokens, what is dropped", run,
        examples=["corpus --length 1024 --batch 32", "corpus --length 2048 --batch 256 --world 8 --epochs 3 --json"],
    )  # fmt: skip
    add_windows(parser)
    parser.add_argument("--epochs", type=number(1), default=1, metavar="E", help="passes over the data (default: 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Computes and prints the figures."""
    from penstock.cli.inputs import open_run
    from penstock.view.training_run import figures

    source, options = open_run(args)
    facts = {"store": args.store} | figures(source, **options, epochs=args.epochs)
    return console.result(args, facts, lambda facts: console.table(rows(facts)))


def rows(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns the figures with readable names."""
    share = facts["tokens_not_seen_in_epoch_0"] / max(1, facts["tokens"])
    seed = "" if facts["seed"] is None else f", seed {facts['seed']}"
    return [
        ("tokens", f"{facts['tokens']:,} in {facts['documents']:,} documents"),
        ("windows", f"{facts['windows']:,} of {facts['length']:,} tokens, {facts['stride']:,} apart"),
        ("steps per epoch", facts["steps_per_epoch"]),
        ("tokens per step", f"{facts['tokens_per_step']:,} ({facts['batch']:,} windows)"),
        ("tokens per epoch", facts["tokens_per_epoch"]),
        ("rows dropped per epoch", facts["rows_dropped_per_epoch"]),
        ("tokens not seen in it", f"{facts['tokens_not_seen_in_epoch_0']:,} ({share:.3%}), neither input nor label"),
        ("a token is input", f"{facts['times_a_token_is_input']:g} times per epoch"),
        ("ranks", f"{facts['world']:,}, {facts['rows_per_rank']:,} windows per step on each"),
        ("bytes per batch", f"{console.size(facts['bytes_per_batch'])} on each rank (int64 inputs and labels)"),
        ("epochs", f"{facts['epochs']:,}: {facts['steps']:,} steps, {facts['tokens_trained']:,} tokens"),
        ("shuffle", facts["shuffle"] + seed),
        ("fingerprint", facts["fingerprint"]),
    ]
