"""Read-only memory maps of files that need no descriptor and that notice a file that was cut.

Reading a mapped page beyond the end of its file ends the process with SIGBUS. So before a read through a map, the last
bytes of the file are compared with what they were. The kernel reads them, by writing them from the map into an unnamed
file: it returns an error where this process would get the signal. One call checks any number of maps, at about 0.05 us
each. Between this check and the read, a few milliseconds at most, the file must not be cut.

`mmap.mmap` duplicates the descriptor and keeps it, so that a store of 3,000 shards would need 3,000 of them. A map
made here does not; the system's limit is on maps (65,530 for each process on Linux).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StoreError
from penstock.core.os_errors import temporary_error, temporary_errors

TAIL = 8  # bytes at the end of each file that are compared
_MAX_VECTORS = 1024  # the kernel's IOV_MAX
_PURPOSE = "the last bytes of mapped files"
_FAILED = ctypes.c_void_p(-1).value
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)

_libc: Any = None
if os.name == "posix":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _libc.pwrite.restype = _libc.pwritev.restype = ctypes.c_ssize_t
    _libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    _libc.pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long]


class _Map:
    """Mapped memory; unmapped with its last array."""

    def __init__(self, fd: int, size: int, writable: bool = False) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.__array_interface__ = {"data": (address, not writable), "shape": (size,), "typestr": "|u1", "version": 3}
        self._place, self._unmap, self._forget = (address, size), _libc.munmap, _alive.discard
        _alive.add(address)

    def __del__(self) -> None:  # at interpreter exit globals may be None
        if hasattr(self, "_unmap"):
            self._forget(self._place[0])
            self._unmap(*self._place)


_alive: set[int] = set()  # addresses of the maps of this process; adding and discarding is atomic


@cache
def max_maps() -> int:
    """How many maps a process may have: 65,530 on Linux, unless it was raised."""
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65_530


def maps_left() -> int:
    """How many more files can be mapped; a quarter of all maps is left to the rest of the process."""
    return max_maps() * 3 // 4 - len(_alive)


class MappedFile(NamedTuple):
    """A mapped file: its bytes, and how its end is recognised."""

    path: str
    array: NDArray[np.uint8]
    file_id: tuple[int, int]  # device and inode
    end: int = 0  # the address of the last 8 bytes
    tail: int = 0  # the last 8 bytes; 0: they say nothing, so the size is asked for

    def check(self) -> None:
        """Raises `StoreError` if the file has been cut since it was mapped."""
        if self.tail == 0:
            check_size(self)
        elif _probe.read_one(self.end) != self.tail:
            raise _cut(self)

    def will_need(self, start: int, size: int) -> None:
        """Asks the system to read these bytes ahead."""
        if _libc is not None and _WILL_NEED is not None:
            first = start - start % mmap.PAGESIZE
            _libc.madvise(_address(self.array) + first, start + size - first, _WILL_NEED)


def map_file(path: str, fd: int) -> MappedFile:
    """Maps an open file; the caller closes the descriptor.

    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"0123456789"); file.flush()
    ...     found = map_file(file.name, file.fileno())
    >>> found.array[:3].tobytes(), found.array.flags.writeable
    (b'012', False)
    """
    facts = os.fstat(fd)
    file_id = facts.st_dev, facts.st_ino
    if facts.st_size == 0:
        return MappedFile(path, np.empty(0, np.uint8), file_id)
    try:
        if _libc is None:
            return MappedFile(path, np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8), file_id)
        array = np.asarray(_Map(fd, facts.st_size))
        tail = os.pread(fd, TAIL, max(0, facts.st_size - TAIL))
    except (OSError, ValueError) as error:
        raise StoreError(
            "a file that can be mapped into memory",
            got=str(error),
            where=path,
            fix="raise the limit on maps (sysctl vm.max_map_count) or memory (ulimit -v), or open fewer files",
        ) from error
    known = int.from_bytes(tail, sys.byteorder) if len(tail) == TAIL else 0
    return MappedFile(path, array, file_id, _address(array) + len(array) - TAIL, known)


def map_shared(fd: int, size: int) -> NDArray[np.uint8]:
    """Maps an open file for reading and writing; all processes that map it see each other's changes at once.

    The caller closes the descriptor, and must not let the file become shorter than `size`. POSIX only.
    """
    return np.asarray(_Map(fd, size, writable=True))


def map_of(array: NDArray[Any]) -> MappedFile | None:
    """The file behind an array that is or views a `np.memmap`; None for any other."""
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    memory, path = getattr(base, "_mmap", None), getattr(base, "filename", None)
    if memory is None or path is None:
        return None
    try:
        facts = os.stat(path)
    except OSError:
        return None  # deleted: what is mapped stays
    return MappedFile(os.fspath(path), np.frombuffer(memory, np.uint8), (facts.st_dev, facts.st_ino))


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


class _Probe:
    """Reads memory through the kernel: by writing it into an unnamed file, of which `found` is a map."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._found: NDArray[np.uint64] = np.empty(0, np.uint64)

    def read(self, ends: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The 8 bytes at each of these addresses; fewer where the next one, or the limit of files, ends it."""
        vectors = np.empty((len(ends), 2), np.uint64)
        vectors[:, 0], vectors[:, 1] = ends, TAIL
        with self._lock:
            if self._fd < 0:
                self._open()
            copied = _libc.pwritev(self._fd, vectors.ctypes.data, len(ends), 0)
            return self._found[: max(0, copied) // TAIL].copy()

    def read_one(self, end: int) -> int | None:
        """The same for one address; None if it cannot be read."""
        with self._lock:
            if self._fd < 0:
                self._open()
            if _libc.pwrite(self._fd, end, TAIL, 0) == TAIL:
                return int(self._found[0])
        number = ctypes.get_errno()
        if number != errno.EFAULT:  # the memory is not at fault, but the file it is written to: a limit of files
            raise temporary_error(OSError(number, os.strerror(number)), _PURPOSE)
        return None

    def _open(self) -> None:
        with (
            temporary_errors(_PURPOSE),
            tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else open(os.memfd_create("penstock")) as file,
        ):
            os.ftruncate(file.fileno(), _MAX_VECTORS * TAIL)
            self._found = np.frombuffer(mmap.mmap(file.fileno(), _MAX_VECTORS * TAIL), np.uint64)
            self._fd = os.dup(file.fileno())

    def reset(self) -> None:
        """In a forked process: it would share the file with its parent."""
        if self._fd >= 0:
            os.close(self._fd)
        self.__init__()  # type: ignore[misc]


_probe = _Probe()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_probe.reset)


def check_ends(
    file_of: Callable[[int], MappedFile | None], ends: NDArray[np.uint64], tails: NDArray[np.uint64]
) -> None:
    """Raises `StoreError` if one of these files has been cut. `tails` are their last bytes, at the addresses `ends`.

    `file_of(k)` returns the k-th file, for the error.
    """
    at = 0
    while at < len(ends):
        found = _probe.read(ends[at : at + _MAX_VECTORS])
        wrong = np.flatnonzero(found != tails[at : at + len(found)])
        if len(wrong):
            raise _cut(file_of(at + int(wrong[0])))
        asked = min(at + _MAX_VECTORS, len(ends))
        at += len(found)
        if at < asked:  # the next one stopped it
            if _probe.read_one(int(ends[at])) != tails[at]:
                raise _cut(file_of(at))
            at += 1


def check_size(file: MappedFile | None) -> None:
    """Raises `StoreError` if the file is now shorter than its map."""
    if file is not None and (size := _size(file)) is not None and size < len(file.array):
        raise _cut(file)


def _size(file: MappedFile) -> int | None:
    """The size of the file; None if it was deleted or moved, which does not change what is mapped."""
    try:
        facts = os.stat(file.path)
    except OSError:
        return None
    return facts.st_size if (facts.st_dev, facts.st_ino) == file.file_id else None


def _cut(file: MappedFile | None) -> StoreError:
    size = None if file is None else _size(file)
    return StoreError(
        f"a file of {0 if file is None else len(file.array)} bytes, as when it was opened",
        got="other bytes at its end" if size is None or file is None or size == len(file.array) else f"{size} bytes",
        where="" if file is None else file.path,
        fix="it was cut or written to while in use: copy it again, and do not change files under a running loader",
    )
