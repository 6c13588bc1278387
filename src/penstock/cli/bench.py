"""`penstock bench`: how fast a store feeds a trainer on this machine, beside one bare NumPy gather."""

from __future__ import annotations

import argparse
import time
from typing import Any

from penstock.cli import say
from penstock.cli.arguments import add_json, add_windows, command, number, seconds

_HELD_TOKENS = 1 << 25  # in memory for the bare gather
_WARM = 3


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "bench", "measure tokens a second of the loader beside one bare NumPy gather", run,
        examples=["corpus --length 1024 --batch 32", "corpus --length 1024 --batch 32 --to torch --seconds 10"],
    )  # fmt: skip
    add_windows(parser)
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="T", help="for each measurement (default: 3)")
    parser.add_argument("--to", choices=("numpy", "torch", "jax"), default="numpy", help="arrays of (default: numpy)")
    parser.add_argument("--threads", type=number(0), metavar="N", help="loader threads (default: it decides)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measures both and compares."""
    from penstock.cli.inputs import open_tokens
    from penstock.view.training_run import pipeline

    source = open_tokens(args.store, args.dtype, args.split_id)
    made = pipeline(
        source, args.length, args.stride, args.batch, seed=args.seed, shuffle=not args.no_shuffle, world=args.world
    )
    loader = getattr(made, f"to_{args.to}")(threads=args.threads)
    rows = args.batch // args.world
    say.note(f"measuring the loader for {args.seconds:g} s, then a bare gather for as long")
    batches, took = _loader(loader, args.seconds, args.to)
    bare = _bare(source, args.length, rows, args.seconds)
    rate = batches * rows * args.length / took
    facts: dict[str, Any] = {
        "store": args.store, "to": args.to, "length": args.length, "rows": rows, "batches": batches,
        "seconds": round(took, 4), "tokens_per_second": round(rate),
        "microseconds_per_batch": round(took / batches * 1e6, 1),
        "bare_gather_tokens_per_second": round(bare), "share_of_bare_gather": round(rate / bare, 4),
        "stage_seconds": loader.stats()["stage_seconds"],
    }  # fmt: skip
    facts["verdict"] = _verdict(took / batches)
    if args.json:
        say.as_json(facts)
    else:
        _show(facts)
    return 0


def _loader(loader: Any, limit: float, to: str) -> tuple[int, float]:
    """Batches taken and seconds spent, over as many epochs as it takes; the first few batches open files."""
    taken, began = -_WARM, time.perf_counter()
    while True:
        for batch in loader:
            if to == "jax":
                for array in batch.values():
                    array.block_until_ready()
            taken += 1
            if taken == 0:
                began = time.perf_counter()
            took = time.perf_counter() - began
            if taken > 0 and took >= limit:
                return taken, took


def _bare(source: Any, length: int, rows: int, limit: float) -> float:
    """Tokens a second of fancy indexing into an array in memory, made int64 inputs and labels: nothing else."""
    import numpy as np

    from penstock.core import randomness

    held = source.gather(np.array([0]), min(source.n_tokens, _HELD_TOKENS))[0]
    windows = np.lib.stride_tricks.sliding_window_view(held, length + 1)
    draws = randomness.integers(
        randomness.keys(randomness.key("bench"), np.arange(rows * 64)), 0, len(windows)
    ).reshape(64, rows)
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < limit or not count:
        cut = windows[draws[count % 64]]
        _ = cut[:, :-1].astype(np.int64), cut[:, 1:].astype(np.int64)
        count += 1
    return count * rows * length / took


def _verdict(one: float) -> str:
    if one <= 50e-6:
        return f"a batch takes {one * 1e6:.0f} us: the loader will not show up in a training run"
    return f"a batch takes {one * 1e3:.2f} ms: a training step of {one * 1e5:.0f} ms or more waits under 1% of its time"


def _show(facts: dict[str, Any]) -> None:
    rate, bare = facts["tokens_per_second"] / 1e6, facts["bare_gather_tokens_per_second"] / 1e6
    say.table(
        [
            ("loader", f"{rate:,.1f} M tokens/s to {facts['to']} ({facts['batches']:,} batches)"),
            ("bare NumPy gather", f"{bare:,.1f} M tokens/s"),
            ("share", f"{facts['share_of_bare_gather']:.0%} of the bare gather"),
        ]
    )
    spent = facts["stage_seconds"]
    total = sum(spent.values()) or 1.0
    say.out("stages")
    say.table([(n, f"{s / facts['batches'] * 1e6:8.1f} us a batch  {s / total:4.0%}") for n, s in spent.items()], "  ")
    say.out(facts["verdict"])
