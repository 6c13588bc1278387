"""Atomic writes of local files, and a lock file that names the process holding it."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import BinaryIO, cast

from penstock.core.errors import DataError, UsageError
from penstock.core.os_errors import storage_errors

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


def writing(path: str) -> AbstractContextManager[None]:
    """Turns an `OSError` of the block into a `StorageError` that names the path and says what to do."""
    return storage_errors(path, "written")


def can_write(error: OSError) -> bool:
    """False if the error says that files cannot be written here at all: a read-only disk, or no permission."""
    return error.errno not in _NOT_ALLOWED


@contextmanager
def atomic_file(path: str, *, synced: bool = True) -> Iterator[BinaryIO]:
    """Opens a local file for writing that appears under its name complete and synced, or not at all.

    Writes to a temporary name in the same folder, syncs, renames, and syncs the folder. An error inside the block
    keeps the old file and removes the temporary one. A link stays, its file is replaced; a device or pipe, such as
    /dev/null, is written to. Without `synced` a power cut may leave an empty file, or none: for what can be missing.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with writing(path), open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path) or "."
    with writing(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:64]}.", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield cast(BinaryIO, file)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp creates private files; use the usual permissions
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if synced:
            sync_folder(folder)


def atomic_write(path: str, data: bytes, *, synced: bool = True) -> None:
    """Replaces the content of a local file with `data` atomically; see `atomic_file`.

    >>> path = os.path.join(tempfile.mkdtemp(), "state.json")
    >>> atomic_write(path, b"{}"); os.path.getsize(path)
    2
    """
    with atomic_file(path, synced=synced) as file:
        file.write(data)


def sync_folder(folder: str) -> None:
    """Makes renames in a folder survive a power cut, where the system can sync a folder."""
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
    """Holds the lock file `path`. If another process holds it, raises at once and names that process.

    On POSIX the system releases the lock when its process ends, also by a crash. Elsewhere the file's existence is
    the lock, and the error says how to remove a stale one.
    """
    import socket  # here: readers hold no lock

    with writing(path):
        handle = _lock_flock(path, purpose) if fcntl is not None else _lock_create(path, purpose)
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):  # a full disk: the lock holds without a name in it
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
            # The former holder may have deleted the file between our open and our lock: then our lock is void.
            if _is_open_file(handle, path):
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
            raise _locked(path, purpose, "wait for it to finish, or stop it") from error


def _is_open_file(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _lock_create(path: str, purpose: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise _locked(path, purpose, f"wait for it to finish; if that process is gone, delete {path}") from error


def _locked(path: str, purpose: str, fix: str) -> UsageError:
    try:
        with open(path, "rb") as file:
            holder = file.read(300).decode("utf-8", "replace").strip().replace("\n", " ")
    except OSError:
        holder = ""
    return UsageError(
        f"no other process to be {purpose} here", got=f"locked by {holder or 'another process'}", where=path, fix=fix
    )
