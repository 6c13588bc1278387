"""Resuming in HF's `Trainer` and after `accelerator.skip_first_batches`: which batch comes first. Reads the call stack.

Both build another DataLoader around the dataset of a loader, which takes the first n batches of an epoch and throws
them away. The dataset is not informed, neither of n nor of the epoch, which then would be 0; the only trace is its
caller. Known, the loader moves there instead: nothing is computed twice, and the batches are those of the epoch.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NamedTuple


class Skipped(NamedTuple):
    """`batches` of the epoch that the caller throws away; `epoch` is None where it does not say."""

    batches: int = 0
    epoch: int | None = None


def skipped_by_caller(dataset: Any) -> Skipped | None:
    """What a calling DataLoader of Accelerate over `dataset` skips; None if there is none.

    >>> skipped_by_caller(object()) is None
    True
    """
    frame: FrameType | None = sys._getframe(1)
    found: int | None = None
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "accelerate.data_loader" and found is None:
            skipper = frame.f_locals.get("self")
            if getattr(skipper, "dataset", None) is dataset:
                found = int(getattr(skipper, "skip_batches", 0))
        if module == "transformers.trainer" and found is not None:
            epoch = frame.f_locals.get("epoch")
            if isinstance(epoch, int):
                return Skipped(found, epoch)
        frame = frame.f_back
    return None if found is None else Skipped(found)
