"""`penstock prepare`: tokenizes text files into a verified token store. It resumes after an interruption."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import console
from penstock.cli.arguments import (
    add_allow,
    add_json,
    add_special,
    add_tokenizer,
    budget,
    command,
    number,
    special_options,
)
from penstock.cli.prompts import add_prompt, as_options, asks_for_prompts, make_engine, open_records
from penstock.core.errors import BadRecords, PenstockError, RecordError, UsageError
from penstock.sources.formats import TEXT_FORMATS

if TYPE_CHECKING:
    from penstock.preparation.output import Output


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "prepare", "tokenise text files into a token store, once", run,
        more="Run again after an interruption, even kill -9, the same command resumes and writes the same bytes.",
        examples=[
            "book.txt --tokenizer bytes --out corpus",
            "'data/*.jsonl.gz' --tokenizer tokenizer.json --out corpus",
            "chats.jsonl --prompt chat --mask assistant --tokenizer model/ --out tuning",
            "'s3://bucket/raw/*.jsonl' --tokenizer gpt2/ --out s3://bucket/corpus",
            "'s3://bucket/raw/*.jsonl' --tokenizer gpt2/ --out s3://bucket/corpus --on ray --address auto",
            "data/ --format parquet --field content --tokenizer gpt2/ --out corpus --on-error skip --budget 0.01",
        ],
    )  # fmt: skip
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders, globs or URLs")
    add_tokenizer(parser, required=True, what="to use")
    parser.add_argument("--out", "-o", required=True, metavar="DIR", help="folder or URL of the store")
    parser.add_argument(
        "--format", choices=("auto", *TEXT_FORMATS), default="auto", help="of the files (default: by their names)"
    )
    parser.add_argument("--field", metavar="NAME", help="field or column with the text (default: text)")
    parser.add_argument(
        "--keep", type=_names, default=(), metavar="A,B",
        help="columns that stay in the store beside the tokens, or all (default: none)",
    )  # fmt: skip
    by = ("file", "line", "paragraph")
    parser.add_argument("--by", choices=by, help="what a document of a text file is (default: file)")
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--eos", dest="eos", action="store_const", const=True, help="end documents with the end token (default)"
    )
    end.add_argument("--no-eos", dest="eos", action="store_const", const=False, help="add nothing")
    end.add_argument("--eos-id", dest="eos_id", type=number(0), metavar="N", help="end documents with this id")
    add_special(parser)
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="at a bad record (default: raise)"
    )
    parser.add_argument(
        "--budget", type=budget, metavar="N", help="most records to skip: a count, or a share like 0.01"
    )
    parser.add_argument("--engine", choices=("auto", "reference"), help="encoder to use (default: auto)")
    parser.add_argument("--threads", type=number(1), metavar="N", help="threads (default: one per core)")
    parser.add_argument("--shard-tokens", type=number(1), metavar="N", help="tokens in a shard file, at least")
    parser.add_argument(
        "--group-bytes", type=number(1), metavar="N", help="input of a group of shards (default: 256 MiB)"
    )
    parser.add_argument(
        "--single-writer", action="store_true",
        help="nothing else writes to DIR: needed if it is an object store that ignores conditional puts",
    )  # fmt: skip
    parser.add_argument("--on", choices=("ray",), help="work on a Ray cluster; all nodes must see PATH and DIR")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of the cluster, or auto (default: RAY_ADDRESS, or start one here)"
    )
    parser.add_argument("--restart", action="store_true", help="start over, replacing the content of DIR")
    parser.add_argument(
        "--no-verify", dest="verify", action="store_false", help="do not read the store again at the end"
    )
    parser.add_argument("--progress", action="store_true", help="show the bar even when stderr is not a terminal")
    parser.add_argument("--quiet", "-q", action="store_true", help="no bar and no notes")
    add_prompt(parser)
    add_allow(parser)
    add_json(parser)
    parser.set_defaults(interrupted="interrupted; run the same command again to resume")


def run(args: argparse.Namespace) -> int:
    """Prepares and verifies the store and prints a summary."""
    from penstock.cli.inputs import open_texts
    from penstock.preparation.output import Output, checked_place

    show = False if args.quiet else True if args.progress else None
    if args.quiet:
        args.interrupted = ""
    try:
        out = Output(checked_place(args.out), dict(args.storage_option or []))
    except UsageError as error:
        error.expected = error.expected.replace("out:", "--out:")
        raise
    prompts = asks_for_prompts(args)
    if prompts and args.keep != ():
        raise UsageError("--keep without --prompt", got="both", fix="leave --keep out, or prepare the plain texts")
    settings = {} if args.on_error == "raise" else {"on_error": args.on_error}
    settings |= {} if args.budget is None else {"budget": args.budget}
    source = (
        open_records(args)
        if prompts
        else open_texts(
            args.paths, args.format, args.field or "text", args.by or "file", keep=args.keep, allow=args.allow,
            settings=settings,
        )
    )  # fmt: skip
    facts = source.describe()
    if not args.quiet:
        _announce(facts, out, args.restart)
    try:
        made = _prepare(args, source, out.place, show, settings)
    except PenstockError as error:
        raise _with_options(error, prompts) from error.__cause__
    result = made.to_json() | {"source_bytes": int(facts.get("bytes") or 0), "verified": False}
    if made.skipped:
        from penstock.view.skipped import read_skipped

        kept = None if out.remote else read_skipped(Path(out.place))
        result |= {"skipped_list": out.path("skipped.jsonl"), "reasons": kept.reasons if kept else made.reasons}
    if args.verify:
        _verify(out, made.bytes, show)
        result["verified"] = True
    return console.result(args, result, _summary)


def _names(text: str) -> list[str] | None:
    """The names of columns in `A,B`; None for "all"."""
    return None if text == "all" else [name for name in text.split(",") if name]


def _prepare(args: argparse.Namespace, source: Any, out: str, show: bool | None, settings: dict[str, Any]) -> Any:
    from penstock.preparation.prompts import prepare_prompts
    from penstock.preparation.run import prepare

    common = {"on_error": args.on_error, "budget": args.budget, "show_progress": show, "restart": args.restart}
    common |= settings
    common |= {"storage_options": dict(args.storage_option or []) or None, "single_writer": args.single_writer}
    common |= {"cluster": args.on, "address": args.address}
    common |= {name: getattr(args, name) for name in ("shard_tokens", "group_bytes") if getattr(args, name) is not None}
    if asks_for_prompts(args):
        return prepare_prompts(source, make_engine(args), out, **common)
    eos = args.eos_id if args.eos_id is not None else args.eos is not False
    options = {"eos": eos, "engine": args.engine or "auto", "threads": args.threads}
    return prepare(source, args.tokenizer, out, **options, **common, **special_options(args))


def _with_options(error: PenstockError, prompts: bool) -> PenstockError:
    """The error with its advice in the words of the command line; a bad record can be left out."""
    if prompts or isinstance(error, RecordError | BadRecords):
        error = as_options(error)
    if isinstance(error, RecordError | BadRecords) and "--on-error" not in error.fix:
        error.fix += ("; " if error.fix else "") + "or --on-error skip leaves such records out and lists them"
    return error


def _announce(facts: dict[str, Any], out: Output, restart: bool) -> None:
    from penstock.preparation.journal import written

    count = facts["files"]
    console.note(f"{console.count(count, 'file')} of {facts['kind']}, {console.size(facts.get('bytes') or 0)}")
    done = 0 if restart else written(out)
    if done:
        console.note(f"resuming in {out.place}: {console.count(done, 'shard')} already written")


def _verify(out: Output, size: int, show: bool | None) -> None:
    from penstock.core.progress import progress
    from penstock.store.verify import verify

    with progress(size, "B", "verifying", show) as bar:
        report = verify(out.place, lambda done, _: bar.update(done - bar.done), out.options or None)
    report.raise_first()


def _summary(result: dict[str, Any]) -> None:
    tokens, source = result["tokens"], result["source_bytes"]
    rows: list[tuple[str, Any]] = [
        ("store", result["path"]),
        ("id", result["id"]),
        ("documents", result["documents"]),
        ("tokens", tokens),
        ("file bytes per token", round(source / tokens, 3) if tokens and source else None),
        ("size", f"{console.size(result['bytes'])} in {console.count(result['shards'], 'shard')}"),
    ]
    if result["already"]:
        rows.append(("work", "none: the same store already exists"))
    else:
        rate = result["text_bytes"] / 1e6 / max(result["seconds"], 1e-9)
        resumed = ", resumed after an interruption" if result["resumed"] else ""
        rows += [("engine", result["engine"]), ("work", f"{result['seconds']:.2f} s, {rate:.1f} MB/s{resumed}")]
    rows.append(("verified", "every byte" if result["verified"] else "no (--no-verify)"))
    if result["skipped"]:
        rows.append(("skipped", f"{console.count(result['skipped'], 'record')}, listed in {result['skipped_list']}"))
        rows += [(f"  {count:,}", f"expected {reason}") for reason, count in result["reasons"].items()]
    console.table(rows)
