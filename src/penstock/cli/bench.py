"""`penstock bench`: the loader's throughput on this machine, compared with a bare NumPy gather."""

from __future__ import annotations

import argparse
import time
from typing import Any

from penstock.cli import console
from penstock.cli.arguments import add_json, add_windows, command, number, seconds

_MEMORY_TOKENS = 1 << 25  # loaded for the bare gather
_WARMUP_BATCHES = 3


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "bench", "measure tokens per second of the loader and of a bare NumPy gather", run,
        examples=["corpus --length 1024 --batch 32", "corpus --length 1024 --batch 32 --to torch --seconds 10"],
    )  # fmt: skip
    add_windows(parser)
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="T", help="per measurement (default: 3)")
    parser.add_argument("--to", choices=("numpy", "torch", "jax"), default="numpy", help="output (default: numpy)")
    parser.add_argument("--threads", type=number(0), metavar="N", help="loader threads (default: automatic)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measures both and compares them."""
    from penstock.cli.inputs import open_run
    from penstock.view.training_run import pipeline

    source, options = open_run(args)
    loader = getattr(pipeline(source, **options), f"to_{args.to}")(threads=args.threads)
    rows = args.batch // args.world
    console.note(f"measuring the loader for {args.seconds:g} s, then a bare gather for {args.seconds:g} s")
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
    return console.result(args, facts, _show)


def _loader(loader: Any, limit: float, to: str) -> tuple[int, float]:
    """Returns the number of batches and the seconds, after a few batches of warm-up, over several epochs if needed."""
    taken, began = -_WARMUP_BATCHES, time.perf_counter()
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
    """Returns tokens per second of NumPy indexing into an array in memory, converted to int64 inputs and labels."""
    import numpy as np

    from penstock.core import randomness

    tokens = source.gather(np.array([0]), min(source.n_tokens, _MEMORY_TOKENS))[0]
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)
    draws = randomness.integers(
        randomness.keys(randomness.key("bench"), np.arange(rows * 64)), 0, len(windows)
    ).reshape(64, rows)
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < limit or not count:
        rows_read = windows[draws[count % 64]]
        _ = rows_read[:, :-1].astype(np.int64), rows_read[:, 1:].astype(np.int64)
        count += 1
    return count * rows * length / took


def _verdict(one: float) -> str:
    if one <= 50e-6:
        return f"a batch takes {one * 1e6:.0f} us: negligible in a training run"
    return f"a batch takes {one * 1e3:.2f} ms: under 1% of a training step of {one * 1e5:.0f} ms or more"


def _show(facts: dict[str, Any]) -> None:
    rate, bare = facts["tokens_per_second"] / 1e6, facts["bare_gather_tokens_per_second"] / 1e6
    console.table(
        [
            ("loader", f"{rate:,.1f} M tokens/s to {facts['to']} ({console.count(facts['batches'], 'batch')})"),
            ("bare NumPy gather", f"{bare:,.1f} M tokens/s"),
            ("share", f"{facts['share_of_bare_gather']:.0%} of the bare gather"),
        ]
    )
    spent = facts["stage_seconds"]
    total = sum(spent.values()) or 1.0
    console.out("stages")
    console.table(
        [(n, f"{s / facts['batches'] * 1e6:8.1f} us/batch  {s / total:4.0%}") for n, s in spent.items()], "  "
    )
    console.out(facts["verdict"])
