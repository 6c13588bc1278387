"""Whether a trainer's own loader deals out among processes what a dataset or sampler gives.

Accelerate, and HF's Trainer through it, take a DataLoader apart and share its rows or batches among processes. They
tell nobody: a dataset or sampler can only see who asks it, on the stack. That is looked at once, when iteration begins
(a forked worker has its parent's stack; a spawned one is told what its parent found).
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from penstock.core.errors import UsageError

_DEALERS = frozenset({"accelerate.data_loader", "transformers.trainer_pt_utils"})


def dealt_among() -> int | None:
    """Among how many processes the loader that asks deals out what it gets; None where no such loader asks.

    >>> dealt_among() is None
    True
    """
    frame: FrameType | None = sys._getframe(1)
    found: int | None = None
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEALERS:
            found = max(found or 1, _processes(frame.f_locals.get("self")))
        frame = frame.f_back
    return found


def _processes(dealer: Any) -> int:
    """A shard knows how many there are; a dispatcher's state does; a loader that has neither is the only one."""
    knows = dealer if hasattr(dealer, "num_processes") else getattr(dealer, "state", None)
    return int(getattr(knows, "num_processes", 1))


def refuse_second_deal(rank: int, world: int, fix: str) -> None:
    """Raises where a share of the rows would be shared again, and most rows never be seen."""
    processes = dealt_among()
    if processes is not None and processes > 1 and world > 1:
        raise UsageError(
            "rows that are shared among processes once",
            got=f"rank {rank} of {world}, but Accelerate deals out the batches among {processes} processes",
            where="a prepared DataLoader",
            fix=f"{fix}; or do not prepare the loader",
        )
