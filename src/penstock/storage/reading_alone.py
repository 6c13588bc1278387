"""One reader at a time that may evict whatever it does not read itself: so a cache that holds one read makes progress.

Of all threads of all processes that use a cache folder, one can be alone. It stays so until what it read has been
copied. Nobody else evicts meanwhile, and nobody fetches ahead; others wait, and have neither claimed pages nor reserved
bytes while they do, so that no two wait for each other. The lock ends with its process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from penstock.core.waits import owned
from penstock.storage import file_locks


class _Thread(threading.local):
    """What a thread is doing: how deep it is in `read`, and the pages that it reads."""

    reads = 0

    def __init__(self) -> None:
        self.pages: list[tuple[NDArray[np.uint64], int]] = []


class ReadingAlone:
    """The lock of a cache folder; `fd` and `place` say which byte of which file is locked."""

    def __init__(self, fd: int, place: int) -> None:
        self._fd, self._place = fd, place
        self._lock = threading.RLock()  # it knows its owner, also if an exception of a signal handler came right then
        self._thread = _Thread()

    @contextmanager
    def read(self) -> Iterator[None]:
        """A read, from the first look at its pages until they were copied: at its end this thread is not alone."""
        before = self._thread.reads
        try:
            self._thread.reads = before + 1
            yield
        finally:
            self._thread.reads = before
            if not before:
                try:
                    self._thread.pages.clear()
                    self.leave()
                finally:  # an exception of a signal handler may have cut that short
                    self.leave()

    @property
    def reading(self) -> bool:
        """Whether this thread is inside `read`."""
        return self._thread.reads > 0

    @property
    def mine(self) -> bool:
        """Whether this thread is alone."""
        return owned(self._lock)

    def enter(self, wait: bool = True) -> bool:
        """Waits until this thread is alone; without `wait`, returns False if it cannot be now."""
        if self.mine:
            return True
        if not self._lock.acquire(blocking=wait):
            return False
        entered = False
        try:
            entered = file_locks.lock(self._fd, self._place, wait=wait)
        finally:
            if not entered:
                self._lock.release()
        return entered

    def leave(self) -> None:
        """Ends it, if this thread is alone."""
        if not self.mine:
            return
        with suppress(OSError):  # at the end of the process the file may be closed before this thread
            file_locks.unlock(self._fd, self._place)
        self._lock.release()

    def someone(self) -> bool:
        """Whether another thread of any process is alone now."""
        if self.mine:
            return False
        if not self.enter(wait=False):
            return True
        self.leave()
        return False

    def need(self, pages: NDArray[np.uint64], page_bytes: int) -> None:
        """Notes pages that this thread reads: it does not evict them itself."""
        if self.reading:
            self._thread.pages.append((pages, page_bytes))

    def needed(self) -> NDArray[np.uint64]:
        """The pages that this thread reads, sorted."""
        return np.unique(np.concatenate([np.empty(0, np.uint64), *(pages for pages, _ in self._thread.pages)]))

    def needed_bytes(self) -> int:
        """About the bytes of these pages, at most."""
        return len(self.needed()) * max((page_bytes for _, page_bytes in self._thread.pages), default=0)
