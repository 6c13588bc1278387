"""Packing: documents into rows of `capacity` tokens with almost no padding, as a function `pack p -> documents`.

Best-fit-decreasing on the histogram of lengths, superblock by superblock (about 2**20 documents each). The plan is
patterns x multiplicities: kilobytes a superblock, whatever the documents. Building it reads every length once: about
0.25 s for 10 million documents at capacity 4096, and 15 MB. The first touch of a superblock in an
epoch sorts its documents by length (0.1 s, 4 bytes a document, kept for the last 16); after that any pack
takes about 0.1 ms, and packs asked for together much less each.

Lengths decide the patterns, so they and the number of packs are the same in every epoch. Which of the documents of a
length fills a place is drawn anew for each epoch, so documents meet other neighbours every time: nearly all of them
when a superblock is full, fewer in a corpus so small (thousands) that many lengths occur once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, UsageError
from penstock.core.randomness import key as make_key
from penstock.order._histogram import Patterns, best_fit
from penstock.order._pieces import I64, Pieces, prefix, put_in_rows, ranges
from penstock.order._recent import Recent
from penstock.order._superblocks import (
    CACHED,
    SUPERBLOCK,
    WINDOW,
    Lengths,
    LengthSource,
    cut_evenly,
    require,
    require_choice,
    require_within,
    shuffle_windows,
    sort_shuffled,
)

OVERLONG = ("split", "truncate", "drop", "error")


class PackReport(NamedTuple):
    """What packing did to the documents, in counts; `fill` is the share of places that hold a token."""

    documents: int
    packs: int
    pieces: int
    tokens: int
    empty: int  # documents without tokens: in no pack
    dropped: int
    truncated: int
    split: int
    lost_tokens: int  # of dropped and truncated documents
    padding: int
    fill: float


_SPLIT = 1 << 31  # far above any document's number in its superblock
_COLUMNS = ("packs", "pieces", "tokens", "empty", "dropped", "truncated", "split", "lost_tokens")


class _Cut(NamedTuple):
    """A superblock after the policy for over-long documents: what each contributes to the histogram, and the rest."""

    tails: I64  # length of each document's last piece; 0 for none
    split: I64  # the documents that are split, ascending
    heads: I64  # how many full pieces each of those gives before its last
    facts: I64  # the counts of `_COLUMNS`, `packs` still without the packed ones


class _Layout(NamedTuple):
    """The packs of a superblock: first one pack for each full head, then the patterns."""

    patterns: Patterns
    n_heads: int
    pack_edges: I64  # prefix sum of patterns.uses, shifted by n_heads
    facts: I64


class _Sorted(NamedTuple):
    """The documents of a superblock in one epoch, sorted by the length they bring to the histogram."""

    order: NDArray[np.uint32]  # with `_SPLIT` added where only the rest of a document is left
    first: I64  # where each length begins in `order`
    split: I64
    head_edges: I64


@dataclass(frozen=True, eq=False)
class PackPlan:
    """Which pieces of which documents make up each pack. Make it with `PackPlan.build`; it is immutable.

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
    _layouts: Recent[_Layout] = field(repr=False)
    _sorted: Recent[_Sorted] = field(repr=False)

    @classmethod
    def build(
        cls,
        lengths: LengthSource,
        n_docs: int | None = None,
        *,
        capacity: int,
        key: int,
        superblock: int = SUPERBLOCK,
        overlong: str = "split",
        max_docs: int | None = None,
        table: NDArray[Any] | None = None,
    ) -> PackPlan:
        """Plans all packs.

        `lengths` is an array, or a function giving the lengths of documents [a, b) (then `n_docs` is needed).
        A document longer than `capacity` is cut into full packs and a rest ("split"), cut off ("truncate"), left out
        ("drop") or refused ("error"). Documents of length 0 are left out and counted. `max_docs` caps the documents
        of one pack. `table`, from an earlier plan of the same documents, saves the pass over all lengths.
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
        shape = (len(edges) - 1, len(_COLUMNS))
        known = np.zeros(shape, np.int64) if table is None else np.array(table, np.int64)
        if known.shape != shape or (known.size and int(known.min()) < 0):
            raise UsageError(
                f"a table of {shape[0]} superblocks and {shape[1]} counts",
                got=f"shape {known.shape}" if known.shape != shape else "negative counts",
                fix="pass the table of a plan of the same documents and settings, or none",
            )
        plan = cls(
            lengths=reader,
            capacity=int(capacity),
            key=int(key),
            overlong=overlong,
            max_docs=max_docs,
            edges=edges,
            table=known,
            packs_before=np.zeros(len(edges), np.int64),
            _layouts=Recent(4 * CACHED),
            _sorted=Recent(CACHED),
        )
        if table is None:
            for s in range(shape[0]):
                known[s] = plan._layouts.get(s, lambda s=s: plan._lay_out(s)).facts  # type: ignore[misc]
        np.cumsum(known[:, 0], out=plan.packs_before[1:])
        return plan

    @property
    def n_packs(self) -> int:
        """Packs in an epoch."""
        return int(self.packs_before[-1])

    def report(self) -> PackReport:
        """Counts over the whole plan: what was dropped, truncated, split and padded."""
        facts = dict(zip(_COLUMNS, self.table.sum(axis=0).tolist(), strict=True))
        places = facts["packs"] * self.capacity
        fill = facts["tokens"] / places if places else 1.0
        return PackReport(documents=self.lengths.n_docs, padding=places - facts["tokens"], fill=fill, **facts)

    def shuffled(self, positions: Any, epoch: int = 0, *, window: int = WINDOW) -> I64:
        """Position in the epoch's order -> pack: superblocks permuted, then packs inside windows of superblocks."""
        checked = require_within("positions", positions, self.n_packs)
        require("window", window, least=1)
        return shuffle_windows(checked, self.table[:, 0], window, make_key(self.key, "pack order", epoch))

    def pack(self, packs: Any, epoch: int = 0) -> Pieces:
        """The pieces of many packs, in the order asked; in a pack the longest comes first.

        Each document piece is in exactly one pack of an epoch, and no pack exceeds the capacity.
        """
        wanted = require_within("packs", packs, self.n_packs)
        blocks = np.searchsorted(self.packs_before, wanted, side="right") - 1
        touched = np.unique(blocks).tolist()
        parts = []
        for s in touched:
            rows = np.flatnonzero(blocks == s)
            parts.append(self._in_block(s, rows, wanted[rows] - self.packs_before[s], epoch))
        if not parts:
            none = np.empty(0, np.int64)
            return Pieces(np.zeros(1, np.int64), none, none, none)
        row, document, start, length = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return put_in_rows(row, len(wanted), document, start, length)

    def _in_block(self, s: int, rows: I64, local: I64, epoch: int) -> tuple[I64, I64, I64, I64]:
        """Row, document, start and length of every piece of the packs `local` of superblock s."""
        layout = self._layouts.get(s, lambda: self._lay_out(s))
        docs = self._sorted.get((s, epoch), lambda: self._sort(s, epoch))
        base = int(self.edges[s])
        in_head = local < layout.n_heads
        head = local[in_head]
        split_at = np.searchsorted(docs.head_edges, head, side="right") - 1
        head_start = (head - docs.head_edges[split_at]) * self.capacity

        packed = local[~in_head]
        patterns = layout.patterns
        group = np.searchsorted(layout.pack_edges, packed, side="right") - 1
        n_runs = patterns.run_offsets[group + 1] - patterns.run_offsets[group]
        run = ranges(patterns.run_offsets[group], n_runs)
        copies = patterns.copies[run]
        use: I64 = np.repeat(packed - layout.pack_edges[group], n_runs)  # how many packs took from each run before
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

    def _cut(self, s: int) -> _Cut:
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
        facts = np.array([n_heads, pieces, tokens, empty, dropped, truncated, len(split), lost], np.int64)
        return _Cut(tails, split, heads, facts)

    def _lay_out(self, s: int) -> _Layout:
        """Packs the histogram of superblock s."""
        cut = self._cut(s)
        counts = np.bincount(cut.tails, minlength=1).astype(np.int64)
        patterns = best_fit(counts, self.capacity, self.max_docs)
        n_heads = int(cut.facts[0])
        cut.facts[0] += patterns.n_packs
        if self.packs_before[-1] and not np.array_equal(cut.facts, self.table[s]):
            raise DataError(
                "the same document lengths as when the plan was made",
                got=f"counts {cut.facts.tolist()} instead of {self.table[s].tolist()}",
                where=f"documents {int(self.edges[s])}..{int(self.edges[s + 1])}",
                fix="build the plan again, without a stored table",
            )
        return _Layout(patterns, n_heads, n_heads + prefix(patterns.uses), cut.facts)

    def _sort(self, s: int, epoch: int) -> _Sorted:
        """Sorts the documents of superblock s by length, equal ones in an order drawn for this epoch."""
        cut = self._cut(s)
        order = sort_shuffled(cut.tails, make_key(self.key, "pack", epoch, s))
        if len(cut.split):
            rest = np.zeros(len(cut.tails), np.bool_)
            rest[cut.split] = True
            order += rest[order] * np.uint32(_SPLIT)
        first = prefix(np.bincount(cut.tails, minlength=1).astype(np.int64))
        return _Sorted(order, first, cut.split, prefix(cut.heads))
