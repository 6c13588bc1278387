"""Detects whether Accelerate or HF Trainer already shards a dataset or sampler among processes. Reads the call stack.

Why: Accelerate, and HF's Trainer through it, take a DataLoader apart and assign its rows or batches to processes
themselves. The dataset is not informed. A dataset that also shards by rank would then lose most rows without an error,
so it must detect this; the only trace is its caller. The stack is read once, when iteration begins (a forked worker has
its parent's stack; a spawned one receives what its parent found). If `rank` and `world_size` were passed explicitly as
well, the rows would be sharded twice; that is refused.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from penstock.core.errors import UsageError

_SHARDERS = frozenset({"accelerate.data_loader", "transformers.trainer_pt_utils"})


def sharded_among() -> int | None:
    """The number of processes among which the calling loader shards its rows; None if no such loader is calling.

    >>> sharded_among() is None
    True
    """
    frame: FrameType | None = sys._getframe(1)
    found: int | None = None
    while frame is not None:
        if frame.f_globals.get("__name__") in _SHARDERS:
            found = max(found or 1, _processes(frame.f_locals.get("self")))
        frame = frame.f_back
    return found


def _processes(sharder: Any) -> int:
    """Shards hold the number, dispatchers hold it in their state; a loader with neither is the only process."""
    holder = sharder if hasattr(sharder, "num_processes") else getattr(sharder, "state", None)
    return int(getattr(holder, "num_processes", 1))


def refuse_sharding_twice(rank: int, world: int, fix: str) -> None:
    """Raises where a rank's rows would be sharded again, so that most rows would never be seen."""
    processes = sharded_among()
    if processes is not None and processes > 1 and world > 1:
        raise UsageError(
            "rows that are sharded among processes once",
            got=f"rank {rank} of {world}, but Accelerate assigns the batches to {processes} processes",
            where="a prepared DataLoader",
            fix=f"{fix}; or do not prepare the loader",
        )
