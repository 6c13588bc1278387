"""Nodes whose picks are their own row numbers: the child's picks are found from them when rows are read.

So a row can be more or less than a record of a source: a part of one, or one with its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.steps.branches import one_epoch
from penstock.steps.node import ContentNode, Node, Reads
from penstock.steps.picks import I64, Epoch, Picks


class Renumbered(ContentNode):
    """Row n has pick n; `parent` is the child's row that it comes from."""

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def parent(self, row: I64) -> I64:
        return row

    def inner(self, picks: Picks) -> Picks:
        """The child's picks, one for each row."""
        return own_picks(self.child, picks, self.parent(picks.record))

    def reads(self, picks: Picks) -> Iterator[Reads]:
        return self.child.reads(self.inner(picks))

    def explain(self, picks: Picks) -> dict[str, Any]:
        return self.child.explain(self.inner(picks))

    def encoded(self, picks: Picks) -> dict[str, Any]:
        return self.child.encoded(self.inner(picks))

    def count_labels(self, picks: Picks) -> int:
        return self.child.count_labels(self.inner(picks))

    def costs(self, picks: Picks) -> I64:
        return self.child.costs(self.inner(picks))


def own_picks(child: Node, picks: Picks, row: I64 | None = None) -> Picks:
    """The picks of rows of `child`, for a node whose own picks are row numbers: `row`, or those of `picks`."""
    found = child.pick(picks.record if row is None else row, one_epoch(picks.epoch))
    leaf = found.leaf
    if leaf is None:  # as in a mixture: equal record numbers of different sources draw different random numbers
        leaf = np.full(len(found), next(child.leaves()).number, np.int64)
    return replace(found, leaf=leaf, slot=picks.slot)


def refuse_rejected(child: Node, verb: str, why: str) -> None:
    """Refuses a step before `verb` that rejects rows: a loader would put other rows into their places."""
    if child.facts.rejects:
        raise UsageError(
            f"no step that rejects rows before {verb}",
            got=f".filter(), .dedup() or .skip_errors() in {why}",
            fix=f"put it after {verb}, or use .filter(..., exact=True), which leaves rejected rows out",
        )


def refuse_moved(child: Node, verb: str) -> None:
    """Refuses a shuffle before `verb`, which is fixed once for all epochs."""
    if child.facts.moves:
        raise UsageError(
            f"the same order of rows in every epoch before {verb}",
            got=".shuffle() or penstock.mix() before it",
            fix=f"put .shuffle() after {verb}; use penstock.concat() or interleave() instead of mix()",
        )
