"""`filter`: keeps the records for which a function returns True.

In a loader the position of a rejected record is refilled with another record that the function keeps: all other rows
stay where they are and the epoch keeps its length. A preparation drops rejected records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.columns import Columns, row, take
from penstock.core.errors import UserCodeError
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import Kept, Rejection, RejectionLog, keep_or_replace, places_of, rows_asked
from penstock.steps.user_functions import check_function, each_row, failed_on_block, failed_on_row

_REJECTED = Rejection("refused by the filter")


@dataclass(frozen=True)
class Filter(Step):
    """`function(record) -> bool`, or with `batched` `function(columns) -> bool array`."""

    changes_content: ClassVar[bool] = True
    rejects: ClassVar[bool] = True
    selects: ClassVar[bool] = True

    function: Callable[..., Any]
    batched: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(self.function, "filter")

    def build(self, child: Node, context: Context) -> Node:
        return _Filtered(child, self, context)


class _Filtered(ContentNode):
    def __init__(self, child: Node, step: Filter, context: Context) -> None:
        super().__init__(child)
        self.step, self.on_reject = step, context.on_reject
        self.rejections = RejectionLog(context.refusals, context.on_reject)
        self.base = randomness.key(context.seed, "filter", context.place)

    def fetch(self, picks: Picks) -> Fetched:
        return keep_or_replace(self._attempt, self.child, picks, self.base, "the filter", self.on_reject, self.spares)

    def _attempt(self, picks: Picks) -> Kept:
        columns, used = self.child.fetch(picks)
        with rows_asked(picks, used):
            mask = self._mask(columns, used)
        places = places_of(picks, used)
        if mask.all():
            return Kept(places, columns, used)
        rejected = np.flatnonzero(~mask).tolist()
        self.rejections.add(used, rejected, [_REJECTED] * len(rejected), self.child)
        kept = np.flatnonzero(mask)
        return Kept(places[kept], take(columns, kept), used.rows(kept))

    def _mask(self, columns: Columns, picks: Picks) -> NDArray[np.bool_]:
        if self.step.batched and len(picks):
            return self._batched_mask(columns, picks)

        def one(i: int) -> bool:
            try:
                return bool(self.step.function(row(columns, i)))
            except Exception as error:
                raise failed_on_row(self.child, picks, i, self.step.function, "filter", error) from error

        return np.array(each_row(one, len(picks)), bool)

    def _batched_mask(self, columns: Columns, picks: Picks) -> NDArray[np.bool_]:
        try:
            mask = np.asarray(self.step.function(columns))
        except Exception as error:
            raise failed_on_block(picks, self.step.function, "filter", error) from error
        if mask.dtype != bool or mask.shape != (len(picks),):
            raise UserCodeError(
                f"a bool array of {len(picks)} rows from the function in .filter(batched=True)",
                got=f"{mask.dtype} of shape {mask.shape}",
                fix="return one True or False per row",
            )
        return mask
