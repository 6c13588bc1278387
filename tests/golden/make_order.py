"""Writes `order.json`: the order that this version computes, for a few sizes, keys and mixtures.

Run it only when the order is meant to change, and say so in the change log: a saved state of an older version then
continues with other samples.

    python tests/golden/make_order.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.randomness import key, keys
from penstock.order.blocks import permute_blocks
from penstock.order.mix import Mixture
from penstock.order.shuffle import permute

FILE = Path(__file__).with_name("order.json")

SIZES = [1, 2, 5, 16, 64, 65, 100, 1000, 65_537, 10**6, 48_828_124, 10**12, 2**62]
BLOCKS = [(100, 7, 3), (1000, 64, 4), (10**12 + 7, 4096, 16)]
MIXTURES = [
    Mixture((0.6, 0.3, 0.1), (None, None, None), key=7),
    Mixture((1, 1), (30, 50), key=1, block=16, stages=((21, (3, 1)), (1000, (0, 1)))),
    Mixture((1.0, 1e-6, 0, 2.5), (10, 10, 10, 10**9), key=2**64 - 1),
    Mixture(tuple(1 / k for k in range(1, 41)), (None,) * 40, key=5, block=1),
]


def spread(n: int) -> list[int]:
    """Up to 16 positions: the first, the last and some between."""
    return sorted({*range(min(n, 6)), *(n * k // 9 for k in range(9)), n - 1})


def compute() -> dict[str, Any]:
    """Everything the golden file holds."""
    per_element = keys(key("golden"), np.arange(20))
    return {
        "keys": [key(), key(7), key(7, "shuffle", 3), key(-1), key(2**80), *(int(k) for k in per_element[:3])],
        "shuffle": [
            {"n": n, "key": k, "index": spread(n), "value": permute(spread(n), n, k).tolist()}
            for n in SIZES
            for k in (0, key(7, "shuffle", 3))
        ],
        "shuffle by a key per element": {
            str(n): permute(np.arange(20) % n, n, per_element).tolist() for n in (3, 64, 100, 10**12)
        },
        "blocks": [
            {"n": n, "block": b, "window": w, "value": permute_blocks(spread(n), n, b, w, key(3)).tolist()}
            for n, b, w in BLOCKS
        ],
        "mixture": [
            {
                "position": position,
                "source": mixture.pick(np.arange(position, position + 20))[0].tolist(),
                "draw": mixture.pick(np.arange(position, position + 20))[1].tolist(),
                "counts": mixture.counts(position).tolist(),
                "first_exhausted": mixture.first_exhausted(),
                "all_exhausted": mixture.all_exhausted(),
            }
            for mixture in MIXTURES
            for position in (0, 995, 10**12)
        ],
    }


def write() -> None:
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in compute().items()]
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
