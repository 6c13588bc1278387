"""`penstock clean`: deletes what interrupted or concurrent preparations left beside a token store."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, command, duration


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "clean", "delete what preparations left beside a token store", run,
        more="The store itself, and files that `penstock prepare` did not write, are kept.",
        examples=["s3://bucket/corpus", "s3://bucket/corpus --older-than 12h", "s3://bucket/corpus --unfinished"],
    )  # fmt: skip
    parser.add_argument("store", metavar="STORE", help="folder or URL that was the output of `penstock prepare`")
    parser.add_argument(
        "--unfinished", action="store_true", help="delete a preparation that has not finished; nothing may work on it"
    )
    parser.add_argument(
        "--older-than", type=duration, default=0.0, metavar="AGE", help="keep what is younger: 90s, 30m, 12h, 7d"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Deletes the leftovers and prints their names."""
    from penstock.preparation.clean import clean

    options = dict(args.storage_option or []) or None
    left = clean(args.store, unfinished=args.unfinished, older_than=args.older_than, storage_options=options)
    if args.json:
        console.as_json({"store": args.store, "deleted": left})
    else:
        for name in left:
            console.out(name)
        console.note(f"{console.count(len(left), 'file')} deleted from {args.store}")
    return 0
