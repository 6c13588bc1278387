"""Which pages of a remote store are in the cache and verified: one flag for each page of the shards that are open.

All flags are in one array, so that a batch over many shards is looked up in one call. A flag is true as of a number of
evictions: the cache counts them for all processes of the machine (`CacheBudget.evictions`), after it has marked pages
absent and before it frees their space. A reader that finds the same number before it looks at the flags and after it
has copied has read what was verified. While the number stands still, which is as long as the cache has room, nothing
else is compared.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.storage.cached_object import I64, CachedObject
from penstock.storage.page_cache import PageCache

_FIRST_PAGES = 4096
_STAMP_SECONDS = 1.0  # how often the cache hears which pages were used


class Moment(NamedTuple):
    """When flags were looked at: the evictions so far, and how often a shard was closed."""

    evictions: int
    closed: int


class PresentPages:
    """Flags of the pages of `parts` shards. The flags of a part hold as of `as_of[part]` evictions; 0: they do not."""

    def __init__(self, parts: int) -> None:
        self.first = np.zeros(parts, np.int64)  # the place of a shard's first flag; untouched zeros cost no memory
        self.as_of = np.zeros(parts, np.uint64)
        self.flags = np.zeros(_FIRST_PAGES, bool)  # replaced by a larger array when it is full
        self.used = np.zeros(_FIRST_PAGES, bool)  # pages that were read since the cache last heard
        self.closed = 0
        self._open: dict[int, tuple[PageCache, CachedObject, NDArray[np.uint32]]] = {}
        self._pages: dict[int, int] = {}
        self._end, self._told = 0, time.monotonic()
        self._lock = threading.Lock()

    def add(self, part: int, cache: PageCache, found: CachedObject, checked: NDArray[np.uint32]) -> None:
        """A shard was opened. `checked` are the generations at which its pages were verified; it stays up to date."""
        with self._lock:
            if part not in self._pages:
                stop = self._end + found.shape.entries
                if stop > len(self.flags):
                    wide = max(stop, 2 * len(self.flags)) - len(self.flags)
                    self.flags, self.used = (np.pad(each, (0, wide)) for each in (self.flags, self.used))
                self.first[part], self._pages[part], self._end = self._end, found.shape.entries, stop
            self._open[part] = cache, found, checked
            self._renew(part)

    def drop(self, part: int) -> None:
        """A shard was closed: its files may be deleted and made again."""
        with self._lock:
            self._open.pop(part, None)
            self.as_of[part] = 0
            self.closed += 1

    def moment(self, cache: PageCache) -> Moment:
        return Moment(cache.evictions, self.closed)

    def verified(self, part: int, pages: I64) -> None:
        """Pages of an open shard were verified, as its `checked` says."""
        with self._lock:
            if part not in self._open:
                return
            cache, found, checked = self._open[part]
            if int(self.as_of[part]) != cache.evictions:
                self._renew(part)
            else:  # after the look at the evictions: a page that is evicted now changes their number
                self.flags[self.first[part] + pages] = found.generations[pages] == checked[pages]

    def _renew(self, part: int) -> None:
        cache, found, checked = self._open[part]
        evictions, start = cache.evictions, int(self.first[part])
        self.flags[start : start + len(checked)] = found.generations == checked
        self.as_of[part] = evictions  # last: readers look at it first, without the lock

    def tell(self) -> None:
        """Tells the cache now and then which pages were read: the ones not read longest leave it first."""
        if time.monotonic() - self._told < _STAMP_SECONDS or not self._lock.acquire(blocking=False):
            return
        try:
            self._told = time.monotonic()
            used = np.flatnonzero(self.used[: self._end])
            self.used[used] = False
            for part, (_, found, _) in self._open.items():
                first = int(self.first[part])
                start, stop = np.searchsorted(used, (first, first + self._pages[part]))
                if stop > start:
                    found.keep(used[start:stop] - first)
        finally:
            self._lock.release()
