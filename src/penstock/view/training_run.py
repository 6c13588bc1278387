"""The size of a training run over a store (windows, steps, tokens), without reading tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.order.windows import count
from penstock.pipeline import Pipeline


def pipeline(
    source: Any, length: int, stride: int | None, batch: int, *, seed: int = 0, shuffle: bool = True,
    rank: int = 0, world: int = 1,
) -> Pipeline:  # fmt: skip
    """Builds the pipeline of the run: windows, shuffle, shard, batch."""
    return _rows(source, length, stride, seed, shuffle).shard(rank, world).batch(batch)


def _rows(source: Any, length: int, stride: int | None, seed: int, shuffle: bool) -> Pipeline:
    windows = Pipeline(source).windows(length, stride)
    return windows.shuffle(seed) if shuffle else windows


def figures(
    source: Any, length: int, stride: int | None, batch: int, *, seed: int = 0, shuffle: bool = True,
    world: int = 1, epochs: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Computes the figures of a run; the number of steps comes from a real loader."""
    run = pipeline(source, length, stride, batch, seed=seed, shuffle=shuffle, world=world)
    step = stride or length
    windows = count(source.n_tokens, length, step)
    steps = len(run.to_numpy(threads=0))
    dropped = windows - steps * batch
    rows = _rows(source, length, stride, seed, shuffle).rows()
    left = np.sort(rows.plan.root.pick(np.arange(windows - dropped, windows), 0).record)  # in the first epoch
    unseen = source.n_tokens - covered(windows, length, step, left)
    return {
        "tokens": source.n_tokens,
        "documents": len(source),
        "length": length,
        "stride": step,
        "windows": windows,
        "batch": batch,
        "world": world,
        "rows_per_rank": batch // world,
        "steps_per_epoch": steps,
        "tokens_per_step": batch * length,
        "tokens_per_epoch": steps * batch * length,
        "rows_dropped_per_epoch": dropped,
        "tokens_not_seen_in_epoch_0": unseen,
        "times_a_token_is_input": round(steps * batch * length / max(1, source.n_tokens), 4),
        "bytes_per_batch": 2 * 8 * batch * length // world,
        "epochs": epochs,
        "steps": steps * epochs,
        "tokens_trained": steps * batch * length * epochs,
        "shuffle": "every window once per epoch, a different order each epoch" if shuffle else "none",
        "seed": seed if shuffle else None,
        "fingerprint": run.fingerprint(),
    }


def covered(windows: int, length: int, stride: int, dropped: Any) -> int:
    """Returns the number of tokens that are input or label of a window not in `dropped` (increasing numbers).

    >>> covered(3, length=4, stride=4, dropped=[]), covered(3, length=4, stride=4, dropped=[1])
    (13, 10)
    >>> covered(3, length=4, stride=2, dropped=[1]), covered(2, length=4, stride=10, dropped=[1])
    (9, 5)
    """
    span = length + 1
    total = windows * span if stride >= span else (windows - 1) * stride + span
    gone = np.asarray(dropped, np.int64)
    if not len(gone):
        return total
    if stride >= span:
        return total - len(gone) * span
    # Windows overlap: each run of dropped neighbours loses only the tokens outside the windows next to it.
    breaks = np.flatnonzero(np.diff(gone) > 1)
    first, last = gone[np.r_[0, breaks + 1]], gone[np.r_[breaks, len(gone) - 1]]
    begin = np.where(first > 0, (first - 1) * stride + span, 0)
    end = np.where(last + 1 < windows, (last + 1) * stride, last * stride + span)
    return total - int(np.maximum(0, end - begin).sum())
