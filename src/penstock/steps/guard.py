"""`skip_errors`: what to do with records that cannot be read.

Without it the first bad record stops the run with an error that names it. With it, bad records are refused, written
in the ledger, and their positions filled from the spares; more of them than the budget is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, UsageError, UserCodeError
from penstock.core.ledger import Ledger
from penstock.steps.base import Context, Step
from penstock.steps.node import Above, Fetched, Node, Picks
from penstock.steps.refill import Kept, Noted, refill


@dataclass(frozen=True)
class SkipErrors(Step):
    """Fill the place of a bad record. `budget`: a count, a fraction of the rows, or None for any number."""

    budget: int | float | None = None

    @property
    def name(self) -> str:
        return "skip_errors"

    def __post_init__(self) -> None:
        if self.budget is not None and (isinstance(self.budget, bool) or self.budget < 0):
            raise UsageError(
                "a budget of at least 0 in .skip_errors()", got=repr(self.budget), fix="budget=100, or 0.01"
            )

    def build(self, child: Node, context: Context) -> Node:
        allowed = self.budget
        if isinstance(allowed, float):
            allowed = None if child.size is None else int(allowed * child.size)
        context.ledger.budget = allowed
        return _Guarded(child, context.ledger, randomness.key(context.seed, "skip_errors", context.place))


class _Guarded(Above):
    def __init__(self, child: Node, ledger: Ledger, base: int) -> None:
        super().__init__(child)
        self.note, self.base = Noted(ledger), base

    def fetch(self, picks: Picks) -> Fetched:
        return refill(self._attempt, self.child, picks, self.base, "skip_errors")

    def _attempt(self, picks: Picks) -> Kept:
        places = np.arange(len(picks))
        while len(places):
            left = picks.rows(places)
            try:
                columns, used = self.child.fetch(left)
            except (BadRecords, UserCodeError) as error:
                bad = _rows(error)
                if not bad:
                    raise
                for row, reason in bad.items():
                    self.note(left, row, reason.expected, self.child, reason.got)
                places = np.delete(places, list(bad))
            else:
                return Kept(places, columns, used)
        empty: Columns = {}
        return Kept(places, empty, picks.rows(places))


def _rows(error: BadRecords | UserCodeError) -> dict[int, RecordError | UserCodeError]:
    if isinstance(error, BadRecords):
        return {one.row: one for one in error.errors}
    return {} if error.row is None else {error.row: error}
