"""`penstock report`: writes one self-contained HTML page about a dataset."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_texts, add_tokenizer, add_tokens, command, number
from penstock.core.errors import DataError


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "report", "write one HTML page about a store or file: facts, lengths, samples, plan", run,
        more="The page is one file without scripts, fonts or network requests.",
        examples=["corpus --out report.html --tokenizer tokenizer.json", "data.jsonl --out report.html"],
    )  # fmt: skip
    parser.add_argument("path", metavar="STORE|FILE", help="token store, token files, or text, JSONL or Parquet files")
    parser.add_argument("--out", "-o", required=True, metavar="HTML", help="file to write")
    add_tokenizer(parser)
    parser.add_argument("--samples", type=number(0), default=8, metavar="N", help="documents to show (default: 8)")
    parser.add_argument(
        "--length", type=number(1), default=1024, metavar="L", help="window of the plan (default: 1024)"
    )
    parser.add_argument("--batch", type=number(1), default=32, metavar="B", help="batch of the plan (default: 32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses the samples (default: 0)")
    add_texts(parser)
    add_tokens(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Collects the data, writes the page and prints its path."""
    from penstock.cli.inputs import decoder, open_texts, open_tokens
    from penstock.core.local_files import atomic_write
    from penstock.sources.formats import format_of
    from penstock.storage.filesystem import local_only
    from penstock.view import collect
    from penstock.view.page import page

    out = local_only(args.out, "--out")
    found = format_of(args.path)
    if found.kind == "tokens":
        source = open_tokens(args.path, args.dtype, args.split_id)
        facts = collect.of_tokens(
            args.path, source, decoder(source, args.tokenizer), samples=args.samples, seed=args.seed,
            length=args.length, batch=args.batch,
        )  # fmt: skip
    else:
        source = open_texts([args.path], found.name, args.field, args.by)
        facts = collect.of_texts(args.path, source, samples=args.samples, seed=args.seed)
    if not facts.documents:
        raise _nothing(args.path, facts.skipped)
    data = page(facts).encode("utf-8", "backslashreplace")
    atomic_write(out, data)
    if args.json:
        console.as_json(
            {"out": args.out, "bytes": len(data), "documents": facts.documents, "skipped": facts.skipped.total}
        )
    else:
        console.out(f"{args.out}: {console.size(len(data))}, {console.count(facts.documents, 'document')}")
    return 0


def _nothing(path: str, skipped: Any) -> DataError:
    """The error for data of which nothing can be shown; a page about it would be empty."""
    first = skipped.entries[0] if skipped.entries else {}
    return DataError(
        first.get("reason") or "at least one document",
        got=f"{first['detail']} (and so in {skipped.total:,} records)" if first else "none",
        where=first.get("file") or path,
        fix="--field NAME names the field that holds the text; `penstock peek` shows the records",
    )
