"""Packs documents into rows of `capacity` tokens with almost no padding, as a function `pack p -> documents`.

Best-fit-decreasing on the histogram of lengths, one superblock (about 2**20 documents) at a time. The plan stores
patterns x multiplicities: kilobytes per superblock. Building it reads every length once: about 0.25 s for 10 million
documents at capacity 4096, and 15 MB. The first use of a superblock in an epoch sorts its documents by length (0.1 s,
4 bytes per document, cached for the last 16); after that any pack takes about 0.1 ms, and many packs per call much
less each.

Lengths determine the patterns, so these and the number of packs are the same in every epoch. Which document of a
length goes where is drawn for each epoch, so documents get different neighbours: nearly all of them in a full
superblock, fewer in a corpus so small (thousands) that many lengths occur once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, UsageError
from penstock.core.randomness import key as make_key
from penstock.order.best_fit import Patterns, best_fit
from penstock.order.lru_cache import LruCache
from penstock.order.ragged_index import I64, Pieces, join_pieces, prefix, ranges
from penstock.order.superblocks import (
    CACHED,
    SUPERBLOCK,
    LengthInput,
    Lengths,
    cut_evenly,
    require,
    require_choice,
    require_within,
    sort_shuffled,
)

OVERLONG = ("split", "truncate", "drop", "error")


class PackReport(NamedTuple):
    """Counts of a plan; `fill` is the share of places (packs x capacity) that hold a token."""

    documents: int
    packs: int
    pieces: int
    tokens: int
    empty: int  # documents without tokens, which are in no pack
    dropped: int
    truncated: int
    split: int
    lost_tokens: int  # of dropped and truncated documents
    padding: int
    fill: float


_SPLIT = 1 << 31  # far above any document's number in its superblock
_COLUMNS = ("packs", "pieces", "tokens", "empty", "dropped", "truncated", "split", "lost_tokens")


class _SplitLengths(NamedTuple):
    """The lengths of a superblock after the policy for over-long documents."""

    tails: I64  # length of each document's last piece; 0 for none
    split: I64  # the documents that are split, ascending
    heads: I64  # number of full pieces of each of those before its last
    totals: I64  # the counts of `_COLUMNS`; `packs` counts only the full pieces yet


class _BlockPacks(NamedTuple):
    """The packs of a superblock: first one pack for each full piece of a split document, then the patterns."""

    patterns: Patterns
    n_heads: int
    pack_edges: I64  # prefix sum of patterns.uses, shifted by n_heads
    pattern: NDArray[np.int32]  # the pattern of each pack after the first n_heads
    totals: I64


class _SortedDocuments(NamedTuple):
    """The documents of a superblock in one epoch, sorted by the length of their last piece."""

    order: NDArray[np.uint32]  # `_SPLIT` is added where the piece is the tail of a split document
    first: I64  # offset of each length in `order`
    split: I64
    head_edges: I64


@dataclass(frozen=True, eq=False)
class PackPlan:
    """Maps packs to pieces of documents. Created by `PackPlan.build`; immutable.

    >>> plan = PackPlan.build(np.array([5, 3, 8, 2, 6]), capacity=8, key=7)
    >>> plan.n_packs, plan.report().fill
    (3, 1.0)
    >>> pieces = plan.pack([0, 2], epoch=1)
    >>> pieces.offsets.tolist(), pieces.documents.tolist(), pieces.starts.tolist(), pieces.lengths.tolist()
    ([0, 1, 3], [2, 4, 3], [0, 0, 0], [8, 6, 2])
    """

    lengths: Lengths
    capacity: int
    key: int
    overlong: str
    max_docs: int | None
    edges: I64
    table: I64
    packs_before: I64
    _block_packs: LruCache[_BlockPacks] = field(repr=False)
    _sorted: LruCache[_SortedDocuments] = field(repr=False)
    _lengths: LruCache[_SplitLengths] = field(repr=False)

    @classmethod
    def build(
        cls,
        lengths: LengthInput,
        n_docs: int | None = None,
        *,
        capacity: int,
        key: int,
        superblock: int = SUPERBLOCK,
        overlong: str = "split",
        max_docs: int | None = None,
    ) -> PackPlan:
        """Plans all packs.

        `lengths` is an array, or a function that returns the lengths of documents [a, b) (then `n_docs` is required).
        A document longer than `capacity` is split into full packs and a tail ("split"), cut off ("truncate"), left out
        ("drop") or raises ("error"). Documents of length 0 are left out and counted. `max_docs` limits the documents
        of one pack.
        """
        reader = Lengths(lengths, n_docs)
        require("capacity", capacity, least=1)
        require("superblock", superblock, least=1)
        if superblock >= 1 << 32 or capacity >= 1 << 31:
            raise UsageError("superblock below 2**32 and capacity below 2**31", got=f"{superblock} and {capacity}")
        require_choice("overlong", overlong, OVERLONG)
        if max_docs is not None:
            require("max_docs", max_docs, least=1)
        edges = cut_evenly(reader.n_docs, superblock)
        plan = cls(
            lengths=reader,
            capacity=int(capacity),
            key=int(key),
            overlong=overlong,
            max_docs=max_docs,
            edges=edges,
            table=np.zeros((len(edges) - 1, len(_COLUMNS)), np.int64),
            packs_before=np.zeros(len(edges), np.int64),
            _block_packs=LruCache(4 * CACHED),
            _sorted=LruCache(CACHED),
            _lengths=LruCache(1),  # in a small corpus they are those of every epoch
        )
        for s in range(len(plan.table)):
            plan.table[s] = plan._block_packs.get(s, lambda s=s: plan._pack_block(s)).totals  # type: ignore[misc]
        np.cumsum(plan.table[:, 0], out=plan.packs_before[1:])
        return plan

    @property
    def n_packs(self) -> int:
        """Packs in an epoch."""
        return int(self.packs_before[-1])

    def report(self) -> PackReport:
        """Counts over one epoch: what was dropped, truncated, split and padded."""
        totals = dict(zip(_COLUMNS, self.table.sum(axis=0).tolist(), strict=True))
        places = totals["packs"] * self.capacity
        fill = totals["tokens"] / places if places else 1.0
        return PackReport(documents=self.lengths.n_docs, padding=places - totals["tokens"], fill=fill, **totals)

    def pack(self, packs: Any, epoch: int = 0) -> Pieces:
        """Returns the pieces of many packs, in the requested order; in a pack the longest comes first.

        Each document piece is in exactly one pack of an epoch, and no pack exceeds the capacity.
        """
        wanted = require_within("packs", packs, self.n_packs)
        blocks = np.searchsorted(self.packs_before, wanted, side="right") - 1
        touched = np.unique(blocks).tolist()
        parts = []
        for s in touched:
            rows = np.flatnonzero(blocks == s)
            parts.append(self._in_block(s, rows, wanted[rows] - self.packs_before[s], epoch))
        return join_pieces(parts, len(wanted))

    def _in_block(self, s: int, rows: I64, local: I64, epoch: int) -> tuple[I64, I64, I64, I64]:
        """Returns row, document, start and length of every piece of the packs `local` of superblock s."""
        block = self._block_packs.get(s, lambda: self._pack_block(s))
        docs = self._sorted.get((s, epoch), lambda: self._sort(s, epoch))
        base = int(self.edges[s])
        in_head = local < block.n_heads
        head = local[in_head]
        split_at = np.searchsorted(docs.head_edges, head, side="right") - 1
        head_start = (head - docs.head_edges[split_at]) * self.capacity

        packed = local[~in_head]
        patterns = block.patterns
        group = block.pattern[packed - block.n_heads]
        n_runs = patterns.run_offsets[group + 1] - patterns.run_offsets[group]
        run = ranges(patterns.run_offsets[group], n_runs)
        copies = patterns.copies[run]
        use: I64 = np.repeat(packed - block.pack_edges[group], n_runs)  # number of earlier packs of the same pattern
        kth = ranges(patterns.first[run] + use * copies, copies)
        length = np.repeat(patterns.length[run], copies)
        tail = docs.order[docs.first[length] + kth].astype(np.int64)
        tail_start = np.zeros(len(tail), np.int64)
        rests = np.flatnonzero(tail >= _SPLIT)
        if len(rests):
            tail[rests] -= _SPLIT
            at = np.searchsorted(docs.split, tail[rests])
            tail_start[rests] = (docs.head_edges[at + 1] - docs.head_edges[at]) * self.capacity
        tail_row = np.repeat(np.repeat(rows[~in_head], n_runs), copies)
        if not len(head):
            return tail_row, tail + base, tail_start, length
        return (
            np.concatenate([rows[in_head], tail_row]),
            np.concatenate([docs.split[split_at], tail]) + base,
            np.concatenate([head_start, tail_start]),
            np.concatenate([np.full(len(head), self.capacity), length]),
        )

    def _split(self, s: int) -> _SplitLengths:
        return self._lengths.get(s, lambda: self._read_lengths(s))

    def _read_lengths(self, s: int) -> _SplitLengths:
        """Reads the lengths of superblock s and applies the policy for over-long documents."""
        start = int(self.edges[s])
        tails = self.lengths.read(start, int(self.edges[s + 1]))
        capacity, none = self.capacity, np.empty(0, np.int64)
        empty = int(np.count_nonzero(tails == 0))
        long = np.flatnonzero(tails > capacity)
        long_lengths = tails[long]
        split, heads, n = none, none, len(long)
        dropped = truncated = lost = 0
        if n and self.overlong == "error":
            raise DataError(
                f"documents of at most {capacity} tokens",
                got=f"{int(long_lengths[0])} tokens ({n} such in this superblock)",
                where=f"document {start + int(long[0])}",
                fix='raise the capacity, or pass overlong="split", "truncate" or "drop"',
            )
        if self.overlong == "split":
            split, heads = long, (long_lengths - 1) // capacity
            tails[long] = (long_lengths - 1) % capacity + 1
        elif self.overlong == "truncate":
            truncated, lost = n, int(long_lengths.sum()) - n * capacity
            tails[long] = capacity
        else:
            dropped, lost = n, int(long_lengths.sum())
            tails[long] = 0
        n_heads = int(heads.sum())
        pieces = int(np.count_nonzero(tails)) + n_heads
        tokens = int(tails.sum()) + n_heads * capacity
        totals = np.array([n_heads, pieces, tokens, empty, dropped, truncated, len(split), lost], np.int64)
        return _SplitLengths(tails, split, heads, totals)

    def _pack_block(self, s: int) -> _BlockPacks:
        """Packs the histogram of superblock s."""
        tails, _, _, split_totals = self._split(s)
        totals = split_totals.copy()
        counts = np.bincount(tails, minlength=1).astype(np.int64)
        patterns = best_fit(counts, self.capacity, self.max_docs)
        n_heads = int(totals[0])
        totals[0] += patterns.n_packs
        if self.packs_before[-1] and not np.array_equal(totals, self.table[s]):
            raise DataError(
                "the same document lengths as when the plan was built",
                got=f"counts {totals.tolist()} instead of {self.table[s].tolist()}",
                where=f"documents {int(self.edges[s])}..{int(self.edges[s + 1])}",
                fix="build the pipeline again, and let nothing change its data",
            )
        pattern = np.repeat(np.arange(len(patterns.uses), dtype=np.int32), patterns.uses)
        return _BlockPacks(patterns, n_heads, n_heads + prefix(patterns.uses), pattern, totals)

    def _sort(self, s: int, epoch: int) -> _SortedDocuments:
        """Sorts the documents of superblock s by length, equal ones in an order drawn for this epoch."""
        tails, split, heads, _ = self._split(s)
        order = sort_shuffled(tails, make_key(self.key, "pack", epoch, s))
        if len(split):
            mark = np.zeros(len(tails), np.uint32)
            mark[split] = _SPLIT
            order += mark[order]
        first = prefix(np.bincount(tails, minlength=1).astype(np.int64))
        return _SortedDocuments(order, first, split, prefix(heads))
