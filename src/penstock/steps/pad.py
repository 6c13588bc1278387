"""`pad`: ragged rows become one array, with an attention mask and next-token labels.

Every ragged column is padded to one width: `input_ids` with `pad_id`, `labels` with -100, others with 0. Where there
are `input_ids` but no labels, `labels[t]` is the token after `input_ids[t]`, and -100 where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock._buffers import Buffers
from penstock._errors import UsageError
from penstock.batching.layout import Layout, Side, check_padding, lay_out, valid_mask
from penstock.batching.pad import counts_of, place
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
        check_padding(multiple=self.multiple)
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
            layout = lay_out(
                counts_of(column),
                side=self.side,
                length=length,
                multiple=self.multiple,
                max_length=length if self.truncate else None,
            )
            out[name] = place(column, layout, fill, dtype, _buffers.roomy)
            if name == "input_ids":
                out["attention_mask"] = valid_mask(layout)
                if self.labels and "labels" not in columns:
                    out["labels"] = place(_next_tokens(column, layout), layout, IGNORE, np.int64, _buffers.roomy)
        return out


def _next_tokens(ids: Ragged, layout: Layout) -> Ragged:
    """After each token the next one of its row; after the last that is kept, none."""
    after = np.empty(len(ids.values), np.int64)
    after[:-1] = ids.values[1:]
    counts = layout.lengths()
    after[(ids.offsets[:-1] + counts - 1)[counts > 0]] = IGNORE
    return Ragged(after, ids.offsets)
