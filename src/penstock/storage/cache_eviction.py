"""What leaves the page cache when room is needed: objects that nobody uses, then the pages that are needed last.

When a page is needed next is known from the plans of all processes of this machine (`next_uses`); of pages whose next
use is not known, the one that was not used longest leaves first. Pages that the next steps need, or that are being
read, do not leave, unless a reader finds no other room: then it is alone (`reading_alone`), and those go that it does
not read itself, the ones that are needed last first. A sample of the pages is compared, not all of them.
"""

from __future__ import annotations

import os
import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import I64, CachedObject, page_ids, read_shape

if TYPE_CHECKING:
    from penstock.storage.page_cache import PageCache

_SAMPLE = 2048  # pages that are compared
_LISTING_SECONDS = 10.0  # how long a list of the objects is used
_NEW_LISTING_SECONDS = 0.2  # if nothing in an older one can be evicted, it is read again
_EXTRA = 512  # 1/512 of the limit is freed at once


_KEY = re.compile(r"[0-9a-f]{16,64}")


class _Candidate(NamedTuple):
    found: CachedObject
    pages: I64
    idle: NDArray[np.float64]
    uses: NDArray[np.uint32]


class Eviction:
    """Chooses and evicts pages of one cache."""

    def __init__(self, cache: PageCache) -> None:
        self.cache = cache
        self._listed: tuple[float, list[str]] = (-_LISTING_SECONDS, [])
        self._random = random.Random()

    def free(self, size: int, limit: int, *, soon: bool = False) -> int:
        """Evicts at least `size` bytes if it can, with `soon` what the next steps need; returns how many."""
        if soon:
            return self._evict_pages(size, soon=True)
        size += limit // _EXTRA
        return self._free(size) or (self._old_listing() and self._free(size))

    def _old_listing(self) -> bool:
        """Whether the list of objects was old, and is now read again."""
        if time.monotonic() - self._listed[0] < _NEW_LISTING_SECONDS:
            return False
        self._keys(fresh=True)
        return True

    def _free(self, size: int) -> int:
        freed = self._delete_unused(size)
        if freed < size:
            freed += self._evict_pages(size - freed)
        return freed

    def add(self, key: str) -> None:
        """An object was created."""
        self._listed[1].append(key)

    def _keys(self, fresh: bool = False) -> list[str]:
        began, found = self._listed
        if fresh or time.monotonic() - began > _LISTING_SECONDS:
            found = []
            for folder in os.scandir(self.cache.folder):
                if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                    names = {os.path.splitext(e.name) for e in os.scandir(folder.path)}
                    stems = {stem for stem, end in names if end in (".state", ".data")}
                    found += [stem for stem in stems if _KEY.fullmatch(stem) and stem.startswith(folder.name)]
            self._listed = (time.monotonic(), found)
        return found

    def _object(self, key: str) -> CachedObject | None:
        base = os.path.join(self.cache.folder, key[:2], key)
        shape = read_shape(f"{base}.state")
        if shape is None:
            return None
        found = CachedObject(base, key, shape)
        try:
            found.map()
        except OSError:
            return None
        return found

    def _delete_unused(self, size: int) -> int:
        """Deletes objects that no process has open, the ones longest unused first."""
        dated = []
        for key in self._keys():
            with suppress(OSError):
                dated.append((os.stat(os.path.join(self.cache.folder, key[:2], f"{key}.state")).st_mtime, key))
        freed = 0
        for _, key in sorted(dated):
            if freed >= size:
                break
            if self.cache.lock_unused(key):
                try:
                    freed += self._delete(key)
                finally:
                    self.cache.unlock_unused(key)
        return freed

    def _delete(self, key: str) -> int:
        with self.cache.budget.mutex():
            found = self._object(key)
            base = os.path.join(self.cache.folder, key[:2], key)
            size = 0 if found is None else found.entry_bytes(found.present()) + found.fixed_bytes
            for path in (f"{base}.data", f"{base}.state"):
                with suppress(FileNotFoundError):
                    os.unlink(path)
            self.cache.budget.freed(size)
            PAGES.add("pages_evicted", 0 if found is None else len(found.present()))
            if key in self._listed[1]:
                self._listed[1].remove(key)
            return size

    def _evict_pages(self, size: int, soon: bool = False) -> int:
        keys = list(self._keys())
        self._random.shuffle(keys)
        candidates: list[_Candidate] = []
        known = self.cache.next_uses
        count, horizon, later, mine = 0, known.horizon(), known.later(), self.cache.alone.needed()
        for key in keys:
            found = self._object(key)
            if found is None:
                continue
            pages = found.present()
            pages = pages[(pages < found.tail)]
            ids, idle = page_ids(key, pages), found.idle(pages)
            free = ~_in_sorted(ids, mine) if soon else (idle > 0) & ~_in_sorted(ids, horizon)
            pages, idle = pages[free], idle[free]
            if len(pages):
                candidates.append(_Candidate(found, pages, idle, later.at(ids[free])))
                count += len(pages)
            if count >= _SAMPLE and count * found.shape.page_bytes >= 4 * size:
                break
        if not candidates:
            return 0
        owner = np.repeat(np.arange(len(candidates)), [len(c.pages) for c in candidates])
        page = np.concatenate([c.pages for c in candidates])
        order = np.lexsort(
            [
                -np.concatenate([part.astype(np.float64) for part in each])
                for each in zip(*((c.idle, c.uses) for c in candidates), strict=True)
            ]
        )
        needed = -(-size // min(c.found.shape.page_bytes for c in candidates))
        chosen = order[:needed]
        freed = 0
        for number in np.unique(owner[chosen]).tolist():
            pages = np.sort(page[chosen[owner[chosen] == number]])
            freed += self.cache.evict(candidates[number].found, pages)
            PAGES.add("pages_evicted", len(pages))
        return freed

    def count_again(self) -> None:
        """Counts the bytes of the folder from its files, and frees what killed processes left between two steps."""
        with self.cache.budget.mutex():
            total = 0
            for key in self._keys(fresh=True):
                found = self._object(key)
                if found is None:  # damaged
                    if self.cache.lock_unused(key):
                        self._delete(key)
                        self.cache.unlock_unused(key)
                    continue
                size = found.fixed_bytes + found.entry_bytes(found.present())
                total += size
                with suppress(FileNotFoundError):
                    if os.stat(found.data_path).st_blocks * 512 > found.entry_bytes(found.present()):
                        self._free_absent(found)
            self.cache.budget.counted(total)

    def _free_absent(self, found: CachedObject) -> None:
        absent = np.flatnonzero((found.generations[: found.tail] & 1) == 0)
        mine = self.cache.claim(found, absent)
        try:
            still = mine[(found.generations[mine] & 1) == 0]
            self.cache.free_space(found, still)
        finally:
            self.cache.release(found, mine)


def _in_sorted(numbers: NDArray[np.uint64], found: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not len(found):
        return np.zeros(len(numbers), bool)
    same: NDArray[np.bool_] = found[np.minimum(np.searchsorted(found, numbers), len(found) - 1)] == numbers
    return same
