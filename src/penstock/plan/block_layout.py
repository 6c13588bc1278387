"""Blocks that each process fetches for itself and keeps: row groups of Parquet files, shards of MDS datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import expm1
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.order.ragged_index import prefix, ranges
from penstock.plan.assumptions import Assumptions
from penstock.plan.byte_layout import ByteLayout, spacing
from penstock.plan.order_choices import Order
from penstock.sources.base import Source
from penstock.sources.block_reads import BlockFacts, BlockReads, Fetcher
from penstock.sources.scattered_rows import SHARE, WASTE
from penstock.storage.coalesce import coalesce, distinct

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockLayout(ByteLayout):
    """Records in blocks; `bounds` are those of blocks."""

    facts: BlockFacts = field(kw_only=True)
    assumed: Assumptions = field(kw_only=True)

    @property
    def objects(self) -> int:
        return len(self.facts.sizes)

    @property
    def blocks(self) -> int:
        assert self.bounds is not None
        return len(self.bounds) - 1

    @property
    def pages(self) -> int:
        return self.blocks

    def blocks_of(self, starts: I64, lengths: I64) -> list[int]:
        """The blocks that hold these records, in order."""
        assert self.bounds is not None
        found: list[int] = distinct(np.searchsorted(self.bounds, ranges(starts, lengths), "right") - 1).tolist()
        return found

    def requests_of(self, blocks: I64, fetch: I64) -> tuple[int, int]:
        """Requests and bytes of blocks of which those of one number in `fetch` (0, 1, 2...) are fetched together."""
        edges = self._edges
        counts = edges[blocks + 1] - edges[blocks]
        mine, fetch = ranges(edges[blocks], counts), np.repeat(fetch, counts)
        begins, ends = self._spans[mine, 0], self._spans[mine, 1]
        order = np.lexsort((begins, fetch))
        begins, ends, fetch = begins[order], ends[order], fetch[order]
        # Fetches get addresses of their own, so that the ranges of two are never merged.
        first = np.flatnonzero(np.append(True, fetch[1:] != fetch[:-1])[: len(fetch)])
        if len(first):
            low, high = begins[first], np.maximum.reduceat(ends, first)
            each = prefix(high - low + self.spacing)[:-1] - low
            shift = np.repeat(each, np.diff(np.append(first, len(fetch))))
            begins, ends = begins + shift, ends + shift
        made = coalesce(begins, ends, self.assumed.gap_bytes, self.assumed.get_bytes)
        return len(made) + self.facts.apart * len(blocks), made.bytes

    @cached_property
    def all_blocks(self) -> tuple[int, int]:
        """Requests and bytes of all blocks, each fetched alone."""
        return self.requests_of(np.arange(self.blocks), np.arange(self.blocks))

    @cached_property
    def _edges(self) -> I64:
        """Where the spans of each block begin."""
        return np.searchsorted(self.facts.spans[:, 0], np.arange(self.blocks + 1))

    @cached_property
    def _spans(self) -> I64:
        bases = prefix(self.facts.sizes + self.spacing)[:-1]
        return bases[self.facts.spans[:, 1], None] + self.facts.spans[:, 2:]


def block_layout(source: Source, assumed: Assumptions) -> BlockLayout | None:
    """The layout of a source whose blocks are fetched as a whole; None of any other."""
    facts = source.block_facts() if isinstance(source, BlockReads) else None
    if facts is None or not isinstance(source, BlockReads) or not len(facts.spans):
        return None
    bounds, stored = prefix(source.block_sizes()), int((facts.spans[:, 3] - facts.spans[:, 2]).sum())
    records, mean = int(bounds[-1]), max(1, stored // max(1, len(bounds) - 1))
    return BlockLayout(
        records, stored / max(1, records), mean, spacing(assumed, 1), bounds=bounds, exact=facts.fetcher().exact,
        private=True, facts=facts, assumed=assumed,
    )  # fmt: skip


class Epoch(NamedTuple):
    """Requests and bytes of the fleet in the first epoch and in a later one."""

    requests: float
    bytes: float
    later_requests: float
    later_bytes: float


def epoch_of_blocks(layout: BlockLayout, order: Order, batch: int, world: int, hosts: int) -> Epoch | None:
    """The closed form of an epoch in file order or in random order; None where there is none."""
    requests, size = layout.all_blocks
    block, mine = layout.items / layout.blocks, batch / world
    if order.kind == "file order":  # a process reads the blocks that its part of a batch falls into
        times = world * min(1.0, (block + mine - 1) / batch)
        return Epoch(requests * times, size * times, requests * times, size * times)
    if order.kind != "global" or not layout.facts.stored or block < WASTE:
        return None
    first = max(1 / SHARE, -expm1(-mine / layout.blocks))  # of all blocks, before all rows are stored
    times = world * (first + 1) if layout.facts.stored == "process" else world * first + hosts
    return Epoch(requests * times, size * times, 0.0, 0.0)


class Fetchers:
    """The processes of a host; a process keeps what it fetched from step to step."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Fetcher] = {}
        self._first: dict[int, Fetcher] = {}

    def of(self, layout: BlockLayout, rank: int) -> Fetcher:
        key = (id(layout), rank)
        if key not in self._found:
            first = self._first.get(id(layout))
            self._found[key] = layout.facts.fetcher() if first is None else first.beside()
            self._first.setdefault(id(layout), self._found[key])
        return self._found[key]
