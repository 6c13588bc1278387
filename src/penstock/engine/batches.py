"""Computes batches: steps -> rows -> picks -> columns -> what the trainer gets. Pure; any thread may call it.

Consecutive steps are computed together: one `pick` and one `fetch` for all of them, then cut into batches without
copying, so that the cost of a NumPy call is shared by many small batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import Buffers
from penstock.core.columns import Columns, Compact, Recipe, cut, rows_of, take
from penstock.core.errors import StageError
from penstock.engine.rank_rows import dealt, gathered, stretches
from penstock.engine.stats import Stats
from penstock.order.shard import rows_of_rank
from penstock.plan.build import Plan
from penstock.plan.step_ranges import Cuts
from penstock.steps.mapping import MapBatches
from penstock.steps.masks import IGNORE
from penstock.steps.node import Laid, Later, Picks, Shifted
from penstock.steps.planned import Planned, valid

KEPT_BLOCKS = 4
Items = Sequence[Any] | NDArray[Any]  # an array is as many items as its first axis has


class Output(Protocol):
    """The last stage: NumPy columns in, a framework's batch out."""

    name: str

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        """Final dtypes and contiguous memory, for many batches at once."""
        ...

    def batch(self, columns: Columns) -> Any:
        """One batch as the framework's own object."""
        ...

    def nbytes(self, batch: Any) -> int: ...


@runtime_checkable
class Filling(Protocol):
    """A last step that makes all columns from the first `length` tokens of each record."""

    length: int

    @property
    def recipe(self) -> Recipe:
        """The columns from `tokens`, of that length, and `counts`, how many of them a row has."""
        ...

    def compact(self, columns: Columns) -> Compact | None:
        """What the recipe takes, from records as they were read; None if they bring more than tokens."""
        ...


@runtime_checkable
class Shifting(Output, Protocol):
    """An output that takes two columns of ids which overlap as one array of shape (2, rows, length)."""

    def cast(self, pairs: NDArray[Any]) -> NDArray[Any]:
        """Their final type, for one pair or many."""
        ...

    def couple(self, first: str, second: str, ready: bool) -> Callable[[NDArray[Any]], Any]:
        """What makes a batch of a pair; with `ready` the pair has been through `cast`."""
        ...


@runtime_checkable
class Lending(Output, Protocol):
    """An output that lends the memory its batches are made in."""

    @property
    def ids(self) -> np.dtype[Any]:
        """The type of token ids."""
        ...

    @property
    def buffers(self) -> Buffers: ...

    def finish(self, columns: Columns) -> Any:
        """A batch of new, contiguous columns whose token ids have their final type."""
        ...


class Block(NamedTuple):
    """The picks of steps [lo, hi), all of one epoch: rows [edges[i], edges[i + 1]) make step lo + i."""

    lo: int
    hi: int
    picks: Picks
    edges: list[int]
    real: list[int]  # rows of each step that are not padding
    widths: list[int] = []  # noqa: RUF012 - of planned batches: the length each is padded to
    everyone: Picks | None = None  # the rows of all ranks that are not padding, where their labels must be counted
    all_edges: list[int] = []  # noqa: RUF012
    spans: Callable[[int, int], NDArray[Any]] | None = None  # reads rows of shifted columns, or the heads of documents
    counts: NDArray[np.int32] | None = None  # tokens of each document's head
    laid: Laid | None = None  # makes batches one by one
    dealt: list[NDArray[np.int64]] = []  # noqa: RUF012 - this rank's rows of each step, where they are dealt by cost


class Work:
    """Everything needed to compute batches of one plan for one output."""

    def __init__(self, plan: Plan, cuts: Cuts, output: Output, pad: bool, stats: Stats) -> None:
        self.plan, self.cuts, self.output, self.pad, self.stats = plan, cuts, output, pad, stats
        self._planned = plan.root if isinstance(plan.root, Planned) else None
        self._seal = plan.root.seal
        self._plain = not plan.finish and not pad and self._seal is None
        self._counts = self._seal is not None and plan.definition.world > 1 and not plan.whole
        self._recounts = self._seal is not None and any(isinstance(step, MapBatches) for step, _ in plan.finish)
        self._deals = plan.definition.world > 1 and bool(getattr(plan.definition.batch, "balance", False))
        self._names = plan.root.shifted if self._plain else None
        self._shifting = output if self._names is not None and isinstance(output, Shifting) else None
        self._expands = bool(getattr(output, "expands", False)) and not (pad or plan.whole or self._seal)
        last = plan.finish[-1][0] if plan.finish and self._expands else None
        self._last = last if isinstance(last, Filling) else None
        self._recipe = Shifted(*self._names) if self._names is not None and self._expands else None
        alone = self._seal is not None and plan.root.certain and not (plan.finish or pad or plan.whole)
        self._lending = output if alone and isinstance(output, Lending) else None
        self._quick: Callable[[Columns, frozenset[str]], Any] | None = getattr(output, "quick", None)
        self._recent: Block | None = None
        self._blocks: dict[int, Block] = {}
        self._lock = threading.Lock()

    def batches(self, lo: int, hi: int) -> list[Any]:
        """Batches [lo, hi), all of one epoch, as the output gives them."""
        return [batch for lo, hi, block in self._blocks_of(lo, hi) for batch in self._make(block, lo, hi)]

    def parts(self, lo: int, hi: int) -> Items:
        """The same batches before the output's work, for whoever calls `deliver` on each when it is wanted."""
        if self._shifting is not None:
            return self._pairs(lo, hi)
        return [part for lo, hi, block in self._blocks_of(lo, hi) for part in self._read(block, lo, hi, whole=False)]

    def ready(self, lo: int, hi: int) -> Items:
        """The same batches with most of the output's work done; `deliver` does the little that is best done last."""
        if self._shifting is None:
            return self.batches(lo, hi)
        pairs, cast = self._pairs(lo, hi), self._shifting.cast
        return cast(pairs) if isinstance(pairs, np.ndarray) else [cast(pair) for pair in pairs]

    def delivery(self, ready: bool) -> Callable[[Any], Any] | None:
        """What makes a batch of an item of `ready` or of `parts`; None if there is nothing left to do."""
        if self._shifting is not None and self._names is not None:
            return self._shifting.couple(*self._names, ready)
        return None if ready else self._deliver

    def _deliver(self, part: Columns | Later) -> Any:
        if not isinstance(part, dict):
            if self._lending is None:
                raise StageError("an output that lends memory", got=self.output.name)
            return self._lending.finish(part.make(self._lending.ids, self._lending.buffers.empty))
        if self._quick is not None:
            return self._quick(part, self.plan.root.ids)
        return self.output.batch(self.output.block(part, self.plan.root.ids))

    def _pairs(self, lo: int, hi: int) -> Items:
        """Batches of two shifted columns, each a view of shape (2, rows, length) over what was read once."""
        block = self._recent
        if block is None or lo < block.lo or hi > block.hi:
            block = self._recent = self._block(lo)
            if hi > block.hi:
                return [pair for lo, hi, block in self._blocks_of(lo, hi) for pair in self._pairs(lo, hi)]
        began = time.perf_counter()
        first, last = block.edges[lo - block.lo], block.edges[hi - block.lo]
        if block.spans is None:
            raise StageError("a block of shifted columns", got="another one")
        spans = block.spans(first, last)
        wide, step = spans.strides
        steps, rows, length = hi - lo, (last - first) // (hi - lo), spans.shape[1] - 1
        self.stats.add(steps, last - first, time.perf_counter() - began, 0.0, 0.0)
        if rows != block.edges[1] or rows * steps != last - first:  # the last batch of an epoch may be short
            edges = block.edges[lo - block.lo : hi - block.lo + 1]
            return [
                np.ndarray((2, b - a, length), spans.dtype, spans, (a - first) * wide, (step, wide, step))
                for a, b in pairwise(edges)
            ]
        return np.ndarray((steps, 2, rows, length), spans.dtype, spans, 0, (rows * wide, step, wide, step))

    def _blocks_of(self, lo: int, hi: int) -> Iterator[tuple[int, int, Block]]:
        while lo < hi:
            block = self._block(lo)
            yield lo, min(hi, block.hi), block
            lo = block.hi

    def _make(self, block: Block, lo: int, hi: int) -> list[Any]:
        parts = self._read(block, lo, hi, whole=True)
        began = time.perf_counter()
        made = [self.output.batch(part) if isinstance(part, dict) else self._deliver(part) for part in parts]
        self.stats.add(0, 0, 0.0, 0.0, time.perf_counter() - began)
        return made

    def _read(self, block: Block, lo: int, hi: int, whole: bool) -> Sequence[Columns | Later]:
        """Columns of each step; with `whole` they are already in their final types, made for all steps at once."""
        clock = time.perf_counter
        t0 = clock()
        edges = block.edges[lo - block.lo : hi - block.lo + 1]
        first, last = edges[0], edges[-1]
        if block.laid is not None:
            later = block.laid.read(edges, self._planned_labels(block, block.laid, lo - block.lo, edges))
            self.stats.add(hi - lo, last - first, clock() - t0, 0.0, 0.0)
            return later
        small = self._small(block, first, last)
        columns, used = (small, block.picks) if small else self.plan.root.fetch(block.picks.rows(slice(first, last)))
        t1 = clock()
        if first:
            edges = [e - first for e in edges]
        if small is not None:
            parts: list[Columns] = [Compact(part, small.recipe) for part in _split(columns, edges)]
        elif self._plain:
            parts = _split(self.output.block(columns, self.plan.root.ids) if whole else columns, edges)
        else:
            parts = self._finish(columns, used, edges, block, lo - block.lo, whole)
        self.stats.add(hi - lo, last - first, t1 - t0, clock() - t1, 0.0)
        return parts

    def _small(self, block: Block, first: int, last: int) -> Compact | None:
        """Rows of a block as little as they can be read, where the output can make the rest."""
        if block.spans is None:
            return None
        if block.counts is not None and self._last is not None:
            return Compact({"tokens": block.spans(first, last), "counts": block.counts[first:last]}, self._last.recipe)
        return None if self._recipe is None else Compact({"rows": block.spans(first, last)}, self._recipe)

    def order(self, step: int) -> Picks:
        """The picks of this rank's batch `step`, as planned."""
        block = self._block(step)
        first, last = block.edges[step - block.lo : step - block.lo + 2]
        return block.picks.rows(slice(first, last))

    def rows(self, step: int, row: int) -> Picks:
        """The picks that really make one row of this rank's batch `step`; reads the batch's data to know them."""
        return self.plan.root.fetch(self.order(step)).picks.rows(slice(row, row + 1))

    def _block(self, step: int) -> Block:
        """The block of steps that holds `step`: order is worked out for many batches in one call, and kept."""
        stage = self.cuts.stage(step)
        if self._planned is not None:
            per_rank = self._planned.rows
        elif self.plan.whole or self._counts:
            per_rank = stage.rows
        else:
            per_rank = -(-stage.rows // self.plan.definition.world)
        wide = max(1, self.plan.root.ahead // per_rank)
        number = (step - stage.step) // wide
        with self._lock:
            block = self._blocks.get(number)
            if block is None or not block.lo <= step < block.hi:
                began = time.perf_counter()
                lo = stage.step + number * wide
                block = self._plan_block(step, lo, lo + wide)
                self._blocks[number] = block
                while len(self._blocks) > KEPT_BLOCKS:
                    self._blocks.pop(next(iter(self._blocks)))
                self.stats.ordered(time.perf_counter() - began)
        return block

    def _plan_block(self, step: int, lo: int, hi: int) -> Block:
        """Picks of the steps of [lo, hi) that are in the epoch and stage of `step`."""
        cuts, definition, full = self.cuts, self.plan.definition, self.cuts.stage(step).rows
        rank, world = (0, 1) if self.plan.whole else (definition.rank, definition.world)
        cut = cuts.at(step)
        lo = max(lo, step - cut.offset // full, cuts.stage(step).step)
        hi = min(hi, cuts.stage_end(step), cuts.epoch_end(step) or hi)
        first, last = cuts.at(lo), cuts.at(hi - 1)
        if self._planned is not None:
            return self._planned_block(self._planned, lo, hi, first.offset, cut.epoch)
        offsets = np.arange(hi - lo) * full + first.offset
        everyone: Picks | None = None
        rows: list[NDArray[np.int64]] = []
        if self._counts or self._deals:
            everyone = self.plan.root.pick(np.arange(first.offset, int(offsets[-1]) + last.rows), cut.epoch)
            if self._deals:
                rows = dealt(self.plan.root.costs(everyone), full, definition.rank, definition.world, self.pad)
        mine = stretches(offsets, full, last.rows, rank, world, self.pad)
        if rows and not self.plan.whole:
            mine = gathered(offsets, rows, last.rows)
        position, counts, real = mine
        size = self.plan.root.size
        if size is not None and self.pad:
            position = np.minimum(position, size - 1)  # padding rows repeat the epoch's last row; `valid` says so
        slot = position if size is None else position + cut.epoch * size
        picks = self.plan.root.pick(position, cut.epoch).with_slot(slot)
        block = Block(lo, hi, picks, [0, *np.cumsum(counts).tolist()], real.tolist())
        if self._shifting is not None or self._recipe is not None:
            block = block._replace(spans=self.plan.root.spans(picks.record))
        elif self._last is not None and len(self.plan.finish) == 1:
            heads = self.plan.root.heads(picks.record, self._last.length)
            if heads is not None:
                block = block._replace(spans=heads.read, counts=heads.counts)
        if self._lending is not None:
            block = block._replace(laid=self.plan.root.laid(picks))
        if everyone is None:
            return block
        all_edges = [*range(0, (hi - lo) * full, full), len(everyone)]
        return block._replace(everyone=everyone if self._counts else None, all_edges=all_edges, dealt=rows)

    def _planned_block(self, planned: Planned, lo: int, hi: int, offset: int, epoch: int) -> Block:
        """The same where the plan says which records a step has, and each rank takes its share of them."""
        batches = planned.batches(np.arange(offset, offset + hi - lo), epoch)
        share = planned.share(batches, self.plan.definition.rank, self.plan.definition.world)
        everyone = planned.picks(batches.records, epoch) if self._counts else None
        widths, all_edges = batches.lengths.tolist(), batches.offsets.tolist()
        return Block(lo, hi, planned.picks(share.records, epoch), share.edges, share.real, widths, everyone, all_edges)

    def _finish(
        self, columns: Columns, picks: Picks, edges: list[int], block: Block, first: int, whole: bool
    ) -> list[Columns]:
        """Everything that is done to a whole batch, for steps from number `first` of the block on."""
        plan = self.plan
        parts = []
        for i, (raw, (a, b)) in enumerate(zip(_split(columns, edges), pairwise(edges), strict=False), first):
            mine = picks.rows(slice(a, b))
            part = raw if self._planned is None else self._planned.padded(raw, mine, block.widths[i])
            labels = self._labels(part, mine, block, i) if self._seal is not None and not self._recounts else 0
            part = self._finished(part, mine)
            if self._recounts:
                labels = self._recount(part, block, i)
            if self.pad:
                part = _mark_padding(part, block.real[i])
            if plan.whole and block.dealt:
                part, mine = take(part, block.dealt[i]), mine.rows(block.dealt[i])
            elif plan.whole:
                start, stop = rows_of_rank(b - a, plan.definition.rank, plan.definition.world)
                part, mine = cut(part, start, stop), mine.rows(slice(start, stop))
            if self._seal is not None:
                part = self._seal.apply(part, mine, labels)
            parts.append(self.output.block(part, plan.root.ids) if whole else part)
        return parts

    def _finished(self, part: Columns, picks: Picks) -> Columns:
        for step, base in self.plan.finish:
            small = step.compact(part) if step is self._last else None
            part = step.apply(part, picks, base) if small is None else small
        return part

    def _recount(self, part: Columns, block: Block, i: int) -> int:
        """Labels of step i of the block after the user's functions. Those of other ranks are made to be counted."""
        if block.everyone is None:
            return valid(cut(part, 0, block.real[i]))
        columns, used = self.plan.root.fetch(block.everyone.rows(slice(*block.all_edges[i : i + 2])))
        if self._planned is not None:
            columns = self._planned.padded(columns, used, block.widths[i])
        return valid(self._finished(columns, used))

    def _planned_labels(self, block: Block, laid: Laid, first: int, edges: list[int]) -> list[int]:
        """The labels that count in steps from number `first` of the block on, on all ranks."""
        everyone = block.everyone
        if everyone is None:
            return [sum(laid.labels[a:b]) for a, b in pairwise(edges)]
        steps = pairwise(block.all_edges[first : first + len(edges)])
        return [self.plan.root.count_labels(everyone.rows(slice(a, b))) for a, b in steps]

    def _labels(self, part: Columns, mine: Picks, block: Block, i: int) -> int:
        """Labels that count in step i of the block, on all ranks: by the plan, or counted where it cannot say."""
        if not self.plan.root.certain:
            return valid(cut(part, 0, block.real[i]))
        if block.everyone is not None:
            mine = block.everyone.rows(slice(block.all_edges[i], block.all_edges[i + 1]))
        elif block.real[i] < len(mine):
            mine = mine.rows(slice(0, block.real[i]))
        return self.plan.root.count_labels(mine)


def _split(columns: Columns, edges: list[int]) -> list[Columns]:
    if len(edges) == 2:
        return [columns]
    arrays = [(name, column) for name, column in columns.items() if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns):
        return [{name: column[a:b] for name, column in arrays} for a, b in pairwise(edges)]
    return [cut(columns, a, b) for a, b in pairwise(edges)]


def _mark_padding(columns: Columns, real: int) -> Columns:
    kept = np.arange(rows_of(columns)) < real
    out = dict(columns)
    labels = out.get("labels")
    if not kept.all() and isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
        labels = labels.astype(np.int64)
        labels[~kept] = IGNORE
        out["labels"] = labels
    out["valid"] = kept
    return out
