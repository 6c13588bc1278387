"""Documents to rows of one length, with mask and labels, straight into the memory that JAX will use.

One pass over the tokens: ids, mask and labels are written as int32, a few slices per row. The memory begins at a
multiple of 64 bytes, so that JAX on a CPU takes it over without copying, and serves again once no batch holds it.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.columns import Columns, Ragged
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, Picks
from penstock.steps.pad import IGNORE

_ALIGN = 64  # what XLA asks of a buffer on the host
_KEPT = 64 << 20
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the GIL reference counts are not exact
_FREE = 2  # references to a block that only the pool holds: the list's and the argument of getrefcount


class Aligned:
    """Arrays of int32 that begin at a multiple of 64 bytes; one that nobody holds any more is given again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[int, list[NDArray[np.uint8]]] = {}

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.int32]:
        size = 4 * int(np.prod(shape))
        with self._lock:
            blocks = self._blocks.setdefault(size, [])
            for i in range(len(blocks)):
                if sys.getrefcount(blocks[i]) == _FREE:
                    return _view(blocks[i], size, shape)
            block = np.empty(size + _ALIGN, np.uint8)
            if _counted and (len(blocks) + 1) * size <= _KEPT:
                blocks.append(block)
        return _view(block, size, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Aligned, ()


def _view(block: NDArray[np.uint8], size: int, shape: tuple[int, ...]) -> NDArray[np.int32]:
    skip = -block.ctypes.data % _ALIGN
    return block[skip : skip + size].view(np.int32).reshape(shape)


@dataclass(frozen=True)
class Fill(Step):
    """Cuts and pads `input_ids` to `length`; `labels` that the rows bring are padded, else they are the next tokens."""

    length: int
    pad_id: int = 0
    memory: Aligned = field(default_factory=Aligned, compare=False, repr=False)

    of_batches = True
    whole = False

    def spec(self) -> dict[str, Any]:
        return {"length": self.length, "pad_id": self.pad_id}

    def __str__(self) -> str:
        return f"length={self.length}, pad_id={self.pad_id}"

    def build(self, child: Node, context: Context) -> Node:
        return child

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        tokens, given = columns["input_ids"], columns.get("labels")
        if not isinstance(tokens, Ragged):
            return columns  # rows that somebody has already made
        shape = (len(tokens), self.length)
        ids, mask, labels = (self.memory.empty(shape) for _ in range(3))
        values, starts = tokens.values, tokens.offsets.tolist()
        counts = np.minimum(tokens.lengths, self.length).tolist()
        seen, length = _ones_then_zeros(self.length), self.length
        for row, (start, count) in enumerate(zip(starts, counts, strict=False)):
            line, target = ids[row], labels[row]
            line[:count] = values[start : start + count]
            line[count:] = self.pad_id
            mask[row] = seen[length - count : 2 * length - count]
            if isinstance(given, Ragged):
                known = given[row][:count]
                target[: len(known)] = known
                target[len(known) :] = IGNORE
            else:
                last = max(count - 1, 0)
                target[:last] = line[1:count]
                target[last:] = IGNORE
        return {**columns, "input_ids": ids, "attention_mask": mask, "labels": labels}


@lru_cache(maxsize=8)
def _ones_then_zeros(length: int) -> NDArray[np.int32]:
    """The mask of a row of n tokens is the part of this that begins n before the middle."""
    return np.repeat(np.array([1, 0], np.int32), length)
