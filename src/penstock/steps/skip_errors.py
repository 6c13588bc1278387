"""`skip_errors`: what to do with bad records: those that cannot be read, or on which a function raised.

Without it the first bad record stops the run with an error that names it. With it, bad records are rejected and written
into the ledger; more of them than the budget is an error. A loader refills their positions, a preparation drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, UsageError, UserCodeError
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import Kept, Rejection, RejectionLog, keep_or_replace, places_of


@dataclass(frozen=True)
class SkipErrors(Step):
    """Rejects bad records of the steps before it.

    `budget`: a count, a fraction of the rows, or None for any number. With several in one pipeline the smallest budget
    holds for all of them together.
    """

    changes_content: ClassVar[bool] = True
    rejects: ClassVar[bool] = True

    budget: int | float | None = None

    @property
    def name(self) -> str:
        return "skip_errors"

    def __post_init__(self) -> None:
        if self.budget is not None and (isinstance(self.budget, bool) or not self.budget >= 0):
            raise UsageError(
                "a budget of at least 0 in .skip_errors()", got=repr(self.budget), fix="budget=100, or 0.01"
            )

    def build(self, child: Node, context: Context) -> Node:
        known, allowed = context.ledger.budget, self._count(child.size)
        context.ledger.budget = min((b for b in (known, allowed) if b is not None), default=None)
        return _SkipErrorsNode(child, context)

    def _count(self, rows: int | None) -> int | None:
        if isinstance(self.budget, float):
            return None if rows is None else int(Fraction(self.budget).limit_denominator(10**9) * rows)
        return self.budget


class _SkipErrorsNode(ContentNode):
    def __init__(self, child: Node, context: Context) -> None:
        super().__init__(child)
        self.rejections = RejectionLog(context.ledger, context.on_reject)
        self.on_reject = context.on_reject
        self.base = randomness.key(context.seed, "skip_errors", context.place)

    def fetch(self, picks: Picks) -> Fetched:
        what = "skip_errors"
        return keep_or_replace(self._attempt, self.child, picks, self.base, what, self.on_reject, self.spares)

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
                self.rejections.add(left, list(bad), list(bad.values()), self.child)
                places = np.delete(places, list(bad))
            else:
                return Kept(places[places_of(left, used)], columns, used)
        empty: Columns = {}
        return Kept(places, empty, picks.rows(places))


def _rows(error: BadRecords | UserCodeError) -> dict[int, Rejection]:
    """The bad rows that an error names, and why each is bad; empty when the error is not about single rows."""
    errors = error.errors if isinstance(error, BadRecords) else (error, *error.more)
    return {one.row: Rejection(one.expected, one.got, one.place) for one in errors if one.row is not None}
