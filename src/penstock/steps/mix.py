"""`mix`: rows of several pipelines in fixed proportions, exact at every block, in closed form.

Each source is drawn in its own order; when it ends it begins again, reshuffled. Which source and which draw a position
has is arithmetic, so any step of any run can be computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.order.mix import Mixture
from penstock.steps.branches import SPREAD, Branches, Place
from penstock.steps.node import Node
from penstock.steps.picks import I64, Epoch, Picks


class Mixed(Branches):
    """Several nodes as one sequence."""

    where_from: ClassVar[str] = "mixture_source"
    noun: ClassVar[str] = "a mixture"

    def __init__(self, children: Sequence[Node], mixture: Mixture, size: int | None, names: Sequence[str] = ()) -> None:
        super().__init__(children, size)
        self.names = names  # of the children, or none
        self.mixture = mixture
        self.rows = np.array([child.size or 0 for child in children], np.int64)  # 0: endless
        self.facts = replace(self.facts, moves=True)

    def place(self, position: I64, epoch: Epoch) -> Place:
        return self._place(*self._draw(position, epoch))

    def _draw(self, position: I64, epoch: Epoch) -> tuple[I64, I64]:
        return self.mixture.pick(position if self.size is None else position + epoch * self.size)

    def _place(self, source: I64, draw: I64) -> Place:
        rows = self.rows[source]
        turn = np.where(rows > 0, draw // np.maximum(rows, 1), 0).astype(np.int64, copy=False)
        return Place(source, draw - turn * rows, turn)

    def explain(self, picks: Picks) -> dict[str, Any]:
        """With names: `mixture_name`, of a mixture in a mixture "web/python"; a number for what has no name."""
        k = int(np.searchsorted(self.last, int(picks.column("leaf")[0]), "right"))
        facts = self.children[k].explain(picks)
        inner = facts.get("mixture_name", facts.get(self.where_from))
        if self.names or "mixture_name" in facts:
            name = self.names[k] if self.names else k
            facts = facts | {"mixture_name": str(name) if inner is None else f"{name}/{inner}"}
        return {self.where_from: k} | facts

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        """Rows of a source without lanes are spread evenly between those of the others, by their draw."""
        source, draw = self._draw(position, epoch)
        _, row, turn = self._place(source, draw)
        out = (draw * SPREAD).astype(np.uint16)
        for k, child in enumerate(self.children):
            if child.facts.lanes:
                where = np.flatnonzero(source == k)
                out[where] = child.lanes(row[where], turn[where])  # type: ignore[index]
        return out
