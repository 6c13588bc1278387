"""`penstock prepare --prompt`: the options of prompts, and the engine and records they ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock._errors import UsageError
from penstock._optional import need
from penstock.cli.arguments import number


def add_prompt(parser: Any) -> None:
    """The options."""
    group = parser.add_argument_group(
        "instruction data", "records through a template, with a loss mask beside the tokens"
    )
    group.add_argument(
        "--prompt", metavar="TEMPLATE",
        help='"alpaca", "chat", or a format string such as "Q: {question} A: {answer}", whose last field is learnt',
    )  # fmt: skip
    masks = ("prompt", "assistant", "last", "none")
    group.add_argument("--mask", choices=masks, default="prompt", help="what is not learnt (default: prompt)")
    turns = ("answer", "tail", "whole")
    group.add_argument("--turn", choices=turns, default="answer", help="what of a chat's answer is (default: answer)")
    group.add_argument("--max-length", type=number(1), metavar="N", help="most tokens of a record")
    cuts = ("error", "right", "left")
    group.add_argument("--truncation", choices=cuts, default="error", help="for longer records (default: error)")
    group.add_argument("--system", metavar="TEXT", help="text before every prompt")
    group.add_argument("--chat-template", metavar="FILE", help="Jinja file to use instead of the tokenizer's own")


def make_engine(args: argparse.Namespace) -> Any:
    """The engine that the options describe."""
    from penstock.text.prompts.engine import PromptEngine

    tokenizer, template = args.tokenizer, None
    if args.chat_template is not None:
        template = Path(args.chat_template).read_text(encoding="utf-8")
    elif args.prompt == "chat":  # only the library that wrote the folder knows where its template is
        transformers = need("transformers", extra="hf", purpose="to find the tokenizer's chat template")
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
    eos = args.eos if args.eos_id is None else args.eos_id
    if template is not None or args.prompt == "chat":
        eos = None
    return PromptEngine(
        tokenizer, args.prompt or "chat", mask=args.mask, max_length=args.max_length, truncation=args.truncation,
        eos=eos, system=args.system, chat_template=template,
        on_error=args.on_error, turn=args.turn,
    )  # fmt: skip


def open_records(args: argparse.Namespace) -> Any:
    """The records of the files."""
    from penstock.cli.inputs import kind_of_texts
    from penstock.preparation.records import records_of

    kind = kind_of_texts(args.paths) if args.format == "auto" else args.format
    if kind == "jsonl":
        return records_of(list(args.paths))
    if kind == "parquet":
        from penstock.sources.parquet import ParquetFiles

        return records_of(ParquetFiles(list(args.paths)))
    raise UsageError(
        "records with named fields for --prompt: JSON lines, a JSON array or Parquet",
        got=f"{kind} files",
        where=", ".join(args.paths[:3]),
        fix="write the records as JSON lines",
    )
