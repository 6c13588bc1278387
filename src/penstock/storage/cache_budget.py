"""The bytes of a cache folder, counted by all processes that use it together.

A small file, mapped by all of them: the bytes that are present, and for each process a slot with the bytes that it is
about to write. A process locks its slot as long as it lives, so a slot that says it is used but can be locked belonged
to one that was killed: what it left is then counted again from the files. Bytes are added before they are written and
taken off after they are freed, so the sum is never too low. Each number is there twice, once with its bits inverted: a
file that was damaged is noticed, its numbers are replaced, and the bytes are counted again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StorageError
from penstock.core.mapped import map_shared
from penstock.core.os_errors import storage_errors
from penstock.storage import file_locks

_MAGIC = 0x3243_5041_5453_4E50  # "PNSTAPC2"
_SLOTS = 1024
_EVICTIONS = 4  # the word that counts them
_FIRST = 8  # the first word of the slots: bytes in flight inverted (0: unused), bytes in flight
_BYTES = 8 * (_FIRST + 2 * _SLOTS)
OWN_BYTES = 32 << 10  # this file and the others that are not of an object
_MUTEX, _SLOT_LOCKS = 0, 1000  # bytes of the file that are locked


class CacheBudget:
    """The counters of one cache folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._depth = 0
        with storage_errors(path, "written"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._life = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # holds the lock of the slot
        self._in_flight = 0  # as the slot says
        with self.mutex():
            with storage_errors(path, "written"):
                new = os.fstat(self._fd).st_size == 0
                os.posix_fallocate(self._fd, 0, _BYTES)
            self._words: NDArray[np.uint64] = map_shared(self._fd, _BYTES).view(np.uint64)
            self._slot = -1
            self._replace_damaged(new)
            self._words[_EVICTIONS] = max(1, self.evictions)
            self._slot = self._claim_slot()

    def _replace_damaged(self, new: bool = False) -> bool:
        """Replaces numbers that were damaged; returns whether there were any. Call with the mutex.

        In a `new` file no process has a slot.
        """
        inverted, sizes = self._words[_FIRST::2], self._words[_FIRST + 1 :: 2]
        wrong = np.flatnonzero((inverted != ~sizes) & ((inverted | sizes) != 0))
        if int(self._words[0]) == _MAGIC and self._words[2] == ~self._words[1] and not len(wrong):
            return False
        if int(self._words[0]) != _MAGIC:
            wrong = np.arange(0 if new else _SLOTS)
        for slot in wrong.tolist():  # a process that lives corrects its own at its next change
            self._set_slot(_FIRST + 2 * slot, 0)
            if file_locks.lock(self._fd, _SLOT_LOCKS + slot):
                file_locks.unlock(self._fd, _SLOT_LOCKS + slot)
                self._words[_FIRST + 2 * slot] = 0
        if self._slot >= 0:
            self._set_slot(self._slot, self._in_flight)
        self._words[0] = _MAGIC
        self._set_present(0)
        self._words[3] = 1
        self._words[_EVICTIONS] = int.from_bytes(os.urandom(7), "little") + 1  # no number that was there before
        return True

    def _set_present(self, size: int) -> None:
        self._words[1] = size
        self._words[2] = ~self._words[1]

    def _set_slot(self, at: int, size: int) -> None:
        self._words[at + 1] = size
        self._words[at] = ~self._words[at + 1]

    @contextmanager
    def mutex(self) -> Iterator[None]:
        """Excludes all other threads and processes. May be entered again by the thread that holds it."""
        with self._turn:
            if self._depth == 0:
                file_locks.lock(self._fd, _MUTEX, wait=True)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    file_locks.unlock(self._fd, _MUTEX)

    def _claim_slot(self) -> int:
        for slot in range(_SLOTS):
            if file_locks.lock(self._life, _SLOT_LOCKS + slot):
                at = _FIRST + 2 * slot
                if self._words[at]:
                    self._words[3] = 1
                self._set_slot(at, 0)
                return at
        raise StorageError(f"at most {_SLOTS} processes in one cache", where=self.path, fix="pass another cache_dir=")

    @property
    def stale(self) -> bool:
        """Whether the sum must be counted again, by whichever process sees it first."""
        return bool(self._words[3])

    @property
    def present(self) -> int:
        """Bytes on disk."""
        return int(self._words[1])

    @property
    def slot(self) -> int:
        """The number of this process among those that use the cache."""
        return (self._slot - _FIRST) // 2

    def living(self) -> list[int]:
        """The numbers of the processes that use the cache now; a killed one is left out."""
        found = []
        for slot in np.flatnonzero(self._words[_FIRST::2]).tolist():
            if slot != self.slot and file_locks.lock(self._fd, _SLOT_LOCKS + slot, shared=True):
                file_locks.unlock(self._fd, _SLOT_LOCKS + slot)
            else:
                found.append(slot)
        return found

    @property
    def users(self) -> int:
        """Processes that use the cache now, this one included."""
        return int(np.count_nonzero(self._words[_FIRST::2]))

    def total(self) -> int:
        """Bytes on disk and on their way there. Call with the mutex."""
        return OWN_BYTES + self.present + int(self._words[_FIRST + 1 :: 2].sum())

    def reserve(self, size: int, limit: int) -> bool:
        """Adds bytes that will be written, if the sum stays within the limit and need not be counted again."""
        with self.mutex():
            if self._replace_damaged() or self.stale or self.total() + size > limit:
                return False
            self._in_flight += size
            self._set_slot(self._slot, self._in_flight)
            return True

    def written(self, size: int) -> None:
        """Reserved bytes are on disk. Call with the mutex, together with the change that makes them visible."""
        self._replace_damaged()
        self.unused(size)
        self._set_present(self.present + size)

    def unused(self, size: int) -> None:
        """Reserved bytes will not be written."""
        with self.mutex():
            self._in_flight -= min(size, self._in_flight)
            self._set_slot(self._slot, self._in_flight)

    def leaving(self, size: int) -> None:
        """Bytes on disk are about to be freed; then they are `unused`. Call with the mutex, with what marks them."""
        self._replace_damaged()
        self._set_present(self.present - min(size, self.present))
        self._in_flight += size
        self._set_slot(self._slot, self._in_flight)

    def freed(self, size: int) -> None:
        """Bytes are no longer on disk."""
        with self.mutex():
            self._replace_damaged()
            self._set_present(self.present - min(size, self.present))

    @property
    def evictions(self) -> int:
        """Changes whenever pages leave the cache: after they were marked absent, before their space is freed."""
        return int(self._words[_EVICTIONS])

    def count_eviction(self) -> None:
        """Pages that are marked absent are about to be freed."""
        with self.mutex():
            self._words[_EVICTIONS] += np.uint64(1)

    def forget_dead(self) -> bool:
        """Clears the slots of processes that were killed. Returns whether there were any: then count again."""
        with self.mutex():
            for slot in np.flatnonzero(self._words[_FIRST::2]).tolist():
                at = _FIRST + 2 * slot
                if at != self._slot and file_locks.lock(self._fd, _SLOT_LOCKS + slot):
                    self._words[at] = self._words[at + 1] = 0
                    file_locks.unlock(self._fd, _SLOT_LOCKS + slot)
                    self._words[3] = 1
            return self.stale

    def counted(self, size: int) -> None:
        """Replaces the bytes on disk by a new count. Call with the mutex."""
        self._set_present(size)
        self._words[3] = 0

    def close(self) -> None:
        """Gives the slot back."""
        if self._fd < 0:
            return
        with self.mutex():
            if not self._in_flight:  # otherwise the next process counts again
                self._words[self._slot] = 0
        os.close(self._life)
        os.close(self._fd)
        self._fd = -1
