"""The `penstock` command: its subcommands and exit codes.

Exit codes: 0 success, 1 an error or damage found, 2 wrong usage, 130 Ctrl-C, 141 broken pipe. Importing this module
imports neither NumPy nor a framework, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from penstock._version import __version__
from penstock.cli import (
    bench,
    check,
    clean,
    completion,
    console,
    convert,
    dedup,
    diff,
    doctor,
    explain,
    info,
    merge,
    peek,
    plan,
    prepare,
    report,
    sample,
    split,
    stats,
    verify,
    view,
)
from penstock.core.errors import PenstockError

_ABOUT = "From raw text to training batches: prepare tokens, look at them, plan and check a run."
_EXAMPLES = """\
examples:
  penstock peek book.txt --max-length 256 --stride 128 --batch-size 4
  penstock prepare 'data/*.jsonl.gz' --tokenizer tokenizer.json --out corpus
  penstock plan corpus --length 1024 --batch 32
  penstock report corpus --out report.html

`penstock COMMAND --help` describes a command. Data goes to stdout, progress and notes to stderr.
"""

_COMMANDS = (
    prepare, convert, verify, info, stats, peek, sample, split, merge, dedup, diff, check, plan, explain, bench, report,
    view, doctor, clean, completion,
)  # fmt: skip


class _Usage(SystemExit):
    """The arguments are wrong: argparse's message, and the parser that says so."""

    def __init__(self, message: str, parser: argparse.ArgumentParser) -> None:
        super().__init__(2)
        self.message, self.parser = message, parser


class _Parser(argparse.ArgumentParser):
    """Raises where argparse prints and exits, so that `--json` can say it in JSON."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(message, self)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = _Parser(
        prog="penstock", description=_ABOUT, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for module in _COMMANDS:
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters the terminal cannot encode are escaped
            stream.reconfigure(errors="backslashreplace")
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        args = _parsed(parser(), argv)
    except _Usage as wrong:
        if as_json:
            console.json_error("usage", wrong.message, fix=f"{wrong.parser.prog} --help")
        else:
            console.usage(wrong.parser.format_usage(), f"{wrong.parser.prog}: error: {wrong.message}")
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _as_note
            code = _run(args)
            sys.stdout.flush()  # here, so that a broken pipe is caught below
            return code
    except PenstockError as error:
        console.error(error, as_json)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's flush at exit does not fail
        return 141
    except OSError as error:
        if as_json:
            console.json_error(type(error).__name__, str(error))
        else:
            console.note(f"{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        if hint := getattr(args, "interrupted", ""):
            console.note(hint)
        return 130


def _parsed(top: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an unknown option is an error of its command, which names the nearest one."""
    args, unknown = top.parse_known_args(argv)
    if unknown:
        _refuse(unknown, args.parser)
    return args


def _refuse(unknown: Sequence[str], command: argparse.ArgumentParser) -> NoReturn:
    known = re.findall(r"--[a-z-]+", command.format_help())
    near = [name for word in unknown for name in get_close_matches(word.partition("=")[0], known, 1)]
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _run(args: argparse.Namespace) -> int:
    """Runs the command; `--storage-option` holds for every URL that it reads or writes."""
    run: Callable[[argparse.Namespace], int] = args.run
    if not args.storage_option:
        return run(args)
    from penstock.storage import object_client

    with object_client.by_default(dict(args.storage_option)):
        return run(args)


def _as_note(message: Warning | str, *_: Any, **__: Any) -> None:
    console.note(str(message))


if __name__ == "__main__":
    sys.exit(main())
