"""`penstock check`: tests the loaders that `create_dataloaders` builds from two files.

The checks are in `checks.py`, which imports NumPy; this module must not, so that `penstock --help` is fast.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_tokenizer, command, number

_SAMPLE = 1 << 18  # characters that are encoded separately, for comparison


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "check", "check the training and validation loaders of two files", run,
        more="Prints one line per check, ok or FAILED. Exit code 0: all checks passed; 1: some failed.",
        examples=["train.jsonl val.jsonl --tokenizer tokenizer/ --batch-size 16 --seq-length 128"],
    )  # fmt: skip
    parser.add_argument("train", metavar="TRAIN", help="JSONL or text file to train on")
    parser.add_argument("val", metavar="VAL", help="JSONL or text file to validate on")
    add_tokenizer(parser, required=True, what="to use")
    parser.add_argument("--batch-size", type=number(1), default=16, metavar="B", help="windows per batch (default: 16)")
    parser.add_argument("--seq-length", type=number(1), default=128, metavar="L", help="window length (default: 128)")
    parser.add_argument("--batches", type=number(1), default=3, metavar="N", help="batches to check (default: 3)")
    parser.add_argument("--field", default="text", metavar="NAME", help="field with the text (default: text)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)")
    parser.add_argument("--num-workers", type=number(0), default=0, metavar="N", help="threads (default: 0, automatic)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Builds the loaders and runs all checks on them."""
    from dataclasses import asdict

    from penstock.cli.checks import Subject, run_checks
    from penstock.facades.micro_transformer.dataset import create_dataloaders
    from penstock.tokenizers.resolve import as_encoded

    tokenizer = as_encoded(args.tokenizer)  # as TransformerDataset reads it

    def loaders() -> tuple[Any, Any]:
        return create_dataloaders(
            args.train, args.val, tokenizer, args.batch_size, args.seq_length, args.num_workers, field=args.field,
            seed=args.seed, rank=0, world=1,
        )  # fmt: skip

    pair = loaders()
    results = []
    for side, (name, path) in enumerate((("train", args.train), ("val", args.val))):
        subject = Subject(
            name, pair[side], _maker(pair[side], args, shuffled=side == 0), _stream(path, args.field, tokenizer),
            tokenizer.vocab_size, args.batch_size, args.seq_length, args.batches, shuffled=side == 0,
        )  # fmt: skip
        for result in run_checks(subject):
            results.append(result)
            if not args.json:
                console.out(f"{'ok    ' if result.ok else 'FAILED'}  {name:<5}  {result.check:<10}  {result.seen}")
    failed = sum(not result.ok for result in results)
    if args.json:
        console.as_json({"ok": not failed, "failed": failed, "checks": [asdict(result) for result in results]})
    else:
        console.out(f"{console.count(len(results), 'check')}, " + (f"{failed} FAILED" if failed else "all passed"))
    return 1 if failed else 0


def _maker(made: Any, args: argparse.Namespace, *, shuffled: bool) -> Any:
    """Returns a function that builds the same loader again, without tokenizing the file again."""
    from penstock.torch_data.windows import core_dataloader

    return lambda: core_dataloader(
        made.dataset, batch_size=args.batch_size, shuffle=shuffled, drop_last=shuffled, seed=args.seed,
        num_workers=args.num_workers, rank=0, world=1,
    )  # fmt: skip


def _stream(path: str, field: str, tokenizer: Any) -> Any:
    """Returns the first tokens of a file, encoded record by record and independent of the loaders' code."""
    import numpy as np

    from penstock.cli.inputs import open_texts

    parts, characters = [], 0
    for chunk in open_texts([path], "auto", field).iterate():
        for text in chunk.texts:
            parts.append(np.asarray(tokenizer.encode(text), np.int64))
            characters += len(text)
            if characters >= _SAMPLE:
                return np.concatenate(parts)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
