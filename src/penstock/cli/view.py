"""`penstock view`: a local web page to look at data, batches and runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_texts, add_tokenizer, add_tokens, command, number


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "view", "look at data, batches and runs in a browser", run,
        more="Serves a page on this machine only, at an address with a token, until Ctrl-C.",
        examples=["corpus --tokenizer tokenizer.json", "photos/", "data.jsonl --port 8800", "run.jsonl",
                  "a.toml --beside b.toml"],
    )  # fmt: skip
    parser.add_argument(
        "target", metavar="TARGET", nargs="+",
        help="token store, files, folder of images or audio, tar shards, configuration, a dataset's name, or snapshots "
        "of runs (run.jsonl) to compare",
    )  # fmt: skip
    parser.add_argument(
        "--beside", metavar="OTHER", help="a second target: its batches and plan are shown beside those of the first"
    )
    parser.add_argument("--port", type=number(0), default=0, metavar="N", help="port (default: a free one)")
    parser.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    parser.add_argument("--split", metavar="NAME", help="split of a dataset: train, test, ...")
    parser.add_argument("--length", type=number(1), default=1024, metavar="L", help="window to plan (default: 1024)")
    parser.add_argument("--batch", type=number(1), default=32, metavar="B", help="batch to plan (default: 32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the samples (default: 0)")
    add_tokenizer(parser)
    add_texts(parser)
    add_tokens(parser)
    parser.set_defaults(field=None, by=None)


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    from penstock.view.server import Viewer
    from penstock.view.session import Choices, open_beside, open_session

    choices = Choices(
        args.tokenizer, args.field, args.by, args.split, args.dtype, args.split_id, args.length, args.batch, args.seed,
        dict(args.storage_option or []) or None,
    )  # fmt: skip
    if args.beside is None:
        session = open_session(args.target, choices)
    else:
        session = open_beside(args.target, args.beside, choices)
    with Viewer(session, args.port) as viewer:
        console.out(viewer.url)
        sys.stdout.flush()
        console.note("Ctrl-C ends it")
        if not args.no_open:
            import webbrowser

            webbrowser.open(viewer.url)
        try:
            viewer.wait()
        except KeyboardInterrupt:
            return 0
    return 0
