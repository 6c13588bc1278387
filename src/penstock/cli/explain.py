"""`penstock explain`: shows which documents and tokens are in one row of any step."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokenizer, add_windows, command, number
from penstock.markup.visible import figure


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "explain", "show which documents and tokens are in a row of a step", run,
        examples=["corpus --length 1024 --batch 32 --step 48210 --row 3 --tokenizer tokenizer.json"],
    )  # fmt: skip
    add_windows(parser)
    parser.add_argument("--step", type=number(0), required=True, metavar="N", help="step, counted over all epochs")
    parser.add_argument("--row", type=number(0), default=0, metavar="R", help="row of this rank's batch (default: 0)")
    parser.add_argument("--rank", type=number(0), default=0, metavar="K", help="data-parallel rank (default: 0)")
    add_tokenizer(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Computes the row and prints its provenance."""
    from penstock.cli.inputs import decoder, open_run
    from penstock.core.errors import UsageError
    from penstock.view.documents import decoded
    from penstock.view.training_run import pipeline

    source, options = open_run(args)
    loader = pipeline(source, **options, rank=args.rank).to_numpy(threads=0)
    if args.row >= args.batch // args.world:
        raise UsageError(
            f"a row below {args.batch // args.world}, the rows of a batch on one rank",
            got=f"--row {args.row}",
            fix="rows count from 0",
        )
    why = loader.why(args.step, args.row)
    batch = loader.batch_at(args.step)
    tokenizer = decoder(source, args.tokenizer)
    facts = {"store": args.store} | why | {name: batch[name][args.row].tolist() for name in ("input_ids", "labels")}
    facts["text"] = decoded(tokenizer, facts["input_ids"])
    return console.result(args, facts, _show)


def _show(facts: dict[str, Any]) -> None:
    origin = facts["from"]
    span = origin["tokens"]
    console.table(
        [
            ("step", f"{facts['step']:,}, row {facts['row']:,} (epoch {facts['epoch']:,})"),
            ("window", f"{origin['window']:,}: inputs are tokens {span[0]:,} to {span[1] - 2:,} of the stream"),
            ("seed", facts["seed"]),
            ("documents", f"{origin['documents_in_window']:,} in this window"),
        ]
    )
    for one in origin["documents"]:
        details = {k: v for k, v in one.items() if k not in ("document", "from")}
        console.out(f"  document {one['document']:,} from its token {one['from']:,}")
        console.out("    " + ", ".join(f"{k} {figure(v)}" for k, v in details.items()))
    console.table([("input_ids", console.ids(facts["input_ids"])), ("labels", console.ids(facts["labels"]))])
    if facts["text"] is not None:
        console.out("text")
        for line in facts["text"].split("\n"):
            console.out(f"  | {line}")
