"""`penstock split`: disjoint parts of a dataset as files or stores, the same in every run."""

from __future__ import annotations

import argparse
import re
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import command
from penstock.cli.pipelines import add_input, add_output, opened, show_written, shows, written
from penstock.core.errors import UsageError
from penstock.storage import objects

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "split", "divide records into parts, such as train and val, and write each", run,
        more="Each part is a folder of --out. The same seed makes the same parts.",
        examples=[
            "data.jsonl --parts train=0.9 val=0.1 --out parts",
            "corpus --parts val=1000 train=rest --out parts",
            "data.jsonl --parts train=0.8 test=0.2 --key user --out parts",
        ],
    )  # fmt: skip
    add_input(parser)
    parser.add_argument(
        "--parts", nargs="+", type=_part, required=True, metavar="NAME=SIZE",
        help="name and size of each part: a fraction such as 0.9, a number of records, or rest",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (default: 0)")
    parser.add_argument("--no-shuffle", action="store_true", help="cut the records in their order")
    parser.add_argument("--key", metavar="COLUMN", help="records with equal values of this column stay in one part")
    parser.add_argument(
        "--stratify", metavar="COLUMN", help="the same shares of each value of this column in all parts"
    )
    add_output(parser)


def _part(text: str) -> tuple[str, float | int | None]:
    """Parses NAME=SIZE.

    >>> _part("train=0.9"), _part("val=1000"), _part("rest=rest")
    (('train', 0.9), ('val', 1000), ('rest', None))
    """
    name, equals, size = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"expected NAME=SIZE, with a name of letters, digits, _, . and -, got {text!r}"
        )
    if size == "rest":
        return name, None
    try:
        return name, int(size) if size.isdigit() else float(size)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a fraction, a number or rest after {name}=, got {size!r}") from None


def run(args: argparse.Namespace) -> int:
    """Writes the parts."""
    names = [name for name, _ in args.parts]
    if len({*names}) < len(names):
        raise UsageError("each part once in --parts", got=" ".join(names), fix="give the parts different names")
    with opened(args, args.paths) as (pipeline, usual):
        parts = pipeline.split(
            dict(args.parts), seed=args.seed, shuffle=not args.no_shuffle, key=args.key, stratify=args.stratify,
            show_progress=shows(args),
        )  # fmt: skip
        found = {name: written(args, part, usual, objects.join(args.out, name)) for name, part in parts.items()}
    return console.result(args, found, _show)


def _show(found: dict[str, Any]) -> None:
    console.table([(name, show_written(one)) for name, one in found.items()])
