"""`penstock peek`: shows the first records of a dataset, or with window options the first training windows.

Reading is in `first_rows.py`, which imports NumPy; this module must not, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_allow, add_json, add_texts, add_tokenizer, add_tokens, command, number

MAX_LENGTH, STRIDE, BATCH_SIZE = 256, 128, 4
_TEXT = 240
TEXT_BYTES = 16 << 20  # of text that is tokenised to show windows


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "peek", "show the first records, documents or training windows", run,
        more="With --max-length, --stride or --batch-size it shows windows: input, target and their text.",
        examples=[
            "data.jsonl",
            "corpus --tokenizer tokenizer.json --rows 3",
            "book.txt --tokenizer bytes --max-length 4 --stride 2 --batch-size 2",
        ],
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="PATH", help="files of text, records or media, token store, token files, or a dataset's name"
    )
    parser.add_argument("--split", default=None, metavar="NAME", help="split of a dataset: train, test, ...")
    parser.add_argument("--rows", "-n", type=number(1), default=5, metavar="N", help="number to show (default: 5)")
    add_tokenizer(parser, what="to encode and decode with")
    parser.add_argument("--max-length", type=number(1), metavar="L", help=f"tokens in a window (default: {MAX_LENGTH})")
    parser.add_argument("--stride", type=number(1), metavar="S", help=f"tokens between windows (default: {STRIDE})")
    parser.add_argument("--batch-size", type=number(1), metavar="B", help=f"windows in a batch (default: {BATCH_SIZE})")
    add_texts(parser)
    add_tokens(parser)
    add_allow(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Shows records, documents or windows."""
    from penstock.cli import first_rows
    from penstock.cli.inputs import decoder, is_name, open_texts, open_tokens
    from penstock.read.config import is_config
    from penstock.sources.formats import format_of

    if is_config(args.path):
        return _records(args, "pipeline", first_rows.of_config(args.path, args.rows, args.allow))
    if is_name(args.path):
        return _records(args, "named dataset", first_rows.named(args.path, args.split, args.rows))
    found = format_of(args.path, most=True)
    windows = any(v is not None for v in (args.max_length, args.stride, args.batch_size))
    if found.name == "mds" and windows and args.tokenizer is None:
        source = open_tokens(args.path, args.dtype, split=args.split)
        return _windows(args, source, None, complete=True)
    if found.kind == "tokens":
        first_rows.of_split(args.path, found, args.split)  # raises: they have no splits
        source = open_tokens(args.path, args.dtype, args.split_id)
        tokenizer = decoder(source, args.tokenizer)
        if windows:
            return _windows(args, source, tokenizer, complete=True)
        return _documents(args, source, first_rows.documents(source, tokenizer, args.rows))
    if windows:
        from penstock.sources.token_stream import first_tokens
        from penstock.tokenizers import as_tokenizer

        if args.tokenizer is None:
            console.note('no --tokenizer: using "bytes"')
        tokenizer = as_tokenizer(args.tokenizer or "bytes")
        texts = open_texts(first_rows.of_split(args.path, found, args.split), found.name, args.field, args.by)
        stream, complete = first_tokens(texts, tokenizer, TEXT_BYTES)
        return _windows(args, stream, tokenizer, complete)
    return _records(args, found.name, first_rows.records(args.path, found, args.by, args.split, args.rows))


def _records(args: argparse.Namespace, kind: str, found: list[dict[str, Any]]) -> int:
    if args.tokenizer is not None:
        from penstock.tokenizers import as_tokenizer

        tokenizer = as_tokenizer(args.tokenizer)
        for one in found:
            text = one.get("record", {}).get(args.field)
            if isinstance(text, str):
                one["ids"] = tokenizer.encode(text).tolist()
    if args.json:
        console.as_json({"path": args.path, "kind": kind, "records": found})
        return _code(found)
    for at, one in enumerate(found):
        console.out(f"record {at}  ({one['where']})")
        if "error" in one:
            for line in one["error"].splitlines():
                console.out(f"  !! {line}")
        else:
            console.table([(name, _value(value)) for name, value in one["record"].items()], indent="  ")
        if "ids" in one:
            console.table([("tokens", f"{len(one['ids']):,}"), ("ids", console.ids(one["ids"]))], indent="  ")
    return _code(found)


def _code(found: list[dict[str, Any]]) -> int:
    """The exit code: 1 if not one record could be shown."""
    if any("error" not in one for one in found):
        return 0
    console.note("no record could be read" if found else "there are no records")
    return 1


def _value(value: Any) -> str:
    from penstock.markup.visible import excerpt

    if isinstance(value, str):
        return f'"{excerpt(value, _TEXT)}"'
    if hasattr(value, "tolist"):
        value = value.tolist()
    return excerpt(str(value), _TEXT)


def _documents(args: argparse.Namespace, source: Any, found: list[dict[str, Any]]) -> int:
    if args.json:
        console.as_json({"path": args.path, "documents": len(source), "tokens": source.n_tokens, "rows": found})
        return 0
    console.out(f"{console.count(len(source), 'document')}, {console.count(source.n_tokens, 'token')}")
    for one in found:
        console.out(f"{one['where']}  ({console.count(one['tokens'], 'token')})")
        rows = [("ids", console.ids(one["ids"]))]
        console.table([*rows, ("text", _value(one["text"]))] if one["text"] is not None else rows, indent="  ")
    if any(one["text"] is None for one in found) and sys.stdout.isatty():
        console.note("--tokenizer T shows the text too")
    return 0


def _windows(args: argparse.Namespace, source: Any, tokenizer: Any, complete: bool) -> int:
    import numpy as np

    from penstock.pipeline import Pipeline
    from penstock.view.documents import decoded

    length, stride = args.max_length or MAX_LENGTH, args.stride or STRIDE
    size = args.batch_size or BATCH_SIZE
    rows = Pipeline(source).windows(length, stride).rows()
    columns = rows.read(np.arange(min(args.rows, len(rows))))
    found = []
    for i, (inputs, targets) in enumerate(zip(columns["input_ids"], columns["labels"], strict=True)):
        sides: dict[str, Any] = {"window": i, "start": i * stride, "input": inputs.tolist(), "target": targets.tolist()}
        texts = {"input_text": decoded(tokenizer, inputs), "target_text": decoded(tokenizer, targets)}
        found.append(sides | texts)
    facts = {
        "tokens": source.n_tokens, "max_length": length, "stride": stride, "overlap": max(0, length - stride),
        "windows": len(rows), "batch_size": size, "batches": len(rows) // size, "left_over": len(rows) % size,
        "batch_shape": [size, length], "whole_file": complete,
    }  # fmt: skip
    if args.json:
        console.as_json({"path": args.path} | facts | {"rows": found})
        return 0
    _show_windows(facts, found)
    return 0


def _show_windows(facts: dict[str, Any], found: list[dict[str, Any]]) -> None:
    length, stride, size = facts["max_length"], facts["stride"], facts["batch_size"]
    part = "" if facts["whole_file"] else " (of the beginning of the file: the rest was not read)"
    count = console.count
    windows = f"{count(facts['windows'], 'window')} of {count(length, 'token')}, {stride:,} apart{part}"
    console.out(f"{count(facts['tokens'], 'token')}, {windows}")
    console.out(
        f"{count(facts['batches'], 'batch')} of {size:,}: inputs [{size}, {length}] -> targets [{size}, {length}], "
        f"{count(facts['left_over'], 'window')} left over"
    )
    for one in found:
        console.out(f"window {one['window']}  (tokens {one['start']:,} to {one['start'] + length:,})")
        for name in ("input", "target"):
            text = one[f"{name}_text"]
            console.out(f"  {name:<6}  {console.ids(one[name])}" + ("" if text is None else f"  {_value(text)}"))
