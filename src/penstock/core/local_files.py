"""Local files that appear complete or not at all, and a lock file that names its holder."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import BinaryIO, cast

from penstock.core.errors import DataError, UsageError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def atomic_file(path: str) -> Iterator[BinaryIO]:
    """A local file that appears under its name complete and on disk, or not at all.

    Written under a temporary name in the same folder, synced, renamed, folder synced. An error inside leaves the old
    file as it was and no rest behind.
    """
    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:64]}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files; data is shared like any other file
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def atomic_write(path: str, data: bytes) -> None:
    """Replaces a local file by `data` at one moment; see `atomic_file`.

    >>> path = os.path.join(tempfile.mkdtemp(), "state.json")
    >>> atomic_write(path, b"{}"); os.path.getsize(path)
    2
    """
    with atomic_file(path) as file:
        file.write(data)


def sync_folder(folder: str) -> None:
    """Makes renames in a folder survive a power cut, where the system allows to sync a folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextmanager
def lock(path: str, purpose: str = "writing") -> Iterator[None]:
    """Holds the lock file `path`; refused at once, naming the holder, when someone else has it.

    On POSIX the system drops the lock when its process dies, however it dies. Elsewhere the file's existence is the
    lock, and the message says how to clear one that was left behind.
    """
    handle = _lock_flock(path, purpose) if fcntl is not None else _lock_create(path, purpose)
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}, {purpose}\n".encode())
        yield
    finally:
        if fcntl is None:
            os.close(handle)  # an open file cannot be removed there
        with suppress(FileNotFoundError):
            os.unlink(path)
        if fcntl is not None:
            os.close(handle)


def _lock_flock(path: str, purpose: str) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former holder may have removed the name between our open and our lock: then we hold nothing.
            if _same(handle, path):
                return handle
            os.close(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise DataError(
                    "a lock file that can be locked",
                    got=str(error.strerror),
                    where=path,
                    fix="check its permissions, and that its filesystem supports locks",
                ) from error
            raise _held(path, purpose, "wait for it to finish, or stop it") from error


def _same(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _lock_create(path: str, purpose: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise _held(path, purpose, f"wait for it to finish; if that process is gone, delete {path}") from error


def _held(path: str, purpose: str, fix: str) -> UsageError:
    try:
        with open(path, "rb") as file:
            holder = file.read(300).decode("utf-8", "replace").strip().replace("\n", " ")
    except OSError:
        holder = ""
    return UsageError(f"to be alone while {purpose}", got=f"held by {holder or 'another process'}", where=path, fix=fix)
