"""`penstock plan`: the size and cost of a training run without running it, of data or of numbers alone."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_allow, add_json, add_tokens, amount, command, number, seconds
from penstock.core.errors import UsageError

_ASSUMED = (
    ("latency", "seconds from a request to its first byte"),
    ("bandwidth", "bytes per second and host"),
    ("in-flight", "concurrent requests of a host"),
    ("get-price", "dollars for 1,000 GET requests"),
    ("egress-price", "dollars for 1 GB that leaves the region"),
    ("page-bytes", "bytes fetched and verified at once; a store has its own"),
    ("gap-bytes", "unused bytes that one request may read over"),
    ("get-bytes", "the longest request"),
    ("cache-bytes", "cache of a host"),
    ("fetch-steps", "steps whose pages are merged into requests together"),
    ("lookahead-steps", "steps fetched ahead, at least"),
    ("lookahead-seconds", "seconds fetched ahead, at least"),
    ("block-bytes", "bytes of a block of consecutive records, for blocks and lanes"),
    ("window-blocks", "blocks shuffled together, of each lane"),
    ("shard-bytes", "bytes of an object, where no store says it"),
    ("sample-bytes", "bytes of a record, where no source says it"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "plan", "show the size and cost of a training run: steps, drops, requests, cache, dollars", run,
        more="Takes a token store or files, or numbers alone. Reads no records. Estimates print what they assume.",
        examples=[
            "corpus --length 1024 --batch 32",
            "corpus --pack 4096 --batch 256 --world 64 --epochs 3 --json",
            "images --batch 1024 --world 64 --step-seconds 0.3",
            "--samples 1e12 --sample-bytes 2050 --batch 1e6 --world 1e5 --step-seconds 2 --gpu-price 2",
            "--tokens 5e12 --length 4096 --batch 4096 --world 512 --hosts 64",
        ],
    )  # fmt: skip
    parser.add_argument("paths", nargs="*", metavar="PATH", help="token store, token files, or files of records")
    _add_rows(parser)
    _add_run(parser)
    for name, text in _ASSUMED:
        parser.add_argument(f"--{name}", type=amount, metavar="X", help=text)
    add_tokens(parser)
    add_allow(parser)
    add_json(parser)


def _add_rows(parser: Any) -> None:
    rows = parser.add_argument_group("rows")
    rows.add_argument("--length", "--window", type=number(1), metavar="L", help="windows of L tokens")
    rows.add_argument("--stride", type=number(1), metavar="S", help="tokens from window to window (default: L)")
    rows.add_argument("--pack", type=number(1), metavar="L", help="documents packed into rows of L tokens")
    rows.add_argument("--pad", type=number(1), metavar="L", help="documents padded or cut to L tokens")
    rows.add_argument("--batch-tokens", type=number(1), metavar="N", help="batches of at most N tokens, not --batch")
    rows.add_argument("--samples", type=number(1), metavar="N", help="no data: N samples, of --sample-bytes each")
    rows.add_argument("--tokens", type=number(1), metavar="N", help="no data: N tokens, in windows of --length")
    rows.add_argument("--token-bytes", type=number(1), default=2, metavar="B", help="bytes of a token (default: 2)")


def _add_run(parser: Any) -> None:
    run = parser.add_argument_group("run")
    run.add_argument("--batch", type=number(1), metavar="B", help="global batch size in rows")
    run.add_argument("--world", type=number(1), metavar="W", help="data-parallel ranks (default: 1)")
    run.add_argument("--hosts", type=number(1), metavar="H", help="hosts (default: one for 8 ranks)")
    run.add_argument("--epochs", type=number(1), default=1, metavar="E", help="passes over the data (default: 1)")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)")
    run.add_argument("--no-shuffle", action="store_true", help="keep rows in file order")
    run.add_argument("--step-seconds", type=seconds, metavar="S", help="time of a training step, for rates and advice")
    run.add_argument("--gpu-price", type=amount, metavar="D", help="dollars per GPU and hour; a rank is a GPU")


def run(args: argparse.Namespace) -> int:
    """Computes and prints the figures."""
    from penstock.plan.estimate import Run, estimate_numbers, estimate_pipeline
    from penstock.plan.estimate_text import text
    from penstock.plan.order_choices import Order

    chosen = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name, _ in _ASSUMED}
    assume = {name: value for name, value in chosen.items() if value is not None}
    size = Run(args.batch, args.world, args.hosts, args.epochs, args.step_seconds, args.gpu_price)
    if not args.paths:
        _only_numbers(args)
        found = estimate_numbers(
            size, samples=args.samples, tokens=args.tokens, length=args.length, stride=args.stride,
            token_bytes=args.token_bytes, order=Order("file order" if args.no_shuffle else "global"), assume=assume,
        )  # fmt: skip
        return console.result(args, found.to_json(), lambda _: console.lines(str(found)))
    if args.samples is not None or args.tokens is not None:
        raise UsageError("paths, or --samples or --tokens", got="both", fix="leave one of them out")
    pipeline, source = _pipeline(args)
    found = estimate_pipeline(pipeline.definition, size, assume)
    facts, first = {"store": args.paths[0]} | found.to_json(), ()
    if args.length is not None:
        facts, first = _windows(args, source, facts, found.world)
    return console.result(args, facts, lambda _: console.lines(text(found, first)))


def _only_numbers(args: argparse.Namespace) -> None:
    for name in ("pack", "pad", "batch_tokens"):
        if getattr(args, name) is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"data with {option}, which depends on lengths", got="no path", fix="use --tokens and --length"
            )
    if args.samples is None and args.tokens is None:
        raise UsageError("a path, --samples N or --tokens N", got="none of them", where="penstock plan")
    if args.samples is not None and args.length is not None:
        raise UsageError("--tokens with --length, or --samples alone", got="--samples and --length")


def _pipeline(args: argparse.Namespace) -> tuple[Any, Any]:
    """The pipeline of the options, and the token source, if it is one."""
    from penstock.cli.inputs import open_tokens
    from penstock.pipeline import Pipeline
    from penstock.read.config import from_config, is_config
    from penstock.sources.formats import format_of

    if len(args.paths) == 1 and is_config(args.paths[0]):
        return from_config(args.paths[0], allow_functions=args.allow), None
    kinds = [name for name in ("length", "pack", "pad", "batch_tokens") if getattr(args, name) is not None]
    if len(kinds) > 1:
        raise UsageError("one of --length, --pack, --pad and --batch-tokens", got=" and ".join(kinds))
    if args.batch is None and args.batch_tokens is None:
        raise UsageError("a batch size", got="none", where="penstock plan", fix="--batch 1024")
    if kinds or format_of(args.paths, most=True).kind == "tokens":
        if len(args.paths) > 1:
            raise UsageError("one path of tokens", got=f"{len(args.paths)} paths", fix="plan them one by one")
        source = open_tokens(args.paths[0], args.dtype, args.split_id)
        pipeline = Pipeline(source)
    else:
        source, pipeline = None, _records(args.paths)
    if args.length is not None:
        pipeline = pipeline.windows(args.length, args.stride)
    if args.pack is not None:
        pipeline = pipeline.pack(args.pack)
    if not args.no_shuffle:
        pipeline = pipeline.shuffle(args.seed)
    if args.batch_tokens is not None:
        return pipeline.batch_tokens(args.batch_tokens, overlong="truncate"), source
    if args.pad is not None:
        pipeline = pipeline.batch(args.batch).pad(args.pad, truncate=True)
    return pipeline, source


def _records(paths: list[str]) -> Any:
    """Files of records as a pipeline, without decoding."""
    from penstock import read
    from penstock.pipeline import Pipeline
    from penstock.sources.formats import Options, format_of

    found = format_of(paths, most=True)
    if found.name == "tar":
        return read.read_tar(paths, index=None)
    if found.name in ("images", "audio"):
        if len(paths) > 1:
            raise UsageError(f"one folder of {found.title}", got=f"{len(paths)} paths")
        return read.read_images(paths[0], labels=None) if found.name == "images" else read.read_audio(paths[0])
    if found.name == "mds":
        return read.read_mds(paths)
    if not found.one_pass and len(paths) > 1:
        raise UsageError(f"one path of {found.title}", got=f"{len(paths)} paths", fix="plan them one by one")
    return Pipeline(found.open(paths if found.one_pass else paths[0], Options(every_field=True)))


def _windows(args: argparse.Namespace, source: Any, facts: dict[str, Any], world: int) -> tuple[dict[str, Any], Any]:
    """The figures of windows over a store: which tokens an epoch does not see, and what a batch takes."""
    from penstock.view.training_run import figures

    more = figures(
        source, args.length, args.stride, args.batch, seed=args.seed, shuffle=not args.no_shuffle, world=world,
        epochs=args.epochs,
    )  # fmt: skip
    share = more["tokens_not_seen_in_epoch_0"] / max(1, more["tokens"])
    seed = "" if more["seed"] is None else f", seed {more['seed']}"
    lines = (
        ("tokens", f"{more['tokens']:,} in {console.count(more['documents'], 'document')}"),
        ("windows", f"{more['windows']:,} of {console.count(more['length'], 'token')}, {more['stride']:,} apart"),
        (
            "tokens not seen",
            f"{more['tokens_not_seen_in_epoch_0']:,} ({share:.3%}), neither input nor label in an epoch",
        ),
        ("a token is input", f"{more['times_a_token_is_input']:g} times per epoch"),
        ("bytes per batch", f"{console.size(more['bytes_per_batch'])} on each rank (int64 inputs and labels)"),
        ("order", more["shuffle"] + seed),
        ("fingerprint", more["fingerprint"]),
    )
    return {"store": args.paths[0]} | more | facts, lines
