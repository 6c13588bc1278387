"""Documents padded to one fixed length, row by row: no row needs to know another.

On a device that expands compact columns only the first tokens of each document and their number are shipped; mask,
labels and padding are made there, by `PadRecipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.core.columns import Columns, Compact
from penstock.steps.facts import Bounds
from penstock.steps.loss_runs import IGNORE
from penstock.steps.node import ContentNode, Heads, Node
from penstock.steps.picks import Picks
from penstock.steps.rows import ChangedRows, Memory, Read, Rows


@dataclass(frozen=True)
class PadRecipe:
    """Rows of one length with mask and next-token labels, from `tokens` and `counts`, the number of them per row."""

    length: int
    pad_id: int

    def expand(self, xp: Any, columns: Any) -> dict[str, Any]:
        tokens, counts = columns["tokens"], columns["counts"][:, None]
        following = xp.pad(tokens[:, 1:], ((0, 0), (0, 1)))  # before it is widened: half the time of a roll after it
        place = xp.arange(self.length, dtype=xp.int32)[None, :]
        mask = place < counts
        return {
            "input_ids": xp.where(mask, tokens.astype(xp.int32), xp.int32(self.pad_id)),
            "attention_mask": mask.astype(xp.int32),
            "labels": xp.where(place < counts - 1, following.astype(xp.int32), xp.int32(IGNORE)),
        }


class PadBatch(Protocol):
    """Pads the columns of some rows."""

    def __call__(self, columns: Columns, picks: Picks, *, memory: Memory | None) -> Columns: ...


class PadNode(ContentNode):
    """The child's rows, padded by `pad`; `recipe` does the same on a device, if rows hold only tokens."""

    def __init__(self, child: Node, pad: PadBatch, recipe: PadRecipe | None, pad_id: int, width: int) -> None:
        super().__init__(child)
        self.pad, self.recipe = pad, recipe
        self.facts = replace(self.facts, width=width)
        if "input_ids" in child.facts.ids:
            least, most = child.facts.bounds
            self.facts = replace(self.facts, bounds=Bounds(min(least, pad_id), max(most, pad_id)))

    def open(self, picks: Picks, compact: bool = False) -> Read:
        if compact and self.recipe is not None:
            heads = self.child.heads(picks, self.recipe.length)
            if heads is not None:
                recipe = self.recipe
                return lambda start, stop: HeadRows(heads, recipe, picks.rows(slice(start, stop)), start, stop)
        read = self.child.open(picks)
        return lambda start, stop: PaddedRows(read(start, stop), self.pad)


class PaddedRows(ChangedRows):
    """Rows that were read; the rows of a batch are padded when it is made."""

    __slots__ = ("pad",)

    def __init__(self, rows: Rows, pad: PadBatch) -> None:
        super().__init__(rows)
        self.pad = pad

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        return self.pad(self.rows.columns(start, stop, None), self.picks.rows(slice(start, stop)), memory=memory)


class HeadRows:
    """The first tokens of documents, for a recipe."""

    __slots__ = ("counts", "picks", "recipe", "tokens")

    def __init__(self, heads: Heads, recipe: PadRecipe, picks: Picks, start: int, stop: int) -> None:
        self.tokens, self.counts = heads.read(start, stop), heads.counts[start:stop]
        self.recipe, self.picks = recipe, picks

    @property
    def nbytes(self) -> int:
        return int(self.tokens.nbytes)

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        return self.recipe.expand(np, self.compact(start, stop))

    def compact(self, start: int, stop: int) -> Compact:
        return Compact({"tokens": self.tokens[start:stop], "counts": self.counts[start:stop]}, self.recipe)
