"""Reads small files completely, with few system calls, into a reused buffer.

An image of 50 KB is read in a few microseconds; fresh memory for it costs as much again in page faults. `Arena` is the
reused buffer for files that are decoded before the next ones are read: see `steps.decode_images`.
"""

from __future__ import annotations

import os
import stat

import numpy as np

from penstock.core.errors import RecordError
from penstock.core.limits import Limits
from penstock.core.os_errors import storage_error

ARENA_BYTES = 64 << 20

# O_NONBLOCK: opening a named pipe without a writer must not block. It has no effect on regular files.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Arena:
    """A reused buffer for the files of one batch. `clear` frees all of it, also what views still refer to.

    >>> arena = Arena()
    >>> view = arena.take(3)
    >>> len(view), view.readonly, arena.take(ARENA_BYTES) is None
    (3, False, True)
    """

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8).data
        self._at = self._spent = 0

    def clear(self) -> None:
        self._at = self._spent = 0

    def take(self, size: int) -> memoryview | None:
        """Returns a view of `size` free bytes; None if the arena is full."""
        end = self._at + size
        if end > len(self._held):
            more = max(1 << 20, 2 * len(self._held), size)
            if self._spent + len(self._held) + more > ARENA_BYTES:
                return None
            self._spent += len(self._held)
            self._held, self._at, end = np.empty(more, np.uint8).data, 0, size
        view = self._held[self._at : end]
        self._at = end
        return view


def read_whole(
    path: str | os.PathLike[str], limits: Limits, *, where: str = "", arena: Arena | None = None
) -> bytes | memoryview:
    """Reads a complete regular file of at most `limits.record_bytes`; its size is checked first.

    A file that is too large or not a file is a bad record; one that is missing or cannot be read (permissions, too many
    open files, a failing disk) raises `StorageError`, which no error policy skips.
    """
    opened, size = open_regular(path, limits, where)
    try:
        room = arena.take(size) if arena is not None and hasattr(os, "readv") else None
        return read_open(opened, size) if room is None else _into(opened, room)
    except OSError as error:
        raise storage_error(error, where or path) from error
    finally:
        os.close(opened)


def open_regular(path: str | os.PathLike[str], limits: Limits, where: str) -> tuple[int, int]:
    """Opens a regular file of at most `limits.record_bytes`. Returns its descriptor, to be closed, and its size."""
    try:
        opened = os.open(path, _OPEN)  # system calls: a file object costs more than reading a small image
    except OSError as error:
        raise storage_error(error, where or path) from error
    found = os.fstat(opened)
    size = found.st_size
    if stat.S_ISREG(found.st_mode) and size <= limits.record_bytes:
        return opened, size
    os.close(opened)
    if not stat.S_ISREG(found.st_mode):
        raise RecordError("a regular file", got="a pipe, device or folder", where=where)
    raise RecordError(
        f"a file of at most {limits.record_bytes:,} bytes", got=f"{size:,} bytes", where=where,
        fix="leave it out, or pass limits=Limits(record_bytes=...)",
    )  # fmt: skip


def read_open(opened: int, size: int) -> bytes:
    """Reads up to `size` bytes of an open file; fewer if it ends before."""
    data = os.read(opened, size)
    while len(data) < size and (more := os.read(opened, size - len(data))):
        data += more
    return data


def _into(opened: int, room: memoryview) -> memoryview:
    at = os.readv(opened, [room])
    while at < len(room) and (more := os.readv(opened, [room[at:]])):
        at += more
    return room if at == len(room) else room[:at]  # shorter: the file was truncated meanwhile
