"""Padding 32 ragged rows: Penstock, `torch.full` with slice assignment, and transformers' DataCollatorForSeq2Seq.

Same rows for all, torch tensors out of all, checked to be equal before anything is timed. Each collates 16 batches
repeatedly for half a second, then the next, in several rounds. Prints the median of each and the ratios, for rows
that are lists of integers and rows that are NumPy arrays.

    python -m bench collate
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

from bench.common import Again, judge, medians, rate, rounds, save, table
from penstock.facades.preprocessed.collate import create_collate_fn
from tokenizers import Tokenizer, models

warnings.filterwarnings("ignore", message="Creating a tensor from a list of numpy.ndarrays")

ROWS, MEAN, CAP, SIGMA = 32, 200, 2048, 1.0
PADS = (("input_ids", 0), ("attention_mask", 0), ("labels", -100))


def make_rows(seed: int, as_lists: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, ROWS), 1, CAP).astype(int)
    rows = []
    for n in lengths:
        ids = rng.integers(1, 50_000, n)
        labels = np.where(np.arange(n) < n // 3, -100, ids)
        row = {"input_ids": ids, "attention_mask": np.ones(n, np.int64), "labels": labels}
        rows.append({k: v.tolist() if as_lists else v for k, v in row.items()})
    return rows


def slice_assignment(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """`torch.full`, then each row assigned to its slice."""
    width = max(len(row["input_ids"]) for row in rows)
    out = {}
    for name, value in PADS:
        full = torch.full((len(rows), width), value, dtype=torch.long)
        for i, row in enumerate(rows):
            tensor = torch.as_tensor(row[name], dtype=torch.long)
            full[i, : len(tensor)] = tensor
        out[name] = full
    out["labels"][out["attention_mask"] == 0] = -100
    return out


def hf_collator() -> Any:
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    return DataCollatorForSeq2Seq(PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]"))


def _rate(function: Callable[[Any], Any], batches: list[Any], seconds: float) -> float:
    return rate(Again(lambda: map(function, batches)), seconds)


def run(seconds: float = 0.5, count: int = 16, turns: int = 11) -> dict[str, Any]:
    torch.set_num_threads(1)
    functions = {
        "penstock": create_collate_fn(pad_token_id=0),
        "torch.full": slice_assignment,
        "transformers": hf_collator(),
    }
    facts: dict[str, Any] = {"targets": []}
    for kind in ("lists", "arrays"):
        batches = [make_rows(seed, kind == "lists") for seed in range(count)]
        for rows in batches:
            made = {name: function(rows) for name, function in functions.items()}
            for name, batch in made.items():
                if not all(torch.equal(batch[column], made["penstock"][column]) for column, _ in PADS):
                    raise SystemExit(f"{name} returns other tensors than penstock")
        lengths = [len(row["input_ids"]) for rows in batches for row in rows]
        runs = {name: partial(_rate, function, batches, seconds) for name, function in functions.items()}
        found = facts[kind] = {name: 1 / value for name, value in medians(rounds(runs, turns)).items()}
        table(
            f"rows as {kind}: {count} batches of {ROWS}, mean length {np.mean(lengths):.0f}, max {max(lengths)}",
            [(name, f"{s * 1e6:.0f}", f"{s / found['penstock']:.1f}") for name, s in found.items()],
            ("collate", "us a batch", "times penstock"),
        )
        for name, least in (("torch.full", 4), ("transformers", 50)):
            facts["targets"].append(judge(f"rows as {kind}: times {name}", found[name] / found["penstock"], least))
    table("Targets", facts["targets"], ("what", "measured", "target", ""))
    save("collate", facts)
    return facts


if __name__ == "__main__":
    run()
