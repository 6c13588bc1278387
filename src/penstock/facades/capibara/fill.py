"""The padding of Capibara's batches: every document cut or padded to `max_length`, with mask and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.buffers import Aligned
from penstock.core.columns import Columns
from penstock.steps.base import BatchStep, Context
from penstock.steps.facts import RowFacts
from penstock.steps.node import Node
from penstock.steps.pad import Pad, Padding
from penstock.steps.picks import Picks
from penstock.steps.rows import Memory

_MEMORY = Memory(np.dtype(np.int32), Aligned())


@dataclass(frozen=True)
class Fill(BatchStep):
    """`.pad(to=length, truncate=True)`, under the name that Capibara's saved states know.

    Labels that the rows bring stay as they are, also at the last token that is kept.
    """

    length: int
    pad_id: int = 0

    def build(self, child: Node, context: Context) -> Node:
        return child

    def on_batches(self, facts: RowFacts) -> Padding:
        return Padding(Pad(self.length, pad_id=self.pad_id, truncate=True), own=False)

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        """Pads the columns of a batch that no plan has made."""
        return self.on_batches(RowFacts()).pad.padded(columns, picks, memory=_MEMORY)
