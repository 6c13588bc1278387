"""Shared parts of the commands' parsers: argument types that reject invalid values, and groups of options."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[argparse.Namespace], int]


def command(commands: Any, name: str, does: str, run: Run, *, examples: Sequence[str], more: str = "") -> Any:
    """Adds a command whose help ends with examples, and returns its parser."""
    lines = [f"{does[0].upper()}{does[1:]}.", *([more] if more else [])]
    shown = "\n".join(f"  penstock {name} {example}" for example in examples)
    parser = commands.add_parser(
        name,
        help=does,
        description="\n".join(lines),
        epilog=f"examples:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    _add_storage(parser)
    return parser


def number(least: int) -> Callable[[str], int]:
    """Returns a parser of integers of at least `least`; 10_000 and 1e6 are valid too.

    >>> number(1)("1e6"), number(0)("1_000")
    (1000000, 1000)
    """

    def parse(text: str) -> int:
        try:
            value = int(text) if "e" not in text.lower() else int(float(text))
        except (ValueError, OverflowError):
            value = None
        if value is None or value < least or ("e" in text.lower() and float(text) != value):
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return value

    return parse


def seconds(text: str) -> float:
    """Parses a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def duration(text: str) -> float:
    """Parses a time span with a unit, s, m, h or d; in seconds.

    >>> duration("90s"), duration("1.5h"), duration("7d")
    (90.0, 5400.0, 604800.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a number and s, m, h or d, as 12h, got {text!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def amount(text: str) -> float:
    """Parses a number of at least 0; an integer stays one.

    >>> amount("64e9"), amount("0.02")
    (64000000000, 0.02)
    """
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e30:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return int(value) if value.is_integer() else value


def budget(text: str) -> int | float:
    """Parses the number of records that may be skipped: a count, or a share below 1.

    >>> budget("100"), budget("0.01")
    (100, 0.01)
    """
    try:
        value: int | float = int(text) if text.isdigit() else float(text)
    except ValueError:
        value = -1
    if value < 0 or (isinstance(value, float) and value >= 1):
        raise argparse.ArgumentTypeError(f"expected a count such as 100, or a share such as 0.01, got {text!r}")
    return value


def add_allow(parser: Any) -> None:
    """Adds `--allow`."""
    parser.add_argument(
        "--allow", action="append", default=[], metavar="MODULE",
        help="module from which a configuration may import functions; may be repeated (default: none). Runs its code",
    )  # fmt: skip


def add_json(parser: Any) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")


def _add_storage(parser: Any) -> None:
    """Adds `--storage-option`, which every command has: `main` makes it the default of all URLs."""
    parser.add_argument(
        "--storage-option", type=named_value, action="append", metavar="NAME=VALUE",
        help="option of the object store's client, such as endpoint=http://host; may be repeated (default: credentials "
        "and endpoint from the environment)",
    )  # fmt: skip


def named_value(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE; the value is JSON, or else text.

    >>> named_value("thinking=false"), named_value("day=1 May")
    (('thinking', False), ('day', '1 May'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def add_texts(parser: Any) -> None:
    """Adds the options for files of text."""
    parser.add_argument("--field", default="text", metavar="NAME", help="field or column with the text (default: text)")
    by = ("file", "line", "paragraph")
    parser.add_argument("--by", choices=by, default="file", help="what a record of a text file is (default: file)")


def add_tokens(parser: Any) -> None:
    """Adds the options for token files that have no header."""
    parser.add_argument("--dtype", metavar="TYPE", help="dtype of the tokens in a raw .bin or .npy, such as uint16")
    parser.add_argument("--split-id", type=number(0), metavar="N", help="id that ends documents in a raw .bin or .npy")


def add_tokenizer(parser: Any, *, required: bool = False, what: str = "to decode with") -> None:
    """Adds `--tokenizer`."""
    parser.add_argument(
        "--tokenizer", "-t", metavar="T", required=required,
        help=f'tokenizer {what}: "bytes", a tokenizer.json, a folder, a .model, a tiktoken encoding or a hub name',
    )  # fmt: skip


def add_special(parser: Any) -> None:
    """Adds the options for special tokens."""
    parser.add_argument(
        "--add-special-tokens", action="store_const", const=True,
        help="keep what the tokenizer itself adds around a text: [CLS], [SEP], BOS (default: add nothing)",
    )  # fmt: skip
    parser.add_argument(
        "--allowed-special", action="append", metavar="TOKEN",
        help='tiktoken: text that spells this token becomes it; may be repeated; "all" for all (default: an error)',
    )  # fmt: skip
    parser.add_argument(
        "--disallowed-special", choices=("all", "none"), help="tiktoken: none makes such text ordinary text"
    )


def special_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_special` as arguments of `prepare`."""
    allowed, disallowed = args.allowed_special, args.disallowed_special
    return {
        "add_special_tokens": args.add_special_tokens,
        "allowed_special": "all" if allowed and "all" in allowed else allowed,
        "disallowed_special": () if disallowed == "none" else disallowed,
    }


def add_windows(parser: Any) -> None:
    """Adds the arguments of a training run: store, windows, batch and order."""
    parser.add_argument("store", metavar="STORE", help="token store, Megatron prefix, or .bin/.npy of tokens")
    parser.add_argument("--length", type=number(1), required=True, metavar="L", help="tokens in a window")
    parser.add_argument("--stride", type=number(1), metavar="S", help="tokens from window to window (default: L)")
    parser.add_argument("--batch", type=number(1), required=True, metavar="B", help="global batch size in windows")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)")
    parser.add_argument("--no-shuffle", action="store_true", help="keep windows in file order")
    parser.add_argument("--world", type=number(1), default=1, metavar="W", help="data-parallel ranks (default: 1)")
    add_tokens(parser)
