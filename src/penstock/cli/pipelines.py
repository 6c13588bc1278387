"""The pipeline of any paths of the command line, and its rows as files: for `sample`, `split`, `merge`, `dedup`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokens, number
from penstock.core.errors import FileMissing, UsageError
from penstock.core.os_errors import temporary_errors

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

FORMATS = ("jsonl", "parquet", "arrow", "webdataset", "store")
STDIN = "-"


def add_input(parser: Any) -> None:
    """Adds the arguments that say what to read."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+",
        help="files, folders or URLs of text, records, images, audio or tokens, a dataset's name, a configuration, or "
        "- for what comes on stdin",
    )  # fmt: skip
    parser.add_argument("--field", default="text", metavar="NAME", help="field or column with the text (default: text)")
    parser.add_argument(
        "--by", choices=("file", "line", "paragraph"),
        help="what a record of a text file is (default: a line of one file, or of stdin; else a file)",
    )  # fmt: skip
    parser.add_argument("--split-name", metavar="NAME", help="split of a dataset that has splits: train, test, ...")
    add_tokens(parser)


def add_output(parser: Any, *, required: bool = True) -> None:
    """Adds the arguments that say where the rows go."""
    parser.add_argument("--out", "-o", metavar="DIR", required=required, help="folder or URL of the result")
    parser.add_argument(
        "--format", choices=FORMATS,
        help="of the result (default: a store for tokens, webdataset for images, audio and tar, jsonl for the rest)",
    )  # fmt: skip
    parser.add_argument(
        "--shard-rows", type=number(1), default=10_000, metavar="N", help="rows of a file (default: 10,000)"
    )
    parser.add_argument("--restart", action="store_true", help="replace what was written there before")
    parser.add_argument("--single-writer", action="store_true", help="nothing else writes to the URL DIR")
    add_quiet(parser)
    add_json(parser)


def add_quiet(parser: Any) -> None:
    """Adds `--progress` and `--quiet`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--progress", action="store_true", help="show progress also where there is no terminal")
    group.add_argument("--quiet", action="store_true", help="no progress")


def shows(args: argparse.Namespace) -> bool | None:
    """The argument `show_progress` of verbs."""
    return True if args.progress else False if args.quiet else None


@contextmanager
def opened(args: argparse.Namespace, paths: Sequence[str]) -> Iterator[tuple[Pipeline, str]]:
    """Yields the pipeline of some paths, read as one dataset, and the format in which its rows are best written."""
    if STDIN not in paths:
        yield _open(args, list(paths))
        return
    if list(paths) != [STDIN]:
        raise UsageError("- alone, or paths", got=" ".join(paths), fix="cat the files into the command instead")
    if sys.stdin.isatty():
        console.note("reading stdin; end it with Ctrl-D")
    with temporary_errors("what comes from stdin"):
        folder = tempfile.mkdtemp(prefix="penstock-stdin-")
    try:
        path = os.path.join(folder, "stdin")
        with temporary_errors("what comes from stdin"), open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        if not os.path.getsize(path):
            raise UsageError("records on stdin", got="nothing", fix="cat data.jsonl | penstock sample - -n 5")
        yield _open(args, [path])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(args: argparse.Namespace, paths: list[str]) -> tuple[Pipeline, str]:
    from penstock.cli import first_rows
    from penstock.cli.inputs import is_name, open_tokens
    from penstock.pipeline import Pipeline
    from penstock.read.config import from_config, is_config
    from penstock.sources.formats import DATASETS, Options, format_of
    from penstock.view.targets import MEDIA, open_media

    path = paths[0] if len(paths) == 1 else ""
    if path and is_config(path):
        return from_config(path), "jsonl"
    if path and is_name(path):
        return _named(path, args.split_name), "jsonl"
    found = format_of(path or paths, most=True)
    if found.kind == "tokens" and path:
        return Pipeline(open_tokens(path, args.dtype, args.split_id)), "store"
    if path:
        paths = first_rows.of_split(path, found, args.split_name)
    if found.name in MEDIA:
        return Pipeline(open_media(paths, found)), "webdataset"
    by = args.by or ("line" if path and os.path.isfile(path) else "file")
    options = Options(field=args.field, by=by, every_field=True, split=args.split_name or "train")
    return Pipeline(found.open(paths[0] if found in DATASETS else paths, options)), "jsonl"


def _named(name: str, split: str | None) -> Pipeline:
    from penstock.facades.capibara.resolve import resolve_dataset
    from penstock.pipeline import Pipeline

    try:
        found = resolve_dataset(name, every_field=True, **({"split": split} if split else {}))
    except UsageError as error:
        raise FileMissing(f"a path, or the name of a dataset: {error.expected}", got=error.got, where=name,
                          fix="check the path; ls shows what is there") from None  # fmt: skip
    if not isinstance(found, Pipeline):
        raise UsageError(
            "a dataset with a length", got="a stream", where=name, fix="download it: datasets.load_dataset"
        )
    return found


def written(args: argparse.Namespace, pipeline: Pipeline, usual: str, out: str) -> dict[str, Any]:
    """Writes the rows of a pipeline and returns what was written."""
    to: Any = args.format or usual
    made = pipeline.write(
        out, to, shard_rows=args.shard_rows, restart=args.restart, show_progress=shows(args),
        single_writer=args.single_writer,
    )  # fmt: skip
    return {"path": made.path, "format": made.format, "rows": made.rows, "files": made.files, "bytes": made.bytes}


def show_written(found: dict[str, Any]) -> str:
    """One line about what was written."""
    files = console.count(found["files"], "file")
    how = f"{found['format']}, {files}, {console.size(found['bytes'])}"
    return f"{console.count(found['rows'], 'row')} in {found['path']} ({how})"
