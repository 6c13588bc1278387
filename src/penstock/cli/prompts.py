"""`penstock prepare --prompt`: the options of prompts, and the engine and records that they configure."""

from __future__ import annotations

import argparse
import re
from typing import Any

from penstock.cli.arguments import named_value, number
from penstock.core.errors import PenstockError, UsageError

# Options that only mean something with a prompt, and options that mean nothing with one.
_WITH = ("mask", "turn", "max_length", "truncation", "system", "boundary", "specials", "bos", "variable", "date")
_WITHOUT = {
    "field": "name the fields in the template",
    "by": "a record is a document",
    "engine": "the prompts' own encoder is used",
    "threads": "as many are used as there are cores",
    "add_special_tokens": "use --bos, or a chat template, which writes its own",
    "allowed_special": "use --specials allow",
    "disallowed_special": "use --specials allow",
}
# How the library's advice is written on the command line.
_SPELLINGS = (
    (r"\b(mask|truncation|turn|specials|boundary|on_error)='(\w+)'", r"--\1 \2"),
    (r"chat_template=\.\.\. with", "--chat-template FILE with"),
    (r"variables=\{'(\w+)': \.\.\.\}", r"--variable \1=TEXT"),
    (r'\bdate="([-\d]+)"', r"--date \1"),
    (r"eos=<token id>", "--eos-id N"),
    (r"\b(eos|bos)=False", r"--no-\1"),
    (r"name the field that holds it", "--field NAME names the field that holds it"),
    (r"`(\w+)`", r"--\1"),
    (r"(?<![-\w])max_length\b", "--max-length"),
)


def add_prompt(parser: Any) -> None:
    """Adds the options. None has a default here, so that an option without effect is detected."""
    group = parser.add_argument_group(
        "instruction data", "records through a template, with a loss mask beside the tokens"
    )
    group.add_argument(
        "--prompt", type=_text, metavar="TEMPLATE",
        help='"alpaca", "chat", or a format string such as "Q: {question}\\nA: {answer}", whose last field is '
        "trained on; \\n and \\t are a line break and a tab, \\\\ a backslash, here and in --system",
    )  # fmt: skip
    masks = ("prompt", "assistant", "last", "none")
    group.add_argument("--mask", choices=masks, help="what is not trained on (default: prompt)")
    turns = ("answer", "tail", "whole")
    group.add_argument("--turn", choices=turns, help="part of a chat's answer to train on (default: answer)")
    group.add_argument("--max-length", type=number(1), metavar="N", help="most tokens of a record")
    cuts = ("error", "right", "left")
    group.add_argument("--truncation", choices=cuts, help="for longer records (default: error)")
    group.add_argument("--system", type=_text, metavar="TEXT", help="text before every prompt")
    group.add_argument("--chat-template", metavar="FILE", help="Jinja file to use instead of the tokenizer's own")
    group.add_argument(
        "--variable", type=named_value, action="append", metavar="NAME=VALUE",
        help="what the chat template reads beside the record: JSON, or else text; may be repeated",
    )  # fmt: skip
    group.add_argument("--date", metavar="YYYY-MM-DD", help="what the chat template writes as today's date")
    group.add_argument(
        "--specials", choices=("refuse", "allow"), help="records that spell a special token (default: refuse)"
    )
    group.add_argument(
        "--boundary", choices=("split", "error"), help="if the text to train on begins inside a token (default: split)"
    )
    begin = group.add_mutually_exclusive_group()
    begin.add_argument("--bos", dest="bos", action="store_const", const=True, help="begin with the beginning token")
    begin.add_argument("--no-bos", dest="bos", action="store_const", const=False, help="do not, whatever is usual")


def _text(text: str) -> str:
    """Replaces the escapes \\n, \\t and \\\\ in a text.

    >>> _text(r"a\\nb \\\\n")
    'a\\nb \\\\n'
    """
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)


def asks_for_prompts(args: argparse.Namespace) -> bool:
    """Whether the options describe prompts; raises if they contradict each other or have no effect."""
    prompts = args.prompt is not None or args.chat_template is not None
    passed = [_spell(name) for name in _WITH if getattr(args, name) is not None]
    if passed and not prompts:
        raise UsageError(
            f"--prompt or --chat-template beside {', '.join(passed)}",
            got="neither: plain text is prepared without a mask",
            fix=f"add --prompt alpaca, --prompt chat or a format string, or leave {', '.join(passed)} out",
        )
    unused = [name for name in _WITHOUT if prompts and getattr(args, name) is not None]
    if unused:
        raise UsageError(
            "options that --prompt uses",
            got=", ".join(map(_spell, unused)),
            fix="; ".join(f"leave {_spell(name)} out: {_WITHOUT[name]}" for name in unused),
        )
    if args.chat_template is not None and args.prompt not in (None, "chat"):
        raise UsageError(
            "--prompt chat beside --chat-template",
            got=f"--prompt {args.prompt!r}",
            fix="leave one of them out: a chat template is a prompt of its own",
        )
    return prompts


def _spell(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_engine(args: argparse.Namespace) -> Any:
    """Creates the engine that the options describe."""
    from penstock.chat.engine import PromptEngine
    from penstock.chat.tokenizer_template import read_template

    source = None if args.chat_template is None else read_template(args.chat_template)
    passed = {name: getattr(args, name) for name in _WITH if name != "variable" and getattr(args, name) is not None}
    return PromptEngine(
        args.tokenizer, args.prompt or "chat", chat_template=source, on_error=args.on_error,
        eos=args.eos if args.eos_id is None else args.eos_id,
        variables=None if args.variable is None else dict(args.variable), **passed,
    )  # fmt: skip


def as_options(error: PenstockError) -> PenstockError:
    """Rewrites the fix of an error in terms of options.

    >>> as_options(UsageError("x", fix="raise max_length, or use on_error='skip'")).fix
    'raise --max-length, or use --on-error skip'
    """
    for pattern, option in _SPELLINGS:
        error.fix = re.sub(pattern, option, error.fix)
    error.fix = error.fix.replace("--on_error", "--on-error")
    return error


def open_records(args: argparse.Namespace) -> Any:
    """Opens the records of the files."""
    from penstock.sources.formats import FORMATS, format_of
    from penstock.sources.record_texts import record_texts

    found = format_of(args.paths) if args.format == "auto" else FORMATS[args.format]
    if found.kind == "records":
        return record_texts(args.paths, file_format=found.name)
    raise UsageError(
        "records with named fields for --prompt: JSON lines, a JSON array or Parquet",
        got=found.title,
        where=", ".join(args.paths[:3]),
        fix="write the records as JSON lines",
    )
