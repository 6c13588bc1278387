"""Documents to rows of one length, with mask and labels, straight into the memory that JAX will use.

One pass over the tokens: ids, mask and labels are written as int32, a few slices per row, into memory that serves
again once no batch holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.collate.layout import lay_out
from penstock.collate.pad import counts_of
from penstock.collate.tokens import IGNORE, pad_token_columns
from penstock.core.buffers import Aligned
from penstock.core.columns import Columns, Compact, Ragged
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, Picks

_INT32 = np.dtype(np.int32)


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

    def compact(self, columns: Columns) -> Compact | None:
        """Tokens and lengths alone, where all else follows from them."""
        tokens = columns["input_ids"]
        if not isinstance(tokens, Ragged) or len(columns) > 1 or tokens.values.dtype.kind not in "iu":
            return None
        small = tokens.values.dtype if tokens.values.dtype.itemsize <= 4 else _INT32
        rows = np.empty((len(tokens), self.length), small)  # what lies behind a row's end is never looked at
        values, starts = tokens.values, tokens.offsets.tolist()
        counts = np.minimum(tokens.lengths, self.length)
        for row, (start, count) in enumerate(zip(starts, counts.tolist(), strict=False)):
            rows[row, :count] = values[start : start + count]
        return Compact({"tokens": rows, "counts": counts.astype(np.int32)}, self.recipe)

    @property
    def recipe(self) -> Filled:
        return Filled(self.length, self.pad_id)

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        ragged = {name: column for name, column in columns.items() if isinstance(column, Ragged)}
        tokens = ragged.get("input_ids")
        if tokens is None:
            return columns  # rows of equal length, already padded
        layout = lay_out(counts_of(tokens), length=self.length, max_length=self.length)
        mask, labels = ragged.get("attention_mask"), ragged.get("labels")
        return columns | pad_token_columns(
            tokens, layout, self.pad_id, mask=mask, labels=labels, dtype=_INT32, empty=self.memory.empty
        )


@dataclass(frozen=True)
class Filled:
    """The recipe for rows of one length with mask and next-token labels, from tokens and how many each row has."""

    length: int
    pad_id: int

    def expand(self, xp: Any, columns: Any) -> dict[str, Any]:
        tokens, counts = columns["tokens"], columns["counts"][:, None]
        following = xp.pad(tokens[:, 1:], ((0, 0), (0, 1)))  # before they are widened: half the time of a roll after it
        place = xp.arange(self.length, dtype=xp.int32)[None, :]
        mask = place < counts
        return {
            "input_ids": xp.where(mask, tokens.astype(xp.int32), xp.int32(self.pad_id)),
            "attention_mask": mask.astype(xp.int32),
            "labels": xp.where(place < counts - 1, following.astype(xp.int32), xp.int32(IGNORE)),
        }
