"""The pages that steps beyond those fetched ahead will read, so that a full cache evicts what is needed last.

A bounded number of pages is known: twice what the cache holds, and at most `MOST_PAGES`. Each page has the number of
steps until its next use, to the precision of a few steps where many are planned at once. Of pages whose next use is
further away than that, the one that was not used longest leaves first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.engine.batches import Batches
from penstock.sources.base import PagedTokens
from penstock.storage.next_uses import U64, Uses

if TYPE_CHECKING:  # only remote stores are read through them
    from penstock.storage.page_cache import PageCache
    from penstock.storage.page_needs import PageNeeds

MOST_PAGES = 1 << 17
_PARTS = 256  # as many calls plan all that is known
_MOVED = 64  # the caches get new numbers when this part of the known steps has passed
_TABLES = 8  # where planning reads document tables, they must fit into this part of the cache


class _Steps(NamedTuple):
    start: int
    stop: int
    pages: dict[PageCache, U64]
    size: int


class LaterUses:
    """The known uses of pages by the steps before `stop`."""

    def __init__(self, work: Batches, stop: int | None) -> None:
        self._work, self._stop = work, stop
        self._known: deque[_Steps] = deque()
        self._count = 0
        self._each = 0.0  # pages of a step
        self._told = -1  # the position of the trainer when the caches last got them

    def advance(self, at: int, owner: object, cache: PageCache, page_bytes: int) -> None:
        """Plans on from where it is, and passes the next uses to the caches, for a trainer at step `at`."""
        while self._known and self._known[0].stop <= at:
            self._count -= self._known.popleft().size
        most = min(MOST_PAGES, 2 * max(1, cache.limit // page_bytes))
        end = self._known[-1].stop if self._known else at
        if self._told >= 0 and at - self._told < (end - self._told) // _MOVED:
            return
        while self._count < most and (self._stop is None or end < self._stop):
            steps = max(1, int(most / _PARTS / self._each)) if self._each else 1
            steps = steps if self._stop is None else min(steps, self._stop - end)
            found = self._plan(end, end + steps)
            if found is None:
                return
            self._known.append(found)
            self._count, self._each, end = self._count + found.size, max(1.0, found.size / steps), end + steps
        self._told = at
        for each in {cache for steps in self._known for cache in steps.pages}:
            parts = [(steps.start, steps.pages[each]) for steps in self._known if each in steps.pages]
            uses = np.repeat([max(0, start - at) for start, _ in parts], [len(pages) for _, pages in parts])
            known = Uses.of(np.concatenate([pages for _, pages in parts]), uses.astype(np.uint32))
            each.set_later(owner, known)

    def _plan(self, start: int, stop: int) -> _Steps | None:
        """The pages of steps [start, stop); None if finding them would read too much."""
        every: list[PageNeeds] = []
        root = self._work.plan.root
        for picks in self._work.orders(start, stop):
            for leaf, starts, lengths, documents, _ in root.reads(picks):
                if isinstance(leaf.source, PagedTokens):
                    every.append(leaf.source.needs(starts, lengths))
                    if documents is not None and 8 * len(leaf.source) * _TABLES > every[-1].cache.limit:
                        return None
        from penstock.storage.page_needs import PageNeeds

        joined = PageNeeds.joined(every)
        return _Steps(start, stop, {needs.cache: needs.ids for needs in joined}, sum(len(n.ids) for n in joined))
