"""Stages: what is done to the columns of a batch before the output. Most pipelines have none.

In this order, each only where the pipeline needs it: pad to the planned length, apply the steps after `.batch()`, count
labels, mark padding rows, keep this rank's rows of a global batch, add the columns of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.column_types import ColumnTypes
from penstock.core.columns import Columns, cut, rows_of, take
from penstock.order.shard import equal_rows, rows_of_rank
from penstock.plan.build import Plan
from penstock.steps.base import Finish
from penstock.steps.facts import BatchColumns
from penstock.steps.loss_runs import IGNORE, count_labels
from penstock.steps.picks import BlockLayout, Picks
from penstock.steps.rows import Read, Rows

if TYPE_CHECKING:
    from penstock.steps.planned_batches import PlannedBatches


class Block(NamedTuple):
    """The picks of steps [lo, hi), all of one epoch: rows [edges[i], edges[i + 1]) make step lo + i."""

    lo: int
    hi: int
    picks: Picks
    edges: list[int]
    real: list[int]  # rows of each step that are not padding
    read: Read
    widths: list[int] = []  # noqa: RUF012 - the padded length of each planned batch
    everyone: Picks | None = None  # the rows of all ranks without padding, where their labels are counted
    all_edges: list[int] = []  # noqa: RUF012
    assigned: list[NDArray[np.int64]] = []  # noqa: RUF012 - this rank's rows of each step, if assigned by cost or lane


class Part(NamedTuple):
    """One batch whose rows have been read: rows [start, stop) of `rows`, step `number` of `block`."""

    rows: Rows
    start: int
    stop: int
    block: Block
    number: int

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes * (self.stop - self.start) // max(1, len(self.rows.picks))


class BatchInProgress:
    """A batch between reading and delivery."""

    __slots__ = ("_picks", "columns", "labels", "layout", "part")

    def __init__(self, part: Part, columns: Columns) -> None:
        self.part, self.columns, self.labels = part, columns, 0
        self._picks: Picks | None = None
        planned = part.rows.picks.layout
        # What was planned for the current rows; cheaper than `picks.layout`.
        self.layout: BlockLayout | None = None if planned is None else planned.rows(part.start, part.stop)

    @property
    def picks(self) -> Picks:
        """The picks of the current rows."""
        if self._picks is None:
            self._picks = self.part.rows.picks.rows(slice(self.part.start, self.part.stop))
        return self._picks

    def keep(self, rows: NDArray[np.int64] | slice) -> None:
        """Keeps only some of the rows."""
        picks = self.picks
        if isinstance(rows, slice):
            self.columns = cut(self.columns, rows.start, rows.stop)
        else:
            self.columns = take(self.columns, rows)
        self._picks = kept = picks.rows(rows)
        self.layout = kept.layout


class Stage(Protocol):
    """One operation on a batch."""

    final_dtypes: bool  # whether it accepts columns in their final dtypes; a user's function gets them as read

    def __call__(self, batch: BatchInProgress) -> None: ...


class PadToPlan:
    """Pads a batch of `.bucket()` or `.batch_tokens()` to its planned length."""

    final_dtypes = False

    def __init__(self, planned: PlannedBatches) -> None:
        self.planned = planned

    def __call__(self, batch: BatchInProgress) -> None:
        width = batch.part.block.widths[batch.part.number]
        batch.columns = self.planned.padded(batch.columns, batch.picks, width)


class Apply:
    """Applies a step that comes after `.batch()`."""

    final_dtypes = False

    def __init__(self, step: Finish, base: int) -> None:
        self.step, self.base = step, base
        self.types = ColumnTypes("map_batches") if step.changes_content else None

    def __call__(self, batch: BatchInProgress) -> None:
        batch.columns = self.step.apply(batch.columns, batch.picks, self.base)
        if self.types is not None:
            batch.columns = self.types.check(batch.columns)


class CountPlanned:
    """Counts the labels of the step on all ranks from the plan alone."""

    final_dtypes = True

    def __init__(self, plan: Plan) -> None:
        self.root = plan.root

    def __call__(self, batch: BatchInProgress) -> None:
        block, i = batch.part.block, batch.part.number
        if block.everyone is not None:
            picks = block.everyone.rows(slice(block.all_edges[i], block.all_edges[i + 1]))
        elif block.real[i] < batch.part.stop - batch.part.start:
            picks = batch.picks.rows(slice(0, block.real[i]))
        elif (layout := batch.layout) is not None:
            batch.labels = layout.labels()
            return
        else:
            picks = batch.picks
        batch.labels = self.root.count_labels(picks)


class CountMade:
    """Counts the labels of the step in its columns, because a user's function may have changed them.

    With several ranks, the rows of the other ranks are computed too.
    """

    final_dtypes = False

    def __init__(self, plan: Plan, before: list[Stage]) -> None:
        self.root, self.before = plan.root, before

    def __call__(self, batch: BatchInProgress) -> None:
        block, i = batch.part.block, batch.part.number
        if block.everyone is None:
            batch.labels = count_labels(cut(batch.columns, 0, block.real[i]))
            return
        rows = self.root.open(block.everyone.rows(slice(block.all_edges[i], block.all_edges[i + 1])))
        count = block.all_edges[i + 1] - block.all_edges[i]
        part = Part(rows(0, count), 0, count, block, i)
        other = BatchInProgress(part, part.rows.columns(0, count, None))
        for stage in self.before:
            stage(other)
        batch.labels = count_labels(other.columns)


class MarkPadding:
    """Adds `valid`: False for the rows that fill up a batch; their labels become -100."""

    final_dtypes = False

    def __call__(self, batch: BatchInProgress) -> None:
        kept = np.arange(rows_of(batch.columns)) < batch.part.block.real[batch.part.number]
        out = dict(batch.columns)
        labels = out.get("labels")
        if not kept.all() and isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
            labels = labels.astype(np.int64)
            labels[~kept] = IGNORE
            out["labels"] = labels
        out["valid"] = kept
        batch.columns = out


class KeepRankRows:
    """Keeps this rank's rows of a global batch."""

    final_dtypes = False

    def __init__(self, rank: int, world: int, even: bool) -> None:
        self.rank, self.world, self.even = rank, world, even

    def __call__(self, batch: BatchInProgress) -> None:
        part = batch.part
        batch.keep(self.rows(part.block, part.number, part.stop - part.start))

    def rows(self, block: Block, number: int, count: int) -> NDArray[np.int64] | slice:
        """This rank's rows of step `number` of a block, of which the global batch has `count`."""
        if block.assigned:
            return block.assigned[number]
        if self.even:
            return equal_rows(count, self.rank, self.world)
        return slice(*rows_of_rank(count, self.rank, self.world))


class AddBatchColumns:
    """Adds the columns that belong to the batch and not to one row."""

    final_dtypes = True

    def __init__(self, columns: BatchColumns) -> None:
        self.add = columns.add

    def __call__(self, batch: BatchInProgress) -> None:
        batch.columns = self.add(batch.columns, batch.layout, batch.labels)


def stages_of(plan: Plan, pad: bool, even: bool = False) -> tuple[Stage, ...]:
    """The stages of a plan; `pad`: the last batch of an epoch is filled up with padding rows; `even`: see `Batches`."""
    facts = plan.root.facts
    stages: list[Stage] = [] if plan.root.batch_plan is None else [PadToPlan(plan.root.batch_plan)]
    stages += [Apply(step, base) for step, base in plan.finish]
    if facts.per_batch is not None:
        by_plan = facts.certain and not any(step.changes_content for step, _ in plan.finish)
        stages.append(CountPlanned(plan) if by_plan else CountMade(plan, stages[:]))
    if pad:
        stages.append(MarkPadding())
    if plan.needs_global_batch:
        stages.append(KeepRankRows(plan.definition.rank, plan.definition.world, even))
    if facts.per_batch is not None:
        stages.append(AddBatchColumns(facts.per_batch))
    return tuple(stages)
