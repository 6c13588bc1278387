"""`penstock report`: writes one self-contained HTML page about data, a pipeline or a run."""

from __future__ import annotations

import argparse
import os
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_texts, add_tokenizer, add_tokens, command, number
from penstock.core.errors import DataError

_ROWS = 4  # of the batch that are shown; pictures: 12


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "report", "write one HTML page: facts, lengths, samples, plan, a batch, a run", run,
        more="The page is one file without scripts, fonts or network requests.",
        examples=[
            "corpus --out report.html --tokenizer tokenizer.json", "data.jsonl --out report.html",
            "photos/ --out report.html", "corpus --run run.jsonl --step 4820 --out spike.html --png figures",
        ],
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="TARGET",
        help="token store, token files, text, JSONL or Parquet files, folder of images or audio, configuration, or "
        "snapshots of a run",
    )  # fmt: skip
    parser.add_argument("--out", "-o", required=True, metavar="HTML", help="file to write")
    add_tokenizer(parser)
    parser.add_argument("--samples", type=number(0), default=8, metavar="N", help="documents to show (default: 8)")
    parser.add_argument(
        "--length", type=number(1), default=1024, metavar="L", help="window of the plan (default: 1024)"
    )
    parser.add_argument("--batch", type=number(1), default=32, metavar="B", help="batch of the plan (default: 32)")
    parser.add_argument("--step", type=number(0), default=0, metavar="N", help="step whose batch is shown (default: 0)")
    parser.add_argument(
        "--run", dest="runs", action="append", default=[], metavar="FILE", help="snapshots of a run; may be repeated"
    )
    parser.add_argument("--png", metavar="FOLDER", help="also write the figures as PNG files (extra: png)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses the samples (default: 0)")
    add_texts(parser)
    add_tokens(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Collects the data, writes the page and prints its path."""
    from penstock.core.local_files import atomic_write
    from penstock.core.optional import need
    from penstock.storage.filesystem import local_only

    out = local_only(args.out, "--out")
    folder = None if args.png is None else local_only(args.png, "--png")
    if folder is not None:
        need("resvg_py", extra="png", purpose="for --png")
    html, documents, skipped = _page(args)
    data = html.encode("utf-8", "backslashreplace")
    atomic_write(out, data)
    pictures = 0 if folder is None else _write_pictures(html, folder)
    if args.json:
        found = {"out": args.out, "bytes": len(data), "documents": documents, "skipped": skipped}
        console.as_json(found if folder is None else found | {"pictures": pictures})
    else:
        about = "" if documents is None else f", {console.count(documents, 'document')}"
        more = "" if folder is None else f", {console.count(pictures, 'picture')} in {args.png}"
        console.out(f"{args.out}: {console.size(len(data))}{about}{more}")
    return 0


def _page(args: argparse.Namespace) -> tuple[str, int | None, int]:
    """The page, the number of documents and of skipped records."""
    from penstock.cli.inputs import decoder, open_texts, open_tokens
    from penstock.pipeline import Pipeline
    from penstock.read.config import from_config, is_config
    from penstock.sources.formats import Options, format_of
    from penstock.view import collect
    from penstock.view.page import frame, page
    from penstock.view.pages.data import overview
    from penstock.view.report import parts_of
    from penstock.view.run_facts import run_paths
    from penstock.view.session import open_session
    from penstock.view.targets import FOLDERS

    runs = [one for path in args.runs for one in _runs(path)]
    own = run_paths(args.path)
    name = os.path.basename(args.path.rstrip("/")) or args.path
    chosen: dict[str, Any] = {"batch": args.batch, "step": args.step, "rows": _ROWS, "runs": [*own, *runs]}
    if own:
        return frame(name, parts_of(None, **chosen).html), None, 0
    if is_config(args.path):
        parts = parts_of(from_config(args.path), **chosen, tokenizer=args.tokenizer)
        return frame(name, parts.html, parts.media), None, 0
    found = format_of(args.path, most=True)
    if found.name in FOLDERS:
        pipeline = _media(args.path, found)
        chosen["rows"] = 12 if found.name == "images" else _ROWS
        parts = parts_of(pipeline, **chosen)
        body = overview(open_session(args.path)) + parts.html
        return frame(name, body, parts.media), len(pipeline.rows()), 0
    if found.kind == "tokens":
        source = open_tokens(args.path, args.dtype, args.split_id)
        tokenizer = decoder(source, args.tokenizer)
        facts = collect.of_tokens(
            args.path, source, tokenizer, samples=args.samples, seed=args.seed, length=args.length, batch=args.batch
        )
        pipeline = Pipeline(source).windows(args.length).shuffle(args.seed).batch(args.batch)
    else:
        source = open_texts([args.path], found.name, args.field, args.by)
        facts = collect.of_texts(args.path, source, samples=args.samples, seed=args.seed)
        pipeline, tokenizer = Pipeline(found.open([args.path], Options(field=args.field, by=args.by))), None
    if not facts.documents:
        raise _nothing(args.path, facts.skipped)
    parts = parts_of(pipeline, **chosen, tokenizer=tokenizer)
    return page(facts, parts.html), facts.documents, facts.skipped.total


def _runs(path: str) -> tuple[str, ...]:
    from penstock.view.run_facts import run_paths

    found = run_paths(path)
    if not found:
        raise DataError(
            "snapshots that loader.write_snapshots(path) wrote", where=path, fix="name such a file in --run"
        )
    return found


def _media(path: str, found: Any) -> Any:
    """A pipeline of small pictures or of sounds."""
    from penstock.pipeline import Pipeline
    from penstock.view.targets import open_media

    pipeline = Pipeline(open_media([path], found))
    return pipeline.decode_images(128) if found.name == "images" else pipeline.decode_audio(16000)


def _write_pictures(html: str, folder: str) -> int:
    from penstock.core.local_files import atomic_write, writing
    from penstock.markup.pictures import charts_of, png_of

    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    charts = charts_of(html)
    for name, svg in charts:
        atomic_write(os.path.join(folder, f"{name}.png"), png_of(svg))
    return len(charts)


def _nothing(path: str, skipped: Any) -> DataError:
    """The error for data of which nothing can be shown; a page about it would be empty."""
    first = skipped.entries[0] if skipped.entries else {}
    return DataError(
        first.get("reason") or "at least one document",
        got=f"{first['detail']} (and so in {skipped.total:,} records)" if first else "none",
        where=first.get("file") or path,
        fix="--field NAME names the field that holds the text; `penstock peek` shows the records",
    )
