"""The `penstock` command: its subcommands and exit codes.

Exit codes: 0 success, 1 an error or damage found, 2 wrong usage, 130 Ctrl-C, 141 broken pipe. Importing this module
imports neither NumPy nor a framework, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from penstock._version import __version__
from penstock.cli import bench, check, console, explain, info, peek, plan, prepare, report, verify
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


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="penstock", description=_ABOUT, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for module in (prepare, verify, info, peek, check, plan, explain, bench, report):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters the terminal cannot encode are escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _as_note
            code: int = args.run(args)
            sys.stdout.flush()  # here, so that a broken pipe is caught below
            return code
    except PenstockError as error:
        console.error(error)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's flush at exit does not fail
        return 141
    except OSError as error:
        console.note(f"{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        if hint := getattr(args, "interrupted", ""):
            console.note(hint)
        return 130


def _as_note(message: Warning | str, *_: Any, **__: Any) -> None:
    console.note(str(message))


if __name__ == "__main__":
    sys.exit(main())
