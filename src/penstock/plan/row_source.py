"""A pipeline's rows as a source: what comes before `.batch()`, by number, in the order of the first epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.plan.build import build
from penstock.plan.definition import Definition


class RowSource:
    """Satisfies `Source`, so that one pipeline can be the source of another."""

    def __init__(self, definition: Definition) -> None:
        if definition.batch is not None:
            raise UsageError("a pipeline of single rows", got="one with .batch()", fix="leave .batch() out")
        self.definition = definition
        self.plan = build(definition)
        self.size = self.plan.root.size

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError("an endless pipeline has no length: .take(n) gives it one")
        return self.size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        root = self.plan.root
        position = np.asarray(indices, np.int64)
        return root.fetch(root.pick(position, 0).with_slot(position)).columns

    def fingerprint(self) -> str:
        return f"rows:{self.plan.fingerprint}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "pipeline rows", "records": self.size}

    def locate(self, index: int) -> dict[str, Any]:
        root = self.plan.root
        position = np.array([index])
        picks = root.fetch(root.pick(position, 0).with_slot(position)).picks
        return {"row": index} | root.explain(picks)

    def __getstate__(self) -> Definition:
        return self.definition

    def __setstate__(self, definition: Definition) -> None:
        self.__init__(definition)  # type: ignore[misc]
