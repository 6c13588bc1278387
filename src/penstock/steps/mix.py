"""`mix`: rows of several pipelines in fixed proportions, exact at every block, in closed form.

Each source is drawn in its own order; when it ends it begins again, reshuffled. Which source and which draw a position
has is arithmetic, so any step of any run can be computed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.columns import Columns, scatter
from penstock.core.errors import UsageError
from penstock.order.mix import Mixture
from penstock.steps.facts import Bounds, RowFacts
from penstock.steps.node import Fetched, Node, SourceNode
from penstock.steps.picks import I64, Epoch, Picks, rows_at
from penstock.steps.replacement import places_of


class Mixed(Node):
    """Several nodes as one sequence."""

    def __init__(self, children: Sequence[Node], mixture: Mixture, size: int | None) -> None:
        self.children, self.mixture, self.size = list(children), mixture, size
        facts = [child.facts for child in children]
        per_batch = facts[0].per_batch
        self.facts = RowFacts(
            ids=frozenset().union(*(f.ids for f in facts)),
            bounds=Bounds(min(f.bounds.least for f in facts), max(f.bounds.most for f in facts)),
            own_labels=all(f.own_labels for f in facts),
            certain=all(f.certain for f in facts),
            weighs=all(f.weighs for f in facts),
            per_batch=per_batch if all(f.per_batch == per_batch for f in facts) else None,
        )
        counts = [sum(1 for _ in c.leaves()) for c in children]
        self.first = [next(c.leaves()).number for c in children]
        self.last = [first + count for first, count in zip(self.first, counts, strict=True)]

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        run = position if self.size is None else position + epoch * self.size
        source, draw = self.mixture.pick(run)
        record, passes, leaf = (np.empty(len(position), np.int64) for _ in range(3))
        for k, child in enumerate(self.children):
            where = np.flatnonzero(source == k)
            if not len(where):
                continue
            rows = child.size
            turn = np.zeros(len(where), np.int64) if rows is None else draw[where] // rows
            inner = child.pick(draw[where] if rows is None else draw[where] - turn * rows, _one(turn))
            record[where], passes[where] = inner.record, inner.epoch
            leaf[where] = self.first[k] if inner.leaf is None else inner.leaf
        return Picks(record, passes, leaf)

    def fetch(self, picks: Picks) -> Fetched:
        parts: list[tuple[I64, Columns]] = []
        used = picks
        for child, first, last in zip(self.children, self.first, self.last, strict=True):
            leaf = picks.column("leaf")
            where = np.flatnonzero((leaf >= first) & (leaf < last))
            if not len(where):
                continue
            asked = picks.rows(where)
            with rows_at(where):
                columns, inner = child.fetch(asked)
            if len(inner) < len(where):  # some were dropped
                where = where[places_of(asked, inner)]
                if not len(where):
                    continue
            if parts and columns.keys() != parts[0][1].keys():
                raise UsageError(
                    f"the same columns from every source of a mixture: {sorted(parts[0][1])}",
                    got=f"{sorted(columns)} from source {self.children.index(child)}",
                    fix="add the same steps to every source, or rename with .map()",
                )
            parts.append((where, columns))
            used = used.put(where, inner)
        if sum(len(where) for where, _ in parts) == len(picks):
            return Fetched(scatter(parts, len(picks)), used)
        places = np.sort(np.concatenate([np.empty(0, np.int64), *(where for where, _ in parts)]))
        kept = [(np.searchsorted(places, where), columns) for where, columns in parts]
        return Fetched(scatter(kept, len(places)) if kept else {}, used.rows(places))

    def count_labels(self, picks: Picks) -> int:
        return sum(child.count_labels(picks.rows(where)) for child, where in self._parts(picks))

    def costs(self, picks: Picks) -> I64:
        out = np.zeros(len(picks), np.int64)
        for child, where in self._parts(picks):
            out[where] = child.costs(picks.rows(where))
        return out

    def _parts(self, picks: Picks) -> Iterator[tuple[Node, I64]]:
        """The children that have some of these rows, and which."""
        leaf = picks.column("leaf")
        for child, first, last in zip(self.children, self.first, self.last, strict=True):
            where = np.flatnonzero((leaf >= first) & (leaf < last))
            if len(where):
                yield child, where

    def left_out(self) -> dict[str, int]:
        """Of one pass over each."""
        parts = [child.left_out() for child in self.children]
        return {name: sum(part.get(name, 0) for part in parts) for name in dict.fromkeys(n for p in parts for n in p)}

    def explain(self, picks: Picks) -> dict[str, Any]:
        leaf = int(picks.column("leaf")[0])
        k = next(i for i, last in enumerate(self.last) if leaf < last)
        return {"mixture_source": k} | self.children[k].explain(picks)

    def leaves(self) -> Iterator[SourceNode]:
        for child in self.children:
            yield from child.leaves()


def _one(turn: I64) -> Epoch:
    """A single number when all passes are the same, so that one permutation is enough."""
    return int(turn[0]) if (turn == turn[0]).all() else turn
