"""The order of loaders over datasets without random access, and the pass that each row belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Columns
from penstock.engine.output import Output
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.facades.artifex.datasets.passes import BatchCalls, Passes, in_windows
from penstock.steps.base import Context, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import I64, Epoch, Picks, in_each_epoch

Finished = Callable[[dict[str, Any], Any], Any]
SizeOf = Callable[[Any], int]


@dataclass(frozen=True)
class PassOrder(Step):
    """Records in the order of the dataset, or with a seed shuffled within the windows of its passes.

    Rows also have the columns `epoch` and `slot`, their number since the start of the run.
    """

    by_position: ClassVar[bool] = True
    seed: int | None = None
    passes: Passes | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return "passes"

    @property
    def run_seed(self) -> int | None:
        return self.seed

    def spec(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def build(self, child: Node, context: Context) -> Node:
        return _PassOrdered(child, self)


class _PassOrdered(ContentNode):
    def __init__(self, child: Node, step: PassOrder) -> None:
        super().__init__(child)
        self.step = step
        self.base = randomness.key(step.seed or 0, "shuffle", 0)  # as `.shuffle()`: one window is the same order

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        passes, size = self.step.passes, self.size
        if self.step.seed is None or passes is None or size is None:
            return self.child.pick(position, epoch)

        def order(positions: I64, one: int) -> I64:
            return in_windows(positions, size, passes.window, randomness.key(self.base, one))

        return self.child.pick(in_each_epoch(position, epoch, order), epoch)

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        return Fetched({**columns, "epoch": used.column("epoch"), "slot": used.column("slot")}, used)


class Passed:
    """What identifies a dataset without random access: reading all of it would not tell more if it draws at random."""

    def __init__(self, dataset: BaseDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def fingerprint(self) -> str:
        return self.dataset._pass_id()

    def describe(self) -> dict[str, Any]:
        return self.dataset.describe()

    def locate(self, index: int) -> dict[str, Any]:
        return self.dataset.locate(index)


class PassBatches(Output):
    """The output: row numbers in, the batch of those samples of the pass out, after `finish(batch, keys)`."""

    name = "dataset"

    def __init__(self, dataset: BaseDataset, reader: Passes | BatchCalls, finish: Finished, size: SizeOf) -> None:
        self.dataset, self.reader, self.finish, self.size = dataset, reader, finish, size

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> Any:
        rows = np.asarray(columns["row"])
        if isinstance(self.reader, BatchCalls):
            batch = self.reader.take(int(np.asarray(columns["slot"])[0]), len(rows))
        else:
            samples = self.reader.take(int(np.asarray(columns["epoch"])[0]), rows.tolist())
            batch = self.dataset._batch_of(samples)
        return self.finish(batch, np.asarray(columns["key"]) if "key" in columns else None)

    def nbytes(self, batch: Any) -> int:
        return self.size(batch)
