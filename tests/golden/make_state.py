"""Writes `state.json`: states and the first records of some pipelines. Run it only to change them on purpose.

python tests/golden/make_state.py
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

PATH = Path(__file__).with_name("state.json")


def pipelines() -> dict[str, ps.Pipeline]:
    numbers = ps.from_arrays({"x": np.arange(1000)})
    tokens = ps.open_tokens((np.arange(20_000) % 251).astype(np.uint16))
    return {
        "shuffle": numbers.shuffle(seed=7).batch(16),
        "block shuffle": numbers.shuffle(seed=7, block=16, window=8).batch(16),
        "windows": tokens.windows(64, stride=48).shuffle(seed=1).batch(8),
        "repeat": numbers.shuffle(seed=3).repeat(2).batch(16),
        "mix": ps.mix([numbers.shuffle(seed=1), numbers.take(90).shuffle(seed=2)], [0.7, 0.3], seed=5).batch(16),
        "filter": numbers.shuffle(seed=9).filter(lambda c: c["x"] % 3 != 0, batched=True).batch(16),
        "random": numbers.map_batches(lambda c, keys: {"x": keys >> np.uint64(33)}).batch(16),
    }


def facts(pipeline: ps.Pipeline) -> dict[str, Any]:
    loader = pipeline.to_numpy(threads=0)
    column = "x" if "x" in loader.batch_at(0) else "input_ids"
    rows = [b[column].reshape(-1)[:64].tolist() for b in islice(loader, 3)]
    state = loader.state_dict()
    state.pop("fingerprint")
    state.pop("check")  # of the fingerprint and digests too
    state["parts"] = [name for name, _ in state["parts"]]  # digests of functions depend on how Python compiles them
    return {"batches": rows, "state": state, "late": loader.batch_at(1000)[column].reshape(-1)[:32].tolist()}


if __name__ == "__main__":
    PATH.write_text(json.dumps({name: facts(p) for name, p in pipelines().items()}, indent=1) + "\n")
