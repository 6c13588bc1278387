"""`filter`: keeps the records a function likes; a refused record's position is filled from the spares.

The order of all other rows is as if there were no filter. The epoch keeps its length: each refused record is
replaced by another one that the function likes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core import randomness
from penstock.core.columns import row, take
from penstock.core.errors import UserCodeError
from penstock.steps.base import Context, Step
from penstock.steps.mapping import check_function, failed
from penstock.steps.node import Above, Fetched, Node, Picks
from penstock.steps.refill import Kept, Noted, refill


@dataclass(frozen=True)
class Filter(Step):
    """`function(record) -> bool`, or with `batched` `function(columns) -> bool array`."""

    function: Callable[..., Any]
    batched: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(self.function, "filter")

    def build(self, child: Node, context: Context) -> Node:
        return _Filtered(child, self, context)


class _Filtered(Above):
    def __init__(self, child: Node, step: Filter, context: Context) -> None:
        super().__init__(child)
        self.step, self.note = step, Noted(context.refusals)
        self.base = randomness.key(context.seed, "filter", context.place)

    def fetch(self, picks: Picks) -> Fetched:
        return refill(self._attempt, self.child, picks, self.base, "the filter")

    def _attempt(self, picks: Picks) -> Kept:
        columns, used = self.child.fetch(picks)
        mask = self._mask(columns, used)
        if mask.all():
            return Kept(np.arange(len(used)), columns, used)
        for i in np.flatnonzero(~mask):
            self.note(used, int(i), "refused by the filter", self.child)
        places = np.flatnonzero(mask)
        return Kept(places, take(columns, places), used.rows(places))

    def _mask(self, columns: Any, picks: Picks) -> Any:
        if self.step.batched:
            mask = np.asarray(self.step.function(columns))
            if mask.dtype != bool or mask.shape != (len(picks),):
                raise UserCodeError(
                    f"a bool array of {len(picks)} rows from the function in .filter(batched=True)",
                    got=f"{mask.dtype} of shape {mask.shape}",
                    fix="return one True or False per row",
                )
            return mask
        mask = np.empty(len(picks), bool)
        for i in range(len(picks)):
            try:
                mask[i] = bool(self.step.function(row(columns, i)))
            except Exception as error:
                raise failed(self.child, picks, i, self.step.function, "filter", error) from error
        return mask
