"""`penstock verify`: checks every byte of a token store; exit code 0 if it is sound, 1 if it is damaged."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, command

_KNOWN = ("skipped.jsonl",)  # `prepare` writes it next to the store


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "verify", "read a full token store and check that it is sound", run,
        more="Exit code 0: sound; 1: damaged, each problem listed on stderr.",
        examples=["corpus", "corpus/00000.tokens --json"],
    )  # fmt: skip
    parser.add_argument("store", metavar="STORE", help="folder or URL of a token store, or one of its shard files")
    parser.add_argument("--progress", action="store_true", help="show the bar even when stderr is not a terminal")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verifies the store and lists all damage."""
    from dataclasses import asdict

    from penstock.core.progress import progress
    from penstock.sources.formats import dataset_at
    from penstock.store.verify import verify

    options = dict(args.storage_option or []) or None
    found = dataset_at(args.store, options)  # raises a clearer error for an interrupted `prepare`
    with progress(None, "B", "verifying", True if args.progress else None) as bar:
        report = verify(args.store, lambda done, _: bar.update(done - bar.done), options)
    if not report.id and (found is None or found.name != "store"):
        report.raise_first()  # no store at all: nothing was checked
    problems = [{"expected": p.expected, "got": p.got, "where": p.where, "fix": p.fix} for p in report.problems]
    if args.json:
        facts = asdict(report) | {"problems": problems}
        console.as_json({"sound": report.ok, "store": args.store} | facts)
    else:
        console.out(f"{'sound' if report.ok else 'DAMAGED'}: {args.store}")
        rows = [(name, getattr(report, name)) for name in ("id", "shards", "documents", "tokens", "pages")]
        console.table([*rows, ("bytes", console.size(report.bytes))], indent="  ")
        if others := [name for name in report.extras if name not in _KNOWN]:
            console.note(f"files that are not part of the store: {', '.join(others)}")
    for problem in report.problems:
        console.error(problem)
    return 0 if report.ok else 1
