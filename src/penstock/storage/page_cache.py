"""Pages of remote objects on a local disk, shared by all processes of a machine and bounded in bytes.

    cache_dir/pages/
        penstock-page-cache.json     says that this folder is a page cache; another non-empty folder is refused
        control                      the bytes in use (see `cache_budget`)
        locks, users                 empty files whose bytes are locked: pages in work, objects in use
        ab/ab12...data               the object, sparse: absent pages are holes
        ab/ab12...state              which pages are there (see `cached_object`)

The key of an object is a hash of its content, so what is there serves every run and never another object. Nothing
relies on a process ending properly: locks end with their process, a page is marked present after it was verified and
written, and marked absent before its space is freed. A page whose bytes are not what its hash says is fetched again.

Changes to a page are made by whoever has claimed it: one thread of one process at a time.
"""

from __future__ import annotations

import atexit
import copy
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StorageError, UsageError
from penstock.core.os_errors import storage_errors
from penstock.core.waits import Condition
from penstock.storage import cache_eviction, file_locks
from penstock.storage.cache_budget import OWN_BYTES, CacheBudget
from penstock.storage.cache_folder import make_folder
from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import I64, MAGIC, PAGE_BITS, CachedObject, Shape, place, read_shape
from penstock.storage.next_uses import NextUses, Uses
from penstock.storage.reading_alone import ReadingAlone

MOST_BYTES = 64 << 30
LEAST_BYTES = 1 << 20
_SHARE_OF_DISK = 10
_PATIENCE = 120.0  # seconds that a reader waits for room
_ALONE = 1 << 41  # a byte of `users` that stands for no object


class CacheTooSmall(StorageError):
    """A reader needs more bytes at once than the cache may hold: it may read fewer rows at once."""


@dataclass
class _Numbers:
    """What changes, of one folder in this process, whatever the limit."""

    held: int = 0  # bytes of the objects that are open, besides their pages
    closed: bool = False


class PageCache:
    """The page cache of one folder, with a limit. Use `open_cache`, so that a process has one of each folder."""

    def __init__(self, folder: str) -> None:
        if not file_locks.SUPPORTED:
            raise UsageError("Linux for reading token stores from an object store", got=os.name, fix="copy the store")
        self.folder = folder
        make_folder(folder)
        self._pid = os.getpid()
        self._turn, self._evicting = Condition(), threading.Lock()
        self._numbers = _Numbers()
        self._claimed: dict[str, NDArray[np.bool_]] = {}  # the entries of each object that threads here work on
        self._uses: Counter[str] = Counter()
        self._held: dict[str, int] = {}
        self.eviction = cache_eviction.Eviction(self)
        with storage_errors(folder, "written"):
            self._locks, self._users = (
                os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                for name in ("locks", "users")
            )
        self.alone = ReadingAlone(self._users, _ALONE)
        self.budget = CacheBudget(os.path.join(folder, "control"))
        self.next_uses = NextUses(folder, self.budget)
        if self.budget.forget_dead():
            self.eviction.count_again()
        self.limit = self._default_limit()
        self.opened = 0  # bytes of all objects of the largest store that is read, when they are open

    def with_limit(self, limit: int) -> PageCache:
        """The same cache for a reader with another limit."""
        other = copy.copy(self)
        other.limit = limit
        return other

    @contextmanager
    def without_limit(self) -> Iterator[None]:
        """Inside, there is room for everything; afterwards what is too much is evicted."""
        kept, self.limit = self.limit, 1 << 62
        try:
            yield
        finally:
            self.limit = kept
            self.shrink()

    def _default_limit(self) -> int:
        free = shutil.disk_usage(self.folder).free + self.budget.present
        return max(LEAST_BYTES, min(MOST_BYTES, free // _SHARE_OF_DISK))

    def open(self, key: str, size: int, page_bytes: int) -> CachedObject:
        """Opens an object, creating its files if they are not there. Call `close_object` when done with it."""
        found = CachedObject(self._base(key), key, Shape(MAGIC, size, page_bytes, size // page_bytes + 2))
        with self._turn.lock:
            self._uses[key] += 1
            if self._uses[key] == 1:
                file_locks.lock(self._users, place(key), shared=True, wait=True)
        try:
            if not _complete(found):
                self._create(found)
            found.map()
            self._hold(found)
        except BaseException:
            self.close_object(key)
            raise
        return found

    def _hold(self, found: CachedObject) -> None:
        """Notes what an open object occupies besides its pages: it cannot be evicted."""
        tail = found.entry_bytes(np.array([found.tail])) if found.generations[found.tail] & 1 else 0
        size = found.fixed_bytes + min(tail, found.shape.size + found.shape.page_bytes)
        with self._turn.lock:
            self._numbers.held += size - self._held.get(found.key, 0)
            self._held[found.key] = size

    def _create(self, wanted: CachedObject) -> None:
        self.make_room(wanted.fixed_bytes, opening=True)
        with self.budget.mutex():
            try:
                if not _complete(wanted):  # otherwise another process was quicker
                    wanted.create()
                    self.budget.written(wanted.fixed_bytes)
                    self.eviction.add(wanted.key)
                    return
            except BaseException:
                self.budget.unused(wanted.fixed_bytes)
                raise
            self.budget.unused(wanted.fixed_bytes)

    def close_object(self, key: str) -> None:
        """The object is no longer in use here, and may be deleted when room is needed."""
        with self._turn.lock:
            self._uses[key] -= 1
            if self._uses[key] <= 0:
                del self._uses[key]
                self._numbers.held -= self._held.pop(key, 0)
                if not self._numbers.closed:
                    file_locks.unlock(self._users, place(key))

    def lock_unused(self, key: str) -> bool:
        """Locks an object that no process has open, to delete it; `unlock_unused` releases it."""
        with self._turn.lock:
            return key not in self._uses and file_locks.lock(self._users, place(key))

    def unlock_unused(self, key: str) -> None:
        file_locks.unlock(self._users, place(key))

    def _base(self, key: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{16,64}", key):
            raise UsageError("a hash as key of a cached object", got=repr(key)[:80])
        return os.path.join(self.folder, key[:2], key)

    def claim(self, found: CachedObject, entries: I64) -> I64:
        """Claims those of these entries that nobody else has claimed, and returns them."""
        if self._pid != os.getpid():
            raise StorageError(
                "a page cache in the process that opened it, or in a spawned one", got="a forked process",
                where=self.folder, fix='start workers with the "spawn" method, or use threads= or workers=',
            )  # fmt: skip
        base = place(found.key) << PAGE_BITS
        got: list[range] = []
        with self._turn.lock:
            claimed = self._claimed.get(found.key)
            if claimed is None or len(claimed) != found.shape.entries:
                claimed = np.zeros(found.shape.entries, bool)
            for start, stop in runs(entries[~claimed[entries]]):
                if file_locks.lock(self._locks, base + start, stop - start):
                    got.append(range(start, stop))
                elif stop - start > 1:  # another process has some of them
                    got += [range(n, n + 1) for n in range(start, stop) if file_locks.lock(self._locks, base + n)]
            for each in got:
                claimed[each.start : each.stop] = True
                self._claimed[found.key] = claimed
        return np.array([entry for each in got for entry in each], np.int64)

    def release(self, found: CachedObject, entries: I64) -> None:
        """Ends claims; threads that wait for one of them look again."""
        base = place(found.key) << PAGE_BITS
        with self._turn.lock:
            claimed = self._claimed.get(found.key, np.empty(0, bool))
            for start, stop in runs(entries):
                claimed[start:stop] = False
                file_locks.unlock(self._locks, base + start, stop - start)
            if not claimed.any():
                self._claimed.pop(found.key, None)
            self._turn.notify_all()

    def in_work(self, found: CachedObject) -> NDArray[np.bool_]:
        """For each entry of an object whether a thread of this process works on it now."""
        with self._turn.lock:
            claimed = self._claimed.get(found.key)
            return np.zeros(found.shape.entries, bool) if claimed is None else claimed.copy()

    def wait_for(self, found: CachedObject, entries: I64, seconds: float = 1.0) -> bool:
        """Waits while the absent ones of these entries are all claimed by threads here; returns whether they were."""
        until, waited = time.monotonic() + seconds, False
        with self._turn.lock:
            while (left := until - time.monotonic()) > 0:
                absent = entries[(found.generations[entries] & 1) == 0]
                claimed = self._claimed.get(found.key)
                if not len(absent) or claimed is None or not claimed[absent].all():
                    break
                waited = True
                self._turn.wait(left)
        return waited

    def wait(self, seconds: float = 0.005) -> None:
        """Waits until claims of this process ended, or a short time, because other processes do not notify it."""
        with self._turn.lock:
            self._turn.wait(seconds)

    @property
    def evictions(self) -> int:
        """A number that changes before pages that were present are freed, by whichever process."""
        return self.budget.evictions

    @property
    def room(self) -> int:
        """Bytes for pages, beside what the objects that are open here occupy."""
        return self.limit - OWN_BYTES - self._numbers.held

    @property
    def is_full(self) -> bool:
        """Whether most of the cache is in use: little of what is not needed can be kept."""
        return self.budget.total() > self.limit - self.limit // 8

    def may_evict(self, more: int) -> bool:
        """Whether pages may have to leave soon: for `more` bytes, or for what other processes read."""
        return self.budget.users > 1 or self.budget.total() + more > self.limit // 2

    def has_room(self, size: int) -> bool:
        """Whether there is room, or can be without evicting what the next steps need."""
        if not self.make_room(size, ahead=True):
            return False
        self.budget.unused(size)
        return True

    def make_room(self, size: int, *, evict: bool = True, ahead: bool = False, opening: bool = False) -> bool:
        """Reserves bytes, evicting pages if there is no room. Without `evict`, returns False if there is no room.

        A reader that finds no other room becomes alone (`reading_alone`) and evicts what it does not read itself; the
        caller ends that with `alone.leave()` when the read is over. It waits here, so it must hold no claims. With
        `ahead` what others need soon stays, and there is no wait: returns False. `opening` an object, which happens
        once, waits for nobody.
        """
        began: float | None = None
        while True:
            if ahead and self.alone.someone():
                return False
            if self.budget.reserve(size, self.limit):
                return True
            if not evict:
                return False
            if not ahead:
                self.refuse_beyond(size)
            if self.budget.forget_dead():
                self.eviction.count_again()
                continue
            entered = not self.alone.mine and self.alone.enter(wait=not (ahead or opening))
            try:
                if self._evict_for(size):
                    continue
                if ahead:
                    return False
                if not opening:
                    self.refuse_beyond(self.alone.needed_bytes())
                    entered = entered and not self.alone.reading  # alone until the end of the read
                with self._evicting:
                    if self.eviction.free(self.budget.total() + size - self.limit, self.limit, soon=True):
                        continue
            finally:
                if entered:
                    self.alone.leave()
            began = time.monotonic() if began is None else began
            if time.monotonic() - began > _PATIENCE:
                raise StorageError(
                    "room in the page cache", got=f"{self.limit:,} bytes, all needed by the next steps of this machine",
                    where=self.folder, fix="raise cache_bytes=, or lower the batch size or the number of processes",
                )  # fmt: skip
            self.wait(0.02)

    def _evict_for(self, size: int) -> bool:
        """Evicts what nobody needs soon, for `size` bytes; returns whether there may be room now."""
        with self._evicting:
            missing = self.budget.total() + size - self.limit
            return missing <= 0 or bool(self.eviction.free(missing, self.limit))

    def shrink(self) -> None:
        """Evicts what is beyond the limit as far as nobody needs it soon."""
        while (beyond := self.budget.total() - self.limit) > 0 and self.eviction.free(beyond, self.limit):
            pass

    def refuse_beyond(self, size: int) -> None:
        """Raises if a reader needs more bytes at once than the cache may hold."""
        if size > self.room:
            needed = max(self.limit - self.room, self.opened + OWN_BYTES) + size
            raise CacheTooSmall(
                f"a page cache of at least {needed:,} bytes: {size:,} for what is read at once, "
                f"{needed - size:,} for the page tables of all shards, which stay open",
                got=f"cache_bytes={self.limit:,}", where=self.folder, fix=f"pass cache_bytes={needed:,} or more",
            )  # fmt: skip

    def publish(self, found: CachedObject, entries: I64) -> None:
        """Entries that are claimed, reserved, verified and written become present."""
        with self.budget.mutex():
            found.generations[entries] += np.uint32(1)
            self.budget.written(found.entry_bytes(entries))
        if bool((entries == found.tail).any()):
            self._hold(found)

    def give_up(self, found: CachedObject, entries: I64, size: int) -> None:
        """Claimed entries were not published: frees what was written of them, and then what was reserved."""
        self.free_space(found, entries)
        self.budget.unused(size)

    def evict(self, found: CachedObject, entries: I64) -> int:
        """Removes those of these entries that are present and that nobody works on. Returns the bytes freed."""
        mine = self.claim(found, entries)
        try:
            mine_now = mine[(found.generations[mine] & 1) == 1]
            if not len(mine_now):
                return 0
            size = found.entry_bytes(mine_now)
            with self.budget.mutex():  # a process that counts the pages meanwhile must not count them twice, or never
                found.generations[mine_now] += np.uint32(1)  # first: a reader that copies after this notices
                self.budget.leaving(size)
            self.free_space(found, mine_now)
            self.budget.unused(size)
        finally:
            self.release(found, mine)
        return size

    def free_space(self, found: CachedObject, entries: I64) -> None:
        """Frees the disk space of claimed entries that are marked absent."""
        self.budget.count_eviction()
        with storage_errors(found.data_path, "written"):
            fd = os.open(found.data_path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for start, stop in runs(entries):
                first, last = found.span(start)[0], found.span(stop - 1)[1]
                if last > first:
                    file_locks.punch(fd, first, last - first, found.data_path)
        finally:
            os.close(fd)

    def discard(self, found: CachedObject, entry: int, generation: int) -> None:
        """Removes an entry whose bytes turned out to be wrong, unless it was replaced since."""
        if int(found.generations[entry]) == generation:
            PAGES.add("pages_refetched")
            self.evict(found, np.array([entry]))

    def set_horizon(self, owner: object, ids: NDArray[np.uint64] | None) -> None:
        """The pages that `owner` will read soon, so that no process evicts them; None: it reads no more."""
        self.next_uses.set_horizon((id(owner), id(self)), ids)

    def set_later(self, owner: object, uses: Uses) -> None:
        """When `owner` will read pages next, as far as it knows: the one that is needed last leaves first."""
        self.next_uses.set_later((id(owner), id(self)), uses, self.limit)

    def close(self) -> None:
        """Releases what this process holds."""
        if self._numbers.closed or self._pid != os.getpid():
            return
        self.next_uses.close()
        self.budget.close()
        os.close(self._locks)
        os.close(self._users)
        self._numbers.closed = True


def runs(entries: I64) -> list[tuple[int, int]]:
    """Distinct numbers as ranges [start, stop) of consecutive ones.

    >>> runs(np.array([3, 4, 7]))
    [(3, 5), (7, 8)]
    """
    if not len(entries):
        return []
    first, last = int(entries.min()), int(entries.max())
    if last - first == len(entries) - 1:
        return [(first, last + 1)]
    entries = np.sort(entries)
    cuts = np.flatnonzero(entries[1:] - entries[:-1] != 1)
    starts, stops = np.append(entries[0], entries[cuts + 1]), np.append(entries[cuts], entries[-1]) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _complete(wanted: CachedObject) -> bool:
    if read_shape(wanted.state_path) != wanted.shape:
        return False
    try:
        return os.stat(wanted.data_path).st_size == wanted.shape.size
    except OSError:
        return False


_caches: dict[str, PageCache] = {}
_limited: dict[tuple[str, int], PageCache] = {}
_open_turn = threading.Lock()


def open_cache(folder: str, limit: int | None = None) -> PageCache:
    """The page cache of a folder in this process. Readers with different limits share it, each within its own limit."""
    name = os.path.realpath(folder)
    with _open_turn:
        if name not in _caches:
            _caches[name] = PageCache(name)
        if limit is None:
            return _caches[name]
        if (name, limit) not in _limited:
            _limited[name, limit] = _caches[name].with_limit(limit)
        _limited[name, limit].shrink()
        return _limited[name, limit]


def _close_all() -> None:
    for cache in _caches.values():
        cache.close()


def _forget_all() -> None:
    """In a forked process: its parent's locks are not its own."""
    global _open_turn  # noqa: PLW0603
    _open_turn = threading.Lock()
    _caches.clear()
    _limited.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
