"""Batches that a plan cuts: what `bucket` and `batch_tokens` share. Lengths decide how many rows a step has.

Step n is a set of records and a padded length, by arithmetic on lengths; nothing is read to find them. The set is the
same for any number of ranks. Each rank takes its share of the rows, which differ by at most one; where shapes are fixed
(padded buckets, static budgets) every rank has the same number. Where a share is short of that, or empty because a step
has fewer rows than there are ranks, it is filled with a copy of a row that does not count: `valid` is False and labels
are -100. So every rank has a batch at every step. `valid_labels` counts the labels of the step on all ranks together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from penstock.collate.layout import Side
from penstock.core import randomness
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.order.balance import attention_cost, balance_rows
from penstock.order.buckets import BucketPlan
from penstock.order.budget import BudgetPlan
from penstock.order.ragged_index import BatchRecords
from penstock.order.shard import rows_of_rank
from penstock.order.superblocks import LengthInput
from penstock.sources.base import ColumnSource, LengthSource, Source, TokenSource
from penstock.steps import loss_runs
from penstock.steps.base import Context, Step, rows_before
from penstock.steps.batch import Batch
from penstock.steps.facts import Bounds
from penstock.steps.node import Node, SourceNode, WrapperNode
from penstock.steps.pad import Pad
from penstock.steps.picks import I64, BlockLayout, Epoch, Picks
from penstock.steps.shuffle import Shuffled


class _Each(Batch):
    """A step of the plan is a batch of any number of rows; filler rows are marked."""

    def rows(self, world: int) -> int:
        return 1


class PlannedOptions(Protocol):
    """The fields that `Bucket` and `BatchTokens` share."""

    @property
    def name(self) -> str: ...

    @property
    def balance(self) -> bool: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def side(self) -> Side: ...


@dataclass(frozen=True)
class PlannedStep(Step):
    """A verb used instead of `.batch()`. Only `balance` may change when a run is restored."""

    plans_batches = True

    @property
    def batch(self) -> Batch:
        return _Each(1, remainder="pad")

    def spec(self) -> dict[str, Any]:
        return {name: value for name, value in super().spec().items() if name != "balance"}

    @abstractmethod
    def plan(self, lengths: LengthInput, records: int, key: int) -> BucketPlan | BudgetPlan:
        """The plan of all batches."""

    def build(self, child: Node, context: Context) -> Node:
        shuffled = child if isinstance(child, Shuffled) else None
        leaf = child if shuffled is None else shuffled.child
        if shuffled is not None and (shuffled.step.block is not None or shuffled.step.lanes is not None):
            got = f"block={shuffled.step.block}, lanes={shuffled.step.lanes}"
            raise UsageError(f".shuffle(seed) without block and lanes before .{self.name}()", got=got)
        source = leaf.source if isinstance(leaf, SourceNode) else None
        measure = None if source is None else measure_of(source)
        if not isinstance(leaf, SourceNode) or measure is None:
            raise UsageError(
                f"documents of tokens right before .{self.name}(), and at most a .shuffle() between",
                got="another step" if source is None else f"records of {source.describe().get('kind', 'a source')}",
                fix=rows_before(self.name) if source is None else f"put .tokenize(...) before .{self.name}()",
            )
        key = randomness.key(context.seed, self.name, context.place) if shuffled is None else shuffled.base
        made = self.plan(lambda a, b: measure(np.arange(a, b)), len(leaf.source), key)
        return PlannedBatches(leaf, cast("PlannedOptions", self), made, measure, shuffle=shuffled is not None)


def measure_of(source: Source) -> Callable[[I64], I64] | None:
    """A function that returns the lengths of some of a source's records; None if they have no known lengths."""
    if isinstance(source, LengthSource):
        return source.lengths
    if not isinstance(source, ColumnSource) or "input_ids" not in source.columns:
        return None
    if not isinstance(source.read(np.zeros(1, np.int64))["input_ids"], Ragged):
        return None
    return lambda records: source.read(records)["input_ids"].lengths  # type: ignore[union-attr]


def _dtype_of(source: Source) -> np.dtype[Any]:
    return source.dtype if isinstance(source, LengthSource) else source.read(np.zeros(1, np.int64))["input_ids"].dtype


class RankRows(NamedTuple):
    """One rank's rows of some steps: rows [edges[i], edges[i + 1]) make step i, of which the first `real[i]` count."""

    records: I64
    edges: list[int]
    real: list[int]


@dataclass(frozen=True)
class _LabelCount:
    """Adds the count of labels."""

    def add(self, columns: Columns, layout: BlockLayout | None, labels: int) -> Columns:
        return {**columns, "valid_labels": np.array(labels, np.int64)} if "labels" in columns else columns


class PlannedBatches(WrapperNode):
    """A node whose rows are steps: `size` batches an epoch."""

    timed = (*WrapperNode.timed, "batches", "share", "padded")

    def __init__(
        self,
        child: SourceNode,
        step: PlannedOptions,
        plan: BucketPlan | BudgetPlan,
        measure: Callable[[I64], I64],
        shuffle: bool,
    ) -> None:
        super().__init__(child)
        self.step, self.plan, self.measure, self.shuffle = step, plan, measure, shuffle
        self.source = child.source
        self.size = plan.n_batches
        if self.size == 0:
            raise UsageError(
                f"at least one batch in .{step.name}()",
                got=f"none from {len(child.source)} records",
                fix='smaller batches, remainder="short", or records that fit',
            )
        self.fixed = plan.static if isinstance(plan, BudgetPlan) else plan.remainder == "pad"
        self.cut = isinstance(plan, BudgetPlan) and plan.overlong == "truncate"
        self.balance = step.balance
        self.rows = max(1, len(child.source) // self.size)  # of a step, on average
        self.runs = loss_runs.runs_of(child.source)
        bounds = self.facts.bounds
        if not isinstance(child.source, TokenSource):
            bounds = Bounds.of(_dtype_of(child.source))
        if bounds != Bounds():
            bounds = bounds.with_labels(step.pad_id)
        ids = self.facts.ids | {"input_ids", "labels"}
        self.facts = replace(self.facts, ids=ids, bounds=bounds, per_batch=_LabelCount())
        self.labelled = not {"labels", "attention_mask"}.isdisjoint(child.columns)
        self._pads: dict[int, Pad] = {}
        self.batch_plan = self

    def batches(self, position: I64, epoch: int) -> BatchRecords:
        """The records of some steps of an epoch, and the shape of each."""
        return self.plan.batch(position, epoch, shuffle=self.shuffle)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        """The records of these steps one after another; all of one epoch."""
        number = int(epoch) if not isinstance(epoch, np.ndarray) else int(epoch[0])
        return self.picks(self.batches(position, number).records, number)

    def picks(self, records: I64, epoch: int) -> Picks:
        """A record comes once in an epoch, so its number is also its row's number in the run."""
        return Picks(records, epoch, slot=records + epoch * len(self.source))

    def share(self, batches: BatchRecords, rank: int, world: int) -> RankRows:
        """The rows of one rank in each batch."""
        kept, edges, real = [], [0], []
        offsets, rows = batches.offsets.tolist(), batches.rows.tolist()
        costs = attention_cost(self.lengths(batches.records)) if self.balance and world > 1 else None
        for i, (a, b) in enumerate(pairwise(offsets)):
            if costs is None:
                start, stop = rows_of_rank(b - a, rank, world)
                mine = batches.records[a + start : a + stop]
            else:
                mine = batches.records[a + balance_rows(costs[a:b], world)[rank]]
            most = -(-rows[i] // world) if self.fixed else max(1, len(mine))
            kept.append(mine)
            if most > len(mine):
                kept.append(np.repeat(mine[-1:] if len(mine) else batches.records[a : a + 1], most - len(mine)))
            edges.append(edges[-1] + most)
            real.append(len(mine))
        return RankRows(np.concatenate(kept), edges, real)

    def lengths(self, records: I64) -> I64:
        """Tokens of each record, as many as a batch may hold."""
        found = self.measure(records)
        return np.minimum(found, self.plan.longest) if isinstance(self.plan, BudgetPlan) else found

    def padded(self, columns: Columns, picks: Picks, width: int) -> Columns:
        """Rows of one length, with attention mask and labels."""
        pad = self._pads.get(width)
        if pad is None:
            pad = Pad(width, pad_id=self.step.pad_id, side=self.step.side, truncate=self.cut)
            self._pads[width] = pad
        return pad.padded(columns, picks, own=self.facts.own_labels)

    def left_out(self) -> dict[str, int]:
        plan = self.plan
        if isinstance(plan, BudgetPlan):
            found = plan.report()
            return {"documents_dropped": found.dropped, "documents_truncated": found.truncated}
        never = int(plan.stranded.sum())
        return {"documents_left_over": plan.left_out - never, "documents_in_no_epoch": never}

    @property
    def warning(self) -> str | None:
        """A warning for the user before training, or None."""
        plan = self.plan
        if not isinstance(plan, BucketPlan) or not plan.stranded.any():
            return None
        never = [(b, count) for b, count in enumerate(plan.stranded.tolist()) if count]
        small = "; ".join(f"bucket {b} holds {count}, for batches of {plan.sizes[b]}" for b, count in never)
        return (
            f"{plan.stranded.sum()} documents are in no epoch of .{self.step.name}(): {small}. "
            'Use remainder="short" or "pad", smaller batches for these buckets, or other boundaries.'
        )

    def count_labels(self, picks: Picks) -> int:
        if self.labelled:
            columns, used = self.child.fetch(picks)
            return loss_runs.count_labels(self.padded(columns, used, int(self.lengths(picks.record).max(initial=1))))
        lengths = self.lengths(picks.record)
        if self.runs is not None:
            after_first = np.maximum(lengths - 1, 0)
            return int(loss_runs.trained_counts(self.runs(picks.record), np.ones_like(lengths), after_first).sum())
        return int(np.maximum(lengths - 1, 0).sum())
