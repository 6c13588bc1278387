"""How a batch is computed: step number -> positions -> picks -> rows -> columns -> stages -> output.

One path for every pipeline; `batch_at`, iteration, threads and child processes all use it:

1. `_block`: the steps around the wanted one become positions (`plan.step_ranges`, `engine.rank_rows`), and one call of
   `Node.pick` turns the positions of many steps into picks. `Node.open` prepares to read them.
2. `read`: one call reads the rows of several consecutive steps; each step is a `Part` of them.
3. `make`: the columns of one part (`Rows.columns`), then the stages (`engine.stages`), then the output.

Everything here is a pure function of the plan and the step numbers; any thread may call it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.read_budget import OverBudget, at_most
from penstock.engine.call_sizes import MOST_BYTES, CallSizes, last_fitting
from penstock.engine.ordered_threads import RANGE_SECONDS
from penstock.engine.output import Output
from penstock.engine.rank_rows import positions_in_order, positions_of, rows_by_cost, rows_by_lane
from penstock.engine.stages import BatchInProgress, Block, KeepRankRows, Part, stages_of
from penstock.engine.stats import Stats
from penstock.plan.build import Plan
from penstock.plan.step_ranges import StepRanges
from penstock.sources.base import HeldRecords, PagedTokens
from penstock.steps.picks import Picks
from penstock.steps.rows import Rows

if TYPE_CHECKING:
    from penstock.steps.planned_batches import PlannedBatches

KEPT_BLOCKS = 4
LANE_ROWS = 1 << 19  # rows of all ranks that are assigned by lane in one call
REMOTE_ROWS = 256
LATE_BYTES = 1 << 20  # of a batch that is made by whoever takes it: it fits into the cache of a core
MANY_SOURCES, MANY_SOURCES_SECONDS = 256, 20e-3  # of a mixture, and the time of one call that reads its batches
EVEN_BATCHES, OTHER_BATCHES = 1024, 64  # small batches read in one call, where all have one size, and otherwise
READ_TOKENS = 1 << 19  # of requested pages, read in one call by a thread that makes one batch after the other
THREADED_RANGE_BYTES = 4 << 20  # small batches are computed together up to this many bytes on threads...
INLINE_RANGE_BYTES = 8 << 20  # ...and without threads: what was read should still be in the CPU cache on delivery
CALL_BYTES = 2 * INLINE_RANGE_BYTES  # read in a call of several batches, at most
WIDER_AFTER = 64  # calls that were bounded by an earlier one that had read too much


class _Kept(threading.local):
    """Batches that a thread has read and that it was not asked for yet."""

    at = -1  # the step of the first of them, or the one after those that the thread was asked for last
    parts: Sequence[Part] = ()


class Batches:
    """Computes the batches of one plan for one output."""

    def __init__(
        self, plan: Plan, ranges: StepRanges, output: Output, pad: bool, stats: Stats, even: bool = False,
        single: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.ranges, self.output, self.pad, self.stats = plan, ranges, output, pad, stats
        self.even = even  # whether ranks take the same number of rows of a short batch, some of them twice
        self._single = single  # whether one batch is asked for: then the order of those after it is not computed
        self.before_read: Callable[[int], None] | None = None  # called with the step before which a read ends
        self.requested: Callable[[], int] | None = None  # the first step whose pages nobody has requested yet
        self._sizes = CallSizes(plan.root)
        self._widest, self._narrow = EVEN_BATCHES, 0  # batches that a call may read, and calls that read that number
        self.stages = stages_of(plan, pad, even)
        self._keep = next((stage for stage in self.stages if isinstance(stage, KeepRankRows)), None)
        self._ids = plan.ids
        self._memory = output.memory if all(stage.final_dtypes for stage in self.stages) else None
        self._expands = output.expands and not self.stages
        batch = plan.definition.batch
        self._balance = plan.definition.world > 1 and batch is not None and batch.balance
        self._by_lane = plan.definition.world > 1 and plan.root.facts.lanes
        self._counts = (
            plan.root.facts.per_batch is not None and plan.definition.world > 1 and not plan.needs_global_batch
        )
        self._blocks: dict[int, Block] = {}
        self._lock = threading.Lock()
        self._turn = 0
        self._kept = _Kept()
        if stats.verbs is not None:
            stats.verbs.measure(self)

    def again(self) -> Batches:
        """The same, with its own blocks and statistics: for somebody who is at other steps."""
        return Batches(self.plan, self.ranges, self.output, self.pad, Stats(), self.even, self._single)

    def share_order(self, other: Batches) -> None:
        """The order of steps that one of both computes is computed for both: they are at nearly the same steps."""
        self._blocks, self._lock = other._blocks, other._lock

    @property
    def per_call(self) -> int:
        """Batches that may be read in one call: one where a user's function decides how large they become."""
        if not self.plan.predictable:
            return 1
        if any(isinstance(leaf.source, PagedTokens) for leaf in self.plan.root.leaves()):
            planned = self.plan.root.batch_plan
            rows = self.ranges.sections[-1].rows if planned is None else planned.rows
            return max(1, REMOTE_ROWS * self.plan.definition.world // rows)  # each row may take a request
        return EVEN_BATCHES if self.plan.root.facts.even else OTHER_BATCHES

    @property
    def one_size(self) -> bool:
        """Whether all batches are known to have the same number of bytes."""
        return self.plan.root.facts.even and self.plan.predictable and not self.stages

    def range_bytes(self, threads: int) -> int:
        """About how many bytes of batches are computed together.

        One batch of a stream: its records can only be read in order, so threads hold what others will ask for.
        """
        if not threads:
            return INLINE_RANGE_BYTES
        streamed = any(isinstance(leaf.source, HeldRecords) for leaf in self.plan.root.leaves())
        return 1 if streamed else THREADED_RANGE_BYTES

    @property
    def range_seconds(self) -> float:
        """How long one call may take to read several batches; their bytes are bounded besides."""
        return MANY_SOURCES_SECONDS if self._many_sources else RANGE_SECONDS

    @property
    def _many_sources(self) -> bool:
        """Whether nearly every row of a batch is a read of its own; in many batches some rows share a source."""
        return self.plan.root.facts.sources >= MANY_SOURCES

    @property
    def late(self) -> bool:
        """Whether batches that threads have read are made by the consumer.

        Right where making one is a single small copy: it is then in the cache of the core that uses it, and handing
        over made batches costs more.
        """
        return self._memory is not None and 0 < 2 * self._copied * self._memory.ids.itemsize <= LATE_BYTES

    @cached_property
    def _copied(self) -> int:
        """The tokens of one column of a batch that is made by a single copy of what was read; 0 for others."""
        facts = self.plan.root.facts
        if not (facts.one_copy and facts.width and self.output.wraps and self._memory) or self.stages:
            return 0
        return facts.width * -(-self.ranges.sections[-1].rows // self.plan.definition.world)

    def batches(self, lo: int, hi: int) -> list[Any]:
        """Batches [lo, hi), all of one epoch, as the output delivers them; the first of them, as for `read`."""
        parts = self._read_on(lo, hi)
        began = time.perf_counter()
        if len(parts) == 1 or self.one_size:
            made = [self.make(part) for part in parts]
        else:
            made, size = [], 0
            for part in parts:
                made.append(self.make(part))
                size += self.output.nbytes(made[-1])
                if size > MOST_BYTES:
                    break  # the others in another call, once these are delivered
        self.stats.add(0, 0, 0.0, 0.0, time.perf_counter() - began)
        return made

    def _read_on(self, lo: int, hi: int) -> Sequence[Part]:
        """Reads batches [lo, hi). Of pages that were requested ahead, a thread reads the rows of several calls at once.

        A call that looks pages up costs as much as copying a batch, and rows are a quarter of what is made of them.
        """
        kept = self._kept
        parts, follows = kept.parts, kept.at == lo
        kept.at, kept.parts = -1, ()
        if not (follows and parts):
            stop = hi
            if follows and self.requested is not None and self._copied:
                stop = max(hi, min(lo + READ_TOKENS // self._copied, self._block(lo).hi, self.requested()))
            try:
                parts = self.read(lo, stop)
            except Exception:
                if stop == hi:
                    raise
                parts = self.read(lo, hi)  # a later batch fails when it is asked for
        kept.at, kept.parts = min(hi, lo + len(parts)), parts[hi - lo :]
        return parts[: hi - lo]

    def read(self, lo: int, hi: int) -> list[Part]:
        """Reads the rows of batches [lo, hi); `make` turns each part into a batch.

        Only of the first batches, at least one, where those of all of them are many bytes (`engine.call_sizes`).
        """
        parts: list[Part] = []
        while lo < hi:
            block = self._block(lo)
            began = time.perf_counter()
            index, stop = lo - block.lo, min(hi, block.hi)
            if stop - lo > 1 and self._sizes.known and self.plan.predictable:
                fits = last_fitting(lo, stop, partial(self._planned_bytes, block))
                hi, stop = (hi, stop) if fits == stop else (fits, fits)
            if stop - lo > self._widest:
                hi = stop = lo + self._widest
            if self.before_read is not None:
                self.before_read(stop)
            edges = block.edges[index : stop - block.lo + 1]
            first, last = edges[0], edges[-1]
            try:
                rows = self._read_rows(block, first, last, stop - lo)
            except OverBudget:
                self._widest, self._narrow = (stop - lo) // 2, 0
                continue
            bounds = [edge - first for edge in edges] if first else edges
            parts += map(Part, repeat(rows), bounds, bounds[1:], repeat(block), range(index, stop - block.lo))
            self.stats.add(stop - lo, last - first, time.perf_counter() - began, 0.0, 0.0)
            lo = stop
        return parts

    def _read_rows(self, block: Block, first: int, last: int, steps: int) -> Rows:
        """Reads rows of several steps; `OverBudget` if they are more bytes than anybody knew before."""
        if last == first:
            return block.read(block.edges[-1], block.edges[-1] + 1)
        if steps == 1 or self.plan.root.facts.even:
            return block.read(first, last)
        with at_most(CALL_BYTES, (last - first) // steps):
            rows = block.read(first, last)
        if steps == self._widest:
            self._narrow += 1
            if self._narrow >= WIDER_AFTER:
                self._widest, self._narrow = 2 * self._widest, 0
        return rows

    def _planned_bytes(self, block: Block, lo: int, hi: int) -> int:
        return self._sizes.bytes_of(block.picks.rows(slice(block.edges[lo - block.lo], block.edges[hi - block.lo])))

    def make(self, part: Part) -> Any:
        """Makes one batch from rows that have been read."""
        rows, start, stop, _, _ = part
        if self._expands and (small := rows.compact(start, stop)) is not None:
            return self.output.expand(small)
        columns = rows.columns(start, stop, self._memory)
        if self.stages:
            columns = self._staged(part, columns)
        return self.output.make(columns, self._ids)

    def _staged(self, part: Part, columns: Columns) -> Columns:
        self._turn = (self._turn + 1) & 7
        timed = not self._turn  # one in eight is timed and counted eight times
        began = time.perf_counter() if timed else 0.0
        batch = BatchInProgress(part, columns)
        for stage in self.stages:
            stage(batch)
        if timed:
            self.stats.finished(8 * (time.perf_counter() - began))
        return batch.columns

    def order(self, step: int) -> Picks:
        """The picks of this rank's batch `step`, as planned."""
        block = self._block(step)
        first, last = block.edges[step - block.lo : step - block.lo + 2]
        return self._own(block.picks.rows(slice(first, last)), block, step - block.lo)

    def orders(self, lo: int, hi: int) -> Iterator[Picks]:
        """The picks of this rank's batches [lo, hi), as planned, those of many steps together."""
        while lo < hi:
            block = self._block(lo)
            stop = min(hi, block.hi)
            if self._keep is None:
                yield block.picks.rows(slice(block.edges[lo - block.lo], block.edges[stop - block.lo]))
            else:
                yield from (self.order(step) for step in range(lo, stop))
            lo = stop

    def rows(self, step: int) -> Picks:
        """The picks of this rank's batch `step` after replacements; reads the batch to find them."""
        return self._replaced(self.read(step, step + 1)[0])

    def with_picks(self, step: int) -> tuple[Any, Picks]:
        """This rank's batch `step`, and the picks of its rows after replacements; the rows are read once."""
        part = self.read(step, step + 1)[0]
        picks = self._replaced(part)
        return self.make(part), picks

    def _replaced(self, part: Part) -> Picks:
        return self._own(part.rows.picks.rows(slice(part.start, part.stop)), part.block, part.number)

    def _own(self, picks: Picks, block: Block, number: int) -> Picks:
        """This rank's rows of a step; `picks` are those of all ranks where the global batch is made first."""
        return picks if self._keep is None else picks.rows(self._keep.rows(block, number, len(picks)))

    def _block(self, step: int) -> Block:
        """The block of steps that contains `step`. The order of many batches is computed in one call, and kept."""
        section = self.ranges.section(step)
        root = self.plan.root
        if root.batch_plan is not None:
            per_rank = root.batch_plan.rows
        elif self.plan.needs_global_batch or self._counts:
            per_rank = section.rows
        else:
            per_rank = -(-section.rows // self.plan.definition.world)
        wide = 1 if self._single else max(1, root.facts.ahead // per_rank)
        number = (step - section.step) // wide
        with self._lock:
            block = self._blocks.get(number)
            if block is None or not block.lo <= step < block.hi:
                began = time.perf_counter()
                lo = section.step + number * wide
                block = self._plan_block(step, lo, lo + wide)
                self._blocks[number] = block
                while len(self._blocks) > KEPT_BLOCKS:
                    self._blocks.pop(next(iter(self._blocks)))
                self.stats.ordered(time.perf_counter() - began)
        return block

    def _plan_block(self, step: int, lo: int, hi: int) -> Block:
        """The block of the steps of [lo, hi) that are in the epoch and section of `step`."""
        ranges, definition, full = self.ranges, self.plan.definition, self.ranges.section(step).rows
        rank, world = (0, 1) if self.plan.needs_global_batch else (definition.rank, definition.world)
        current = ranges.at(step)
        lo = max(lo, step - current.offset // full, ranges.section(step).step)
        hi = min(hi, ranges.section_end(step), ranges.epoch_end(step) or hi)
        first, last = ranges.at(lo), ranges.at(hi - 1)
        root = self.plan.root
        if root.batch_plan is not None:
            return self._planned_block(root.batch_plan, lo, hi, first.offset, current.epoch)
        offsets = np.arange(hi - lo) * full + first.offset
        everyone: Picks | None = None
        rows: list[NDArray[np.int64]] = []
        if self._counts or self._balance:
            everyone = root.pick(np.arange(first.offset, int(offsets[-1]) + last.rows), current.epoch)
            if self._balance:
                rows = rows_by_cost(root.costs(everyone), full, definition.rank, definition.world, self.pad)
        if self._by_lane:
            rows = self._rows_by_lane(first.offset, int(offsets[-1]) + last.rows, full, current.epoch)
        mine = positions_in_order(offsets, full, last.rows, rank, world, self.pad, self.even)
        if rows and not self.plan.needs_global_batch:
            mine = positions_of(offsets, rows, last.rows)
        position, counts, real = mine
        if not counts.all():  # a share of 0 rows has the columns of this row, past the edges, of which it takes none
            position = np.append(position, offsets[-1])
        size = root.size
        if size is not None and self.pad:
            position = np.minimum(position, size - 1)  # padding rows repeat the epoch's last row; `valid` says so
        slot = position if size is None else position + current.epoch * size
        picks = root.pick(position, current.epoch).with_slot(slot)
        read = root.open(picks, self._expands)
        block = Block(lo, hi, picks, [0, *np.cumsum(counts).tolist()], real.tolist(), read)
        if everyone is None:
            return block._replace(assigned=rows) if rows else block
        all_edges = [*range(0, (hi - lo) * full, full), len(everyone)]
        return block._replace(everyone=everyone if self._counts else None, all_edges=all_edges, assigned=rows)

    def _rows_by_lane(self, start: int, stop: int, full: int, epoch: int) -> list[NDArray[np.int64]]:
        """This rank's rows of the steps of `full` rows in [start, stop), a bounded number of rows at a time."""
        rows, definition = [], self.plan.definition
        some = max(1, LANE_ROWS // full) * full
        for at in range(start, stop, some):
            lanes = self.plan.root.lanes(np.arange(at, min(stop, at + some)), epoch)
            rows += rows_by_lane(lanes, full, definition.rank, definition.world, self.pad, self.even)
        return rows

    def _planned_block(self, planned: PlannedBatches, lo: int, hi: int, offset: int, epoch: int) -> Block:
        """The same for planned batches (`.bucket()`, `.batch_tokens()`): the plan says which records a step has."""
        batches = planned.batches(np.arange(offset, offset + hi - lo), epoch)
        share = planned.share(batches, self.plan.definition.rank, self.plan.definition.world)
        everyone = planned.picks(batches.records, epoch) if self._counts else None
        widths, all_edges = batches.lengths.tolist(), batches.offsets.tolist()
        picks = planned.picks(share.records, epoch)
        read = planned.open(picks)
        return Block(lo, hi, picks, share.edges, share.real, read, widths, everyone, all_edges)
