"""`penstock convert`: tokenised documents from and to the formats of other tools."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokenizer, add_tokens, command, number


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "convert", "convert tokens from and to the formats of other tools", run,
        more="Nothing is tokenised again, and documents stay as they are. The result appears complete or not at all.",
        examples=[
            "mds/train corpus",
            "train.bin corpus --split-id 50256",
            "data.parquet corpus --column input_ids --vocab-size 50257",
            "corpus megatron/web --to megatron",
            "corpus mds/web --to mds --compression zstd",
            "articles/ corpus --tokenizer tokenizer.json --field text",
        ],
    )  # fmt: skip
    parser.add_argument(
        "source", nargs="+", metavar="SOURCE", help="token store, token files, MDS, or records with ids"
    )
    parser.add_argument("out", metavar="DEST", help="folder or URL of the result, or Megatron's prefix")
    parser.add_argument("--to", choices=("store", "megatron", "mds"), default="store", help="format (default: store)")
    parser.add_argument("--column", metavar="NAME", help="column with the ids (default: input_ids or tokens)")
    parser.add_argument(
        "--columns", metavar="A,B", help="other columns to keep, or none (default: all columns of numbers)"
    )
    add_tokens(parser)
    parser.add_argument("--split", metavar="NAME", help="split of a dataset that has splits")
    parser.add_argument("--vocab-size", type=number(1), metavar="N", help="checked for every id; sets their type")
    add_tokenizer(parser, what="for texts, to tokenise them into a store")
    parser.add_argument("--field", default="text", metavar="NAME", help="field with the text (default: text)")
    parser.add_argument("--compression", choices=("zstd", "gz"), help="of the shards of MDS (default: none)")
    parser.add_argument("--shard-tokens", type=number(1), metavar="N", help="tokens in a shard of a store, at least")
    parser.add_argument(
        "--size-limit", type=number(1), metavar="BYTES", help="bytes of a shard of MDS (default: 64 MiB)"
    )
    parser.add_argument("--single-writer", action="store_true", help="nothing else writes to the URL DEST")
    parser.add_argument("--restart", action="store_true", help="replace what an earlier conversion wrote to DEST")
    parser.add_argument("--progress", action="store_true", help="show the bar even when stderr is not a terminal")
    parser.add_argument("--quiet", "-q", action="store_true", help="no bar and no notes")
    add_json(parser)
    parser.set_defaults(interrupted="interrupted; nothing was written under the name of the result")


def run(args: argparse.Namespace) -> int:
    """Converts and prints what was written and what was lost."""
    from penstock.preparation.convert import convert

    named = {"shard_tokens": args.shard_tokens, "size_limit": args.size_limit}
    columns = None if args.columns is None else [] if args.columns == "none" else args.columns.split(",")
    made = convert(
        args.source[0] if len(args.source) == 1 else args.source, args.out, args.to, column=args.column,
        columns=columns, dtype=args.dtype, eos_id=args.split_id, vocab_size=args.vocab_size, tokenizer=args.tokenizer,
        field=args.field, split=args.split, compression=args.compression, restart=args.restart,
        single_writer=args.single_writer, storage_options=dict(args.storage_option or []) or None,
        show_progress=False if args.quiet else True if args.progress else None,
        **{name: value for name, value in named.items() if value is not None},
    )  # fmt: skip
    return console.result(args, made.to_json(), _show)


def _show(result: dict[str, Any]) -> None:
    console.table(
        [
            ("written", f"{result['path']} ({result['to']})"),
            ("documents", result["documents"]),
            ("tokens", result["tokens"]),
            ("size", console.size(result["bytes"])),
            ("work", f"{result['seconds']:.2f} s"),
            ("lost", "nothing" if not result["lost"] else result["lost"][0]),
            *(("", what) for what in result["lost"][1:]),
        ]
    )
