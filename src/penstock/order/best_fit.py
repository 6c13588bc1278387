"""Best-fit-decreasing bin packing on a histogram of lengths.

Works on counts, not on documents: each step puts many equal documents into many equal bins, so the cost depends on
the number of distinct lengths (about 15 ms for 4,096 of them) and not on the number of documents. The result is
the same as best-fit-decreasing of single documents.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from penstock.order.ragged_index import I64, prefix
from penstock.order.superblocks import stable_argsort


@dataclass(frozen=True, eq=False)
class Patterns:
    """Groups of packs that hold the same lengths: pattern g is used by `uses[g]` packs.

    A pattern's runs are `run_offsets[g]` to `run_offsets[g + 1]`. In a run each pack holds `copies` documents of
    `length`; the packs of this pattern take the documents of that length starting with number `first`.
    """

    uses: I64
    run_offsets: I64
    length: I64
    copies: I64
    first: I64

    @property
    def n_packs(self) -> int:
        return int(self.uses.sum())


def best_fit(counts: I64, capacity: int, max_docs: int | None = None) -> Patterns:
    """Packs `counts[l]` documents of each length l in 1..capacity, at most `max_docs` documents per pack.

    >>> plan = best_fit(np.array([0, 0, 3, 0, 3]), capacity=6)  # three of length 2, three of length 4
    >>> plan.uses.tolist(), plan.length.tolist(), plan.copies.tolist()
    ([3], [4, 2], [1, 1])
    """
    most = capacity if max_docs is None else max_docs
    parents, lengths, copies = ([-1], [0], [0])  # the patterns as a tree: a node adds one run to its parent
    open_groups: dict[int, list[tuple[int, int, int]]] = {}  # residual -> (node, packs, documents in each)
    residuals: list[int] = []  # the keys of open_groups, sorted
    closed: list[tuple[int, int]] = []

    def keep(room: int, group: tuple[int, int, int]) -> None:
        if room not in open_groups:
            open_groups[room] = []
            insort(residuals, room)
        open_groups[room].append(group)

    def place(node: int, room: int, docs: int, packs: int, length: int, each: int) -> None:
        """Adds `each` documents of `length` to `packs` packs of pattern `node`."""
        parents.append(node)
        lengths.append(length)
        copies.append(each)
        room, docs = room - length * each, docs + each
        if room == 0 or docs == most:
            closed.append((len(parents) - 1, packs))
            return
        keep(room, (len(parents) - 1, packs, docs))

    for length in range(min(capacity, len(counts) - 1), 0, -1):
        left = int(counts[length])
        while left:
            at = bisect_left(residuals, length)  # best fit: the smallest free space that is enough
            if at < len(residuals):
                room = residuals[at]
                node, packs, docs = open_groups[room].pop()
                if not open_groups[room]:
                    del open_groups[room]
                    del residuals[at]
            else:
                node, room, docs, packs = 0, capacity, 0, left
            # Fill one pack until no more of this length fits, as packing single documents would.
            each = min(room // length, most - docs)
            full = min(packs, left // each)
            left -= full * each
            if full:
                place(node, room, docs, full, length, each)
            rest = packs - full
            if left and rest:  # fewer than `each` are left: one more pack takes them all
                place(node, room, docs, 1, length, left)
                left, rest = 0, rest - 1
            if rest and node:
                keep(room, (node, rest, docs))

    for room in residuals:
        closed.extend((node, packs) for node, packs, _ in open_groups[room])
    return _flatten(closed, parents, lengths, copies, len(counts))


def _flatten(
    closed: list[tuple[int, int]], parents: list[int], lengths: list[int], copies: list[int], n_lengths: int
) -> Patterns:
    """Lists each pattern's runs and numbers the documents of every length in the order of patterns."""
    chain: list[int] = []
    runs: list[int] = []
    for last, _ in closed:
        begin, node = len(chain), last
        while node:
            chain.append(node)
            node = parents[node]
        chain[begin:] = chain[begin:][::-1]
        runs.append(len(chain) - begin)
    sizes = np.array(runs, np.int64)
    uses = np.array([packs for _, packs in closed], np.int64)
    nodes = np.array(chain, np.int64)
    run_length, run_copies = (np.array(lengths, np.int64)[nodes], np.array(copies, np.int64)[nodes])
    taken = run_copies * np.repeat(uses, sizes)
    by_length = stable_argsort(run_length)
    before = prefix(taken[by_length])[:-1]
    counted = np.bincount(run_length, minlength=n_lengths)
    runs_before = prefix(counted.astype(np.int64))[:-1]
    sorted_length = run_length[by_length]
    first = np.empty(len(nodes), np.int64)
    first[by_length] = before - before[runs_before[sorted_length]]
    return Patterns(uses, prefix(sizes), run_length, run_copies, first)
