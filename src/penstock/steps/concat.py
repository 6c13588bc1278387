"""`concat`: the rows of several pipelines, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from penstock.core.errors import UsageError
from penstock.steps.branches import Branches, Place
from penstock.steps.node import Node
from penstock.steps.picks import I64, Epoch


class Concatenated(Branches):
    """All rows of the first child, then those of the second, ..."""

    where_from: ClassVar[str] = "concat_source"
    noun: ClassVar[str] = "penstock.concat()"

    def __init__(self, children: Sequence[Node]) -> None:
        sizes: list[int] = []
        for number, child in enumerate(children):
            if child.size is None:
                raise UsageError(
                    "pipelines with an end in penstock.concat()",
                    got=f"an endless one, number {number}",
                    fix="add .take(n) to it, leave .repeat() out, or use penstock.mix()",
                )
            sizes.append(child.size)
        self.edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        super().__init__(children, int(self.edges[-1]))
        blocks = [child.facts.blocks for child in children]
        if all(one is not None for one in blocks):
            self.facts = replace(self.facts, blocks=np.concatenate([b for b in blocks if b is not None]))

    def place(self, position: I64, epoch: Epoch) -> Place:
        child = np.searchsorted(self.edges, position, "right") - 1
        return Place(child, position - self.edges[child], epoch)
