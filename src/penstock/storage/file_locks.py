"""Locks on byte ranges of a file that end with the process that holds them, and holes in files. Linux only.

A lock belongs to the open file, not to the process: two descriptors of one process exclude each other, and closing
another descriptor of the same file releases nothing. The kernel releases the lock when the process dies, however it
dies. Threads that share a descriptor must exclude each other by other means.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any

from penstock.core.errors import StorageError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_FLOCK = struct.Struct("hhqqi4x")
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

SUPPORTED = fcntl is not None and hasattr(fcntl, "F_OFD_SETLK")

_libc: Any = None
if SUPPORTED:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def lock(fd: int, start: int, length: int = 1, *, shared: bool = False, wait: bool = False) -> bool:
    """Locks bytes of a file. Returns False if another holder has one of them; with `wait`, waits for it instead."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(fd, how, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, start: int, length: int = 1) -> None:
    """Releases bytes of a file."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def punch(fd: int, start: int, length: int, path: str) -> None:
    """Frees the disk space of a range of a file; it then reads as zeros. The size of the file stays."""
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, length) == 0:
        return
    number = ctypes.get_errno()
    unsupported = number in (errno.EOPNOTSUPP, errno.ENOSYS)
    raise StorageError(
        "a disk for the page cache whose files can have holes" if unsupported else "a cached page that can be freed",
        got=os.strerror(number),
        where=path,
        fix="pass cache_dir= on a local disk (ext4, xfs, btrfs or tmpfs)" if unsupported else "check the disk",
        errno=number,
    )
