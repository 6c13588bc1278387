"""`dedup`: keeps the first of records that are equal, or almost equal.

Which records are duplicates is known before the step is built (`preparation.dedup` finds them once), so that a row
depends on its position alone. In a loader the position of a duplicate is refilled with another record, as with
`filter`; a preparation drops it. Costs one bit of memory per record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.columns import take
from penstock.order.row_set import RowSet
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import Kept, Rejection, RejectionLog, keep_or_replace, places_of

_REJECTED = Rejection("a duplicate of an earlier record")


@dataclass(frozen=True)
class Dedup(Step):
    """Rejects `duplicates`; the other fields say how they were found."""

    changes_content: ClassVar[bool] = True
    rejects: ClassVar[bool] = True
    selects: ClassVar[bool] = True

    field: str
    method: Literal["exact", "minhash"]
    duplicates: RowSet
    threshold: float | None = None
    ngram: int | None = None
    num_perm: int | None = None

    def build(self, child: Node, context: Context) -> Node:
        return _Deduplicated(child, self, context)


class _Deduplicated(ContentNode):
    def __init__(self, child: Node, step: Dedup, context: Context) -> None:
        super().__init__(child)
        self.duplicates, self.on_reject = step.duplicates, context.on_reject
        self.rejections = RejectionLog(context.refusals, context.on_reject)
        self.base = randomness.key(context.seed, "dedup", context.place)

    def fetch(self, picks: Picks) -> Fetched:
        return keep_or_replace(self._attempt, self.child, picks, self.base, "dedup", self.on_reject, self.spares)

    def _attempt(self, picks: Picks) -> Kept:
        fresh, wanted = np.arange(len(picks)), picks
        if self.on_reject == "refill":  # a duplicate need not be read
            fresh = self._kept(picks)
            wanted = picks if len(fresh) == len(picks) else picks.rows(fresh)
            if not len(wanted):
                return Kept(fresh, {}, wanted)
        columns, used = self.child.fetch(wanted)
        places = places_of(wanted, used)
        kept = self._kept(used)  # a step before this one may have refilled a place with a duplicate
        if len(kept) < len(used):
            columns, used, places = take(columns, kept), used.rows(kept), places[kept]
        return Kept(fresh[places], columns, used)

    def _kept(self, picks: Picks) -> NDArray[Any]:
        mask = self.duplicates.mask(picks.record)
        if mask.any():
            rejected = np.flatnonzero(mask).tolist()
            self.rejections.add(picks, rejected, [_REJECTED] * len(rejected), self.child)
        return np.flatnonzero(~mask)
