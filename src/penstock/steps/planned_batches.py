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
from penstock.steps.need_tokens import need_chosen, need_tokens
from penstock.steps.node import Node, SourceNode, WrapperNode
from penstock.steps.pad import Pad
from penstock.steps.picks import I64, BlockLayout, Epoch, Picks
from penstock.steps.shuffle import Shuffled
from penstock.store.gather import by_part


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
        documents = need_lengths(leaf, self.name)
        key = randomness.key(context.seed, self.name, context.place) if shuffled is None else shuffled.base
        measure = documents.measure
        made = self.plan(lambda a, b: measure(np.arange(a, b)), documents.size, key)
        return PlannedBatches(leaf, cast("PlannedOptions", self), made, documents, shuffle=shuffled is not None)


@dataclass(frozen=True)
class Documents:
    """The documents that batches are planned over, by their positions in the node that they come from."""

    size: int
    measure: Callable[[I64], I64]
    source: Source | None  # with tokens and loss masks by these positions, if it is one token source
    dtype: np.dtype[Any]


def need_lengths(child: Node, verb: str) -> Documents:
    """The documents right before `.verb()`; refuses what has no known lengths, or no order that stays."""
    leaves = list(child.leaves())
    measures = [measure_of(leaf.source) for leaf in leaves]
    known = [measure for measure in measures if measure is not None]
    if len(known) < len(measures):
        kinds = {str(leaf.source.describe().get("kind", "a source")) for leaf in leaves}
        raise UsageError(
            f"documents of tokens right before .{verb}()",
            got=f"records of {', '.join(sorted(kinds))}",
            fix=f"put .tokenize(...) before .{verb}()",
        )
    if isinstance(child, SourceNode):
        return Documents(len(child.source), known[0], child.source, _dtype_of(child.source))
    moved = child.facts.moves and not child.facts.rejects
    fix = f"put one .shuffle() right before .{verb}(), after the other steps" if moved else rows_before(verb)
    if all(isinstance(leaf.source, TokenSource) for leaf in leaves):
        tokens = need_tokens(child, verb, fix)
        return Documents(len(tokens), tokens.lengths, tokens, tokens.dtype)
    need_chosen(child, verb, fix)

    def measure(documents: I64) -> I64:
        picks = child.pick(documents, 0)
        out = np.empty(len(documents), np.int64)
        source = np.zeros(len(out), np.int64) if picks.leaf is None else picks.leaf - leaves[0].number
        for k, where in by_part(source):
            out[where] = known[k](picks.record[where])
        return out

    return Documents(child.size or 0, measure, None, np.result_type(*(_dtype_of(leaf.source) for leaf in leaves)))


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
        child: Node,
        step: PlannedOptions,
        plan: BucketPlan | BudgetPlan,
        documents: Documents,
        shuffle: bool,
    ) -> None:
        super().__init__(child)
        self.step, self.plan, self.shuffle = step, plan, shuffle
        self.documents, self.measure = documents, documents.measure
        self.size = plan.n_batches
        if self.size == 0:
            raise UsageError(
                f"at least one batch in .{step.name}()",
                got=f"none from {documents.size} records",
                fix='smaller batches, remainder="short", or records that fit',
            )
        self.fixed = plan.static if isinstance(plan, BudgetPlan) else plan.remainder == "pad"
        self.cut = isinstance(plan, BudgetPlan) and plan.overlong == "truncate"
        self.balance = step.balance
        self.rows = max(1, documents.size // self.size)  # of a step, on average
        self.runs = loss_runs.runs_of(documents.source)
        bounds = self.facts.bounds
        if not isinstance(documents.source, TokenSource):
            bounds = Bounds.of(documents.dtype)
        if bounds != Bounds():
            bounds = bounds.with_labels(step.pad_id)
        ids = self.facts.ids | {"input_ids", "labels"}
        self.facts = replace(self.facts, ids=ids, bounds=bounds, per_batch=_LabelCount())
        self.labelled = any({"labels", "attention_mask"} & {*leaf.columns} for leaf in child.leaves())
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
        """A document comes once in an epoch, so its number is also its row's number in the run."""
        return self.child.pick(records, epoch).with_slot(records + epoch * self.documents.size)

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
        documents = picks.column("slot") % self.documents.size
        lengths = self.lengths(documents)
        if self.labelled:
            columns, used = self.child.fetch(picks)
            return loss_runs.count_labels(self.padded(columns, used, int(lengths.max(initial=1))))
        if self.runs is not None:
            after_first = np.maximum(lengths - 1, 0)
            return int(loss_runs.trained_counts(self.runs(documents), np.ones_like(lengths), after_first).sum())
        return int(np.maximum(lengths - 1, 0).sum())
