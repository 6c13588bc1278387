"""Counts the requests and bytes of a run by computing which bytes some of its steps read. Nothing is read.

The ranges come from the plan itself, are cut into pages and merged into requests by `storage.coalesce`, the rule of the
cache. A run that is small enough is counted completely, step after step, with a cache that keeps every page. Of a
larger one some steps on some hosts are counted, at most about two million rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from math import ceil
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.order.lanes import lane_cut
from penstock.order.ragged_index import ranges
from penstock.order.shard import rows_of_rank
from penstock.order.shuffle import permute
from penstock.plan.ahead_groups import CHUNK_BYTES, MOST_STEPS, bytes_ahead, steps_after
from penstock.plan.assumptions import Assumptions
from penstock.plan.block_layout import BlockLayout, Fetchers
from penstock.plan.build import Plan
from penstock.plan.byte_layout import ByteLayout, RecordLayout
from penstock.plan.step_ranges import StepRanges
from penstock.sources.block_reads import Fetcher
from penstock.steps.picks import Picks
from penstock.storage.coalesce import coalesce, pages, parted

I64 = NDArray[np.int64]

ROWS = 1 << 21  # rows whose reads are computed, at most about
_STEPS, _HOSTS, _RANKS, _CALL = 32, 8, 8, 1 << 18
_CALLS, _ALL_PAGES = 1 << 14, 1 << 24
_LESS = 4  # times less is counted of row groups and shards: what a process keeps of them is followed one by one
_ASSIGNED = 1 << 22  # rows of a step up to which they are assigned to hosts by lane


class RankReads(NamedTuple):
    """Items [start, start + length) of a layout that rows of a rank read in a step, through one of its sources."""

    layout: ByteLayout
    starts: I64
    lengths: I64
    source: int = 0


class Steps(Protocol):
    """The steps of an epoch, or of a part of an endless one; later steps are those of later epochs."""

    @property
    def steps(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def same(self) -> bool:
        """Whether all ranks read the same rows."""
        ...

    @property
    def rows(self) -> int:
        """Rows that a rank makes in a step, on average, rounded up."""
        ...

    def reads(self, step: int, rank: int, most: int) -> tuple[int, float, list[RankReads]]:
        """Rows computed (at most about `most`), all rows of the rank / those, and what they read."""
        ...


@dataclass(frozen=True)
class PlanSteps:
    """The steps of a built plan."""

    plan: Plan
    ranges: StepRanges
    steps: int
    world: int
    layouts: dict[int, ByteLayout]

    @property
    def same(self) -> bool:
        return self.plan.needs_global_batch

    @property
    def rows(self) -> int:
        planned = self.plan.root.batch_plan
        full = planned.rows if planned is not None else self.ranges.sections[0].rows
        return -(-full // (1 if self.same else self.world))

    def reads(self, step: int, rank: int, most: int) -> tuple[int, float, list[RankReads]]:
        root, at = self.plan.root, self.ranges.at(step)
        rank, world = (0, 1) if self.same else (rank, self.world)
        if root.batch_plan is not None:
            records = root.batch_plan.batches(np.array([at.offset]), at.epoch).records
            mine = records[slice(*rows_of_rank(len(records), rank, world))]
            picks, rows = root.batch_plan.picks(mine[:most], at.epoch), len(mine)
        else:
            start, stop = rows_of_rank(at.rows, rank, world)
            rows, position = stop - start, np.arange(start, min(stop, start + most))
            if root.facts.lanes and world > 1 and at.rows <= _ASSIGNED:
                lanes = root.lanes(at.offset + np.arange(at.rows), at.epoch)
                position = lane_cut(lanes, rank, world)[:most]
            picks = root.pick(at.offset + position, at.epoch)
        return len(picks), rows / max(1, len(picks)), self._reads_of(picks)

    def together(self, group: range, rank: int) -> tuple[int, float, list[RankReads]] | None:
        """Rows, rows and reads of some steps of a rank, from one call for all; None where each is looked at by itself.

        Not for row groups: which of them a process keeps depends on the step that reads them.
        """
        if any(isinstance(layout, BlockLayout) for layout in self.layouts.values()):
            return None
        root, first, last = self.plan.root, self.ranges.at(group[0]), self.ranges.at(group[-1])
        rank, world, full = (0, 1, first.rows) if self.same else (rank, self.world, first.rows)
        start, stop = rows_of_rank(full, rank, world)
        if root.batch_plan is not None or (last.epoch, last.rows) != (first.epoch, full):
            return None
        if len(group) * (stop - start) > _CALL or len(group) * full > _ASSIGNED:
            return None
        rows = np.arange(start, stop)[None]
        if root.facts.lanes and world > 1:
            lanes = root.lanes(first.offset + np.arange(len(group) * full), first.epoch)
            rows = lane_cut(lanes.reshape(len(group), full), rank, world)
        position = first.offset + full * np.arange(len(group))[:, None] + rows
        picks = root.pick(position.ravel(), first.epoch)
        return len(picks), float(len(picks)), self._reads_of(picks)

    def _reads_of(self, picks: Picks) -> list[RankReads]:
        root = self.plan.root
        found: dict[int, list[tuple[I64, I64]]] = {}
        for leaf, starts, lengths, *_ in root.reads(picks):
            found.setdefault(leaf.number, []).append((starts, lengths))
        return [
            RankReads(
                self.layouts[leaf], np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts]), leaf
            )
            for leaf, parts in found.items()
        ]


@dataclass(frozen=True)
class EvenSteps:
    """The steps of a global shuffle (or of file order) of rows of equal size, known only by their number.

    Row i is the items [i * stride, i * stride + length) of the layout.
    """

    layout: ByteLayout
    total: int
    batch: int
    world: int
    key: int | None = 0
    stride: int = 1
    length: int = 1
    same: bool = False

    @property
    def steps(self) -> int:
        return max(1, self.total // self.batch)

    @property
    def rows(self) -> int:
        return -(-self.batch // self.world)

    def reads(self, step: int, rank: int, most: int) -> tuple[int, float, list[RankReads]]:
        start, stop = rows_of_rank(self.batch, rank, self.world)
        count, (epoch, place) = min(stop - start, most), divmod(step, self.steps)
        index = place * self.batch + np.arange(start, start + count)
        if self.key is not None:
            index = permute(index, self.total, self.key + epoch)
        starts = index * self.stride
        return count, (stop - start) / max(1, count), [RankReads(self.layout, starts, np.full(count, self.length))]


@dataclass(frozen=True)
class Counted:
    """What one host does in one step, on average, with a cache that starts empty.

    With `complete`, every step of the hosts was counted, with a cache that keeps all pages; else each step on its own.
    """

    rows: float
    used_bytes: float  # that the rows hold
    items: float  # tokens or records that the rows read
    accesses: float  # distinct pages in each step of each rank
    fetched: float  # pages that had to be fetched
    requests: float
    bytes: float
    first_requests: int
    first_bytes: int
    first_objects: int
    later_requests: float  # in the epoch after it, with `complete`
    later_bytes: float
    complete: bool
    sampled_steps: int
    sampled_hosts: int


def count(steps: Steps, hosts: int, layouts: list[ByteLayout], assumed: Assumptions, miss: float = 1.0) -> Counted:
    """Counts the requests of a run; `miss` is the share of pages that a cache has not kept from earlier steps.

    The ranks of a host share a cache, and each fetches for itself the pages of `fetch_steps` steps at a time.
    """
    sample = _Sample.of(steps, hosts, layouts, assumed)
    sums, first = np.zeros((2, len(_Fetched._fields))), [0.0] * 3
    for host in sample.hosts:
        marked = [each for each in layouts if each.cached and not each.private and sample.complete]
        kept = {id(each): np.zeros(each.last_page + 1, bool) for each in marked}
        fetchers = Fetchers() if sample.complete else None
        ranks = range(host * steps.world // hosts, (host + 1) * steps.world // hosts)
        ranks = ranks[:1] if _one_reads(steps, layouts) else ranks
        chosen = ranks[:: -(-len(ranks) // sample.ranks)]
        share, at_once = len(ranks) / len(chosen), np.zeros(3)
        for rank, group, read in sample.of_ranks(steps, chosen):
            made = share * _of_group(read, group[0], rank, kept, fetchers, assumed, miss)
            sums[int(group[0] >= steps.steps)] += made
            if group[0] == 0:
                at_once += made[-3:]
        first = [max(old, new) for old, new in zip(first, at_once.tolist(), strict=True)]
    now, then = (_Fetched(*row) for row in (sums / (len(sample.hosts) * sample.steps)).tolist())
    return Counted(
        now.rows, now.used_bytes, now.items, now.accesses, now.fetched, now.requests, now.bytes,
        ceil(first[0]), ceil(first[1]), ceil(first[2]), then.requests, then.bytes,
        sample.complete, sample.steps, len(sample.hosts),
    )  # fmt: skip


def _one_reads(steps: Steps, layouts: list[ByteLayout]) -> bool:
    """Whether one rank of a host requests all, and the others find it in the cache."""
    return steps.same and all(layout.cached and not layout.private for layout in layouts)


def _are_ahead(layouts: list[ByteLayout]) -> bool:
    """Whether records are requested for groups of steps, see `ahead_groups`; not where pages are fetched ahead."""
    paged = any(layout.cached and not layout.private for layout in layouts)
    return not paged and any(isinstance(layout, RecordLayout) and layout.ahead for layout in layouts)


def _bytes_ahead(read: _Read) -> int:
    """The bytes of these reads that are requested ahead."""
    rows = dict[RecordLayout, list[I64]]()
    for each in read.reads:
        if isinstance(each.layout, RecordLayout) and each.layout.ahead:
            rows.setdefault(each.layout, []).append(each.starts)
    return sum(bytes_ahead(layout.source, np.concatenate(parts)) for layout, parts in rows.items())


class _Read(NamedTuple):
    """What a rank reads in some steps: rows computed, all rows, reads."""

    rows: int
    all_rows: float
    reads: list[RankReads]

    @classmethod
    def of(cls, steps: Steps, group: range, rank: int) -> _Read:
        if isinstance(steps, PlanSteps) and len(group) > 1 and (made := steps.together(group, rank)):
            return cls(*made)
        rows, all_rows, every = 0, 0.0, list[RankReads]()
        for step in group:
            count, scale, reads = steps.reads(step, rank, _CALL)
            rows, all_rows = rows + count, all_rows + count * scale
            every += reads
        return cls(rows, all_rows, every)


class _Sample(NamedTuple):
    """Which steps, in groups that are fetched together, hosts and ranks of a host are counted."""

    groups: list[range]
    hosts: list[int]
    ranks: int
    steps: int  # of the first epoch
    complete: bool
    ahead: bool  # groups are as `ahead_groups` says

    def of_ranks(self, steps: Steps, ranks: range) -> Iterator[tuple[int, range, _Read]]:
        """What these ranks read in each group: each group on all ranks, or, if they differ, one rank after another."""
        if not (self.ahead and self.complete):
            yield from ((rank, group, _Read.of(steps, group, rank)) for group in self.groups for rank in ranks)
            return
        for rank in ranks:
            for epoch in range(2):
                at, end, together = epoch * steps.steps, (epoch + 1) * steps.steps, 1
                while at < end:
                    group = range(at, min(end, at + together))
                    read = _Read.of(steps, group, rank)
                    yield rank, group, read
                    together, at = steps_after(len(group), _bytes_ahead(read)), group.stop

    @classmethod
    def of(cls, steps: Steps, hosts: int, layouts: list[ByteLayout], assumed: Assumptions) -> _Sample:
        total, together, ahead = steps.steps, min(assumed.fetch_steps, steps.steps), _are_ahead(layouts)
        every, ranks = min(hosts, _HOSTS), 1 if _one_reads(steps, layouts) else -(-steps.world // hosts)
        calls = total * every * ranks
        less = _LESS if any(isinstance(layout, BlockLayout) for layout in layouts) else 1
        small = calls * steps.rows <= ROWS // less and calls <= _CALLS // less
        layouts = list(dict.fromkeys(layout for layout in layouts if layout.cached and not layout.private))
        small = small and sum(layout.last_page for layout in layouts) <= _ALL_PAGES
        if small and sum(layout.pages * layout.page_bytes for layout in layouts) <= assumed.cache_bytes:
            edges = [0, *range(1, 2 * total, together), 2 * total]  # the first step alone: the trainer waits for it
            edges = sorted({*edges, total})
            groups = [range(a, b) for a, b in pairwise(edges)]
            return cls(groups, [hosts * i // every for i in range(every)], ranks, total, True, ahead)
        if ahead:
            read = _Read.of(steps, range(1), 0)
            size = _bytes_ahead(read) * read.all_rows / max(1, read.rows)
            together = max(1, min(MOST_STEPS, int(CHUNK_BYTES / max(1, size)), total))
        ranks = min(ranks, _RANKS)
        per_call = max(1, min(steps.rows, _CALL) * together)
        most = max(1, min(_STEPS, total // together, ROWS // per_call))
        ranks = max(1, min(ranks, ROWS // (most * per_call)))
        every = max(1, min(every, ROWS // (most * per_call * ranks)))
        groups = [range(i, i + together) for i in (total // most * number for number in range(most))]
        groups = [range(a.start, min(a.stop, total)) for a in groups]
        return cls(groups, [hosts * i // every for i in range(every)], ranks, sum(map(len, groups)), False, ahead)


class _Fetched(NamedTuple):
    rows: float
    used_bytes: float
    items: float
    accesses: float
    fetched: float
    requests: float
    bytes: float
    objects: float


def _of_group(
    read: _Read, step: int, rank: int, kept: dict[int, NDArray[np.bool_]], fetchers: Fetchers | None,
    assumed: Assumptions, miss: float,
) -> NDArray[np.float64]:  # fmt: skip
    """What a rank fetches for steps from `step` on together."""
    every = dict[int, list[RankReads]]()
    for each in read.reads:
        every.setdefault(each.source, []).append(each)
    found = [
        _fetch_blocks(reads[0].layout, reads, None if fetchers is None else fetchers.of(reads[0].layout, rank))
        if isinstance(reads[0].layout, BlockLayout)
        else _fetch(reads, kept.get(id(reads[0].layout)), assumed, miss, step)
        for reads in every.values()
    ]
    made: NDArray[np.float64] = np.array(found, float).reshape(-1, len(_Fetched._fields)).sum(axis=0)
    made *= read.all_rows / max(1, read.rows)
    made[0] = read.all_rows
    return made


def _fetch_blocks(layout: BlockLayout, reads: list[RankReads], fetcher: Fetcher | None) -> _Fetched:
    """What a process fetches for some reads; without a `fetcher`, for each on its own."""
    items = sum(int(read.lengths.sum()) for read in reads)
    touched, fetches = 0, list[list[int]]()
    for read in reads:
        blocks = layout.blocks_of(read.starts, read.lengths)
        touched += len(blocks)
        fetches += [blocks] if fetcher is None else fetcher.fetch(blocks, int(read.lengths.sum()))
    fetched = np.fromiter(chain.from_iterable(fetches), np.int64)
    requests, sent = layout.requests_of(fetched, np.repeat(np.arange(len(fetches)), [len(each) for each in fetches]))
    return _Fetched(0, items * layout.item_bytes, items, touched, len(fetched), requests, sent, 0)


def _fetch(
    reads: list[RankReads], kept: NDArray[np.bool_] | None, assumed: Assumptions, miss: float, step: int
) -> _Fetched:
    layout, starts = reads[0].layout, np.concatenate([read.starts for read in reads])
    lengths = np.concatenate([read.lengths for read in reads])
    begins, sizes = layout.addresses(starts, lengths)
    if layout.held:
        return _Fetched(0, int(sizes.sum()), int(lengths.sum()), 0, 0, 0, 0, 0)
    if not layout.cached:
        order = np.argsort(begins, kind="stable")
        begins, sizes = begins[order], sizes[order]
        made = coalesce(*layout.requested(begins, sizes), assumed.gap_bytes, assumed.get_bytes)
        used = int(sizes.sum()), int(lengths.sum()), len(begins), len(begins)
        return _Fetched(0, *used, len(made), made.bytes, layout.objects_of(starts))
    needed = pages(begins, sizes, layout.page_bytes)
    new, size, apart = needed, layout.page_bytes, None
    if kept is not None:
        new = needed[~kept[needed]]
        apart = parted(new, kept, size, assumed.gap_bytes)
    elif miss < 1:
        new = needed[np.random.default_rng(step).random(len(needed)) < miss]
    made = coalesce(new * size, (new + 1) * size, assumed.gap_bytes, assumed.get_bytes, apart)
    if kept is not None:
        first = made.starts // size
        kept[ranges(first, made.stops // size - first)] = True
    return _Fetched(
        0, int(sizes.sum()), int(lengths.sum()), len(needed), len(new), len(made), made.bytes,
        layout.objects_of(starts),
    )  # fmt: skip
