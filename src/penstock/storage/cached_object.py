"""One object in the page cache: a sparse file with the object's bytes, and a file that says which pages are there.

Both are mapped by every process that reads the object. A page has a generation: odd while the page is present, even
while it is absent, one higher at each change. A reader compares the generations of its pages before and after it
copies: if they are equal and odd, no page was evicted in between. Generations change only while the page is claimed
(see `page_cache`). After the pages there is one more entry, for the tail of the object.

Each page also has a stamp, a time since the machine started: until then it is kept; later, how long ago it was used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.mapped import map_shared
from penstock.core.os_errors import storage_errors
from penstock.core.signals import surface

I64 = NDArray[np.int64]

MAGIC = 0x3247_5041_5453_4E50  # "PNSTAPG2": those who evict from it count it
BLOCK = 4096
PAGE_BITS = 22  # of the numbers of pages in lock files
KEEP_SECONDS = 0.25  # a page that was read is kept at least this long
TICKS = 16  # stamps count sixteenths of a second
_HEADER = 64
_USUAL_HEADER = 4096  # bytes of the description of a shard
_EXTENTS = 16 << 10  # what a file system needs for the extents of a file with many holes
_LONGEST_KEEP = 3600 * TICKS  # a stamp further ahead is from before a restart of the machine


class Shape(NamedTuple):
    """What the state file of an object begins with."""

    magic: int
    size: int
    page_bytes: int
    entries: int  # pages, and the tail


def round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def now() -> int:
    """Sixteenths of a second since the machine started: one clock for all processes."""
    return int(time.monotonic() * TICKS)


class CachedObject:
    """The files of one object, open in this process. Made by `PageCache.open`."""

    def __init__(self, base: str, key: str, shape: Shape) -> None:
        self.key, self.shape = key, shape
        self.data_path, self.state_path = f"{base}.data", f"{base}.state"
        self.pages = shape.entries - 1
        self._words: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.generations: NDArray[np.uint32] = np.empty(0, np.uint32)
        self.stamps: NDArray[np.uint32] = np.empty(0, np.uint32)

    @property
    def state_bytes(self) -> int:
        return _HEADER + 8 * self.shape.entries

    @property
    def fixed_bytes(self) -> int:
        """What the object occupies while no page is present."""
        return round_up(self.state_bytes) + _EXTENTS

    @property
    def tail(self) -> int:
        """The entry of the tail."""
        return self.pages

    @property
    def tail_bytes(self) -> int:
        return int(self._words[4])

    @tail_bytes.setter
    def tail_bytes(self, size: int) -> None:
        self._words[4] = size

    def create(self) -> None:
        """Creates both files; the space of the state is allocated, so that writing through its map cannot fail."""
        with storage_errors(self.data_path, "written"):
            os.makedirs(os.path.dirname(self.data_path), mode=0o700, exist_ok=True)
            for path in (self.state_path, self.data_path):
                if os.path.lexists(path):
                    os.unlink(path)
            data = os.open(self.data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(data, self.shape.size)
            finally:
                os.close(data)
            state = os.open(self.state_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(state, 0, self.state_bytes)
                os.pwrite(state, np.array(self.shape, np.uint64).tobytes(), 0)
            finally:
                os.close(state)

    def map(self) -> None:
        """Maps the state."""
        with storage_errors(self.state_path):
            fd = os.open(self.state_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                memory = map_shared(fd, self.state_bytes)
            finally:
                os.close(fd)
        self._words = memory[:_HEADER].view(np.uint64)
        self.generations = memory[_HEADER : _HEADER + 4 * self.shape.entries].view(np.uint32)
        self.stamps = memory[_HEADER + 4 * self.shape.entries : self.state_bytes].view(np.uint32)

    def entry_bytes(self, entries: I64) -> int:
        """Bytes of disk that these entries occupy when present."""
        size, page = self.shape.size, self.shape.page_bytes
        if not len(entries) or int(entries.max()) < self.pages - 1:
            return len(entries) * page
        full = int(np.count_nonzero(entries < self.pages)) * page
        last = (self.pages - 1) * page  # the last page may be short
        if bool((entries == self.pages - 1).any()):
            full -= page - round_up(min(page, size - last))
        if bool((entries == self.tail).any()):
            full += round_up(self.tail_bytes) + BLOCK
        return full

    def span(self, entry: int) -> tuple[int, int]:
        """The bytes [start, stop) of the object that an entry holds."""
        body = self.shape.size - self.tail_bytes
        if entry == self.tail:
            return body, self.shape.size
        return entry * self.shape.page_bytes, min((entry + 1) * self.shape.page_bytes, body)

    def present(self) -> I64:
        """The entries that are present."""
        return np.flatnonzero(self.generations & 1)

    def keep(self, entries: I64, seconds: float = KEEP_SECONDS) -> None:
        """Asks that these pages are kept at least this many seconds from now."""
        until = now() + int(seconds * TICKS)
        self.stamps[entries] = np.maximum(_sane(self.stamps[entries]), until)

    def was_read(self, entries: I64) -> None:
        """These pages were just read; they need not be kept for that any longer."""
        self.stamps[entries] = now() - 1

    def idle(self, entries: I64) -> NDArray[np.float64]:
        """Seconds since these pages need no longer be kept; negative while they must be."""
        return (now() - _sane(self.stamps[entries]).astype(np.int64)) / TICKS

    def write(self, contents: Iterable[tuple[int, bytes | memoryview]]) -> None:
        """Writes bytes from the beginning of an entry on, to the end of that or a later one.

        All of them are claimed and absent; the caller publishes them afterwards.
        """
        with storage_errors(self.data_path, "written"):
            fd = os.open(self.data_path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                for entry, content in contents:
                    start, done = self.span(entry)[0], 0
                    while done < len(content):
                        done += os.pwrite(fd, content[done:], start + done)
            finally:
                os.close(fd)


def opened_bytes(size: int, page_bytes: int) -> int:
    """About what an object occupies while it is open, besides its pages."""
    pages = size // page_bytes + 1
    return round_up(_HEADER + 8 * (pages + 1)) + _EXTENTS + round_up(_USUAL_HEADER + 8 * pages) + BLOCK


def read_shape(state_path: str) -> Shape | None:
    """What a state file says about its object; None if it is not a complete one."""
    try:
        with open(state_path, "rb") as file:
            found = Shape(*(int(n) for n in np.frombuffer(file.read(32), np.uint64)))
            if found.magic != MAGIC or not _plausible(found):
                return None
            complete = os.fstat(file.fileno()).st_size == _HEADER + 8 * found.entries
    except (OSError, TypeError, ValueError) as error:
        surface(error)
        return None
    return found if complete else None


def _plausible(shape: Shape) -> bool:
    pages = shape.page_bytes and shape.size // shape.page_bytes + 1
    return 0 < shape.page_bytes <= 1 << 40 and shape.entries == pages + 1


def _sane(stamps: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.where(stamps > now() + _LONGEST_KEEP, np.uint32(0), stamps)


def page_ids(key: str, pages: I64) -> NDArray[np.uint64]:
    """One number for each page of an object, different for all pages but by a chance of one in 2^40."""
    return np.uint64(place(key) << PAGE_BITS) | pages.astype(np.uint64)


def place(key: str) -> int:
    """The byte of the lock files that stands for an object."""
    return int(key[:10], 16)
