"""`pad`: ragged rows become one array, with an attention mask and next-token labels.

Every ragged column is padded to one width: `input_ids` with `pad_id`, `labels` with -100, others with 0. Where there
are `input_ids` but no labels, `labels[t]` is the token after `input_ids[t]`, and -100 where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._buffers import Buffers
from penstock._errors import UsageError
from penstock.batching.layout import Side
from penstock.batching.pad import pad_rows
from penstock.columns import Columns, Ragged
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, Picks

IGNORE = -100
_buffers = Buffers()


@dataclass(frozen=True)
class Pad(Step):
    """Pads to a number of values, or to the longest row of the global batch (rounded up to `multiple`)."""

    to: int | Literal["longest"] = "longest"
    pad_id: int = 0
    side: Side = "right"
    multiple: int | None = None
    truncate: bool = False
    labels: bool = True

    of_batches = True

    def __post_init__(self) -> None:
        if self.to != "longest" and (isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 1):
            raise UsageError('a length or "longest" in .pad()', got=repr(self.to), fix='.pad(to="longest")')
        if self.side not in ("right", "left"):
            raise UsageError('side="right" or "left" in .pad()', got=repr(self.side))
        if self.truncate and self.to == "longest":
            raise UsageError(".pad(to=n) with truncate=True", got='to="longest"', fix="give the length to cut at")

    @property
    def whole(self) -> bool:
        """The longest row of the batch may be on another rank."""
        return self.to == "longest"

    def build(self, child: Node, context: Context) -> Node:
        return child

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        ragged = {name: column for name, column in columns.items() if isinstance(column, Ragged)}
        out: Columns = {name: column for name, column in columns.items() if name not in ragged}
        length = None if self.to == "longest" else int(self.to)
        for name, column in ragged.items():
            fill = self.pad_id if name == "input_ids" else IGNORE if name == "labels" else 0
            dtype = np.int64 if name in ("input_ids", "labels") else None
            padded, lengths = pad_rows(
                column,
                fill,
                side=self.side,
                length=length,
                multiple=self.multiple,
                max_length=length if self.truncate else None,
                dtype=dtype,
                empty=_buffers.roomy,
            )
            out[name] = padded
            if name == "input_ids":
                out.update(self._beside(padded, lengths, "labels" in columns))
        return out

    def _beside(self, ids: NDArray[Any], lengths: NDArray[np.int64], labelled: bool) -> Columns:
        place = np.arange(ids.shape[1])
        first = 0 if self.side == "right" else (ids.shape[1] - lengths)[:, None]
        last = lengths[:, None] if self.side == "right" else ids.shape[1]
        mask = (place >= first) & (place < last)
        beside: Columns = {"attention_mask": mask.astype(np.int64)}
        if self.labels and not labelled:
            labels = np.full_like(ids, IGNORE)
            labels[:, :-1] = ids[:, 1:]
            known = np.zeros_like(mask)
            known[:, :-1] = mask[:, 1:] & mask[:, :-1]
            labels[~known] = IGNORE
            beside["labels"] = labels
        return beside
