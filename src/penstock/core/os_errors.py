"""Turns an OSError of the system into a StorageError that names the path and says what to do."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import FileMissing, PenstockError, StorageError
from penstock.core.signals import surface

_FULL = "free some space (or raise the quota, or ulimit -f) and run it again, or choose another disk"
_FIX = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: "the folder is read-only: choose one that this user can write to",
    errno.EACCES: "check the permissions of the path and of the folders above it",
    errno.EPERM: "check the permissions of the path and of the folders above it",
    errno.EMFILE: "this process has too many open files: raise the limit (ulimit -n) or close some",
    errno.ENFILE: "this machine has too many open files: raise the limit (fs.file-max) or close some",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ENOMEM: "free some memory, or raise the limit of this process (ulimit -v) or of its container",
    errno.EIO: "the disk or its connection failed: check it, then run again",
    errno.ESTALE: "the network file system lost the file: mount it again",
}


def storage_error(error: OSError, path: str | os.PathLike[str], doing: str = "read") -> StorageError:
    """Returns the StorageError of `error` at `path`; `doing` is "read" or "written", or another participle.

    An exception of a signal handler is raised instead: it is no trouble of the storage.

    >>> print(storage_error(OSError(28, "No space left on device"), "/data/out", "written"))
    expected a file that can be written
      got:   No space left on device
      where: /data/out
      fix:   free some space (or raise the quota, or ulimit -f) and run it again, or choose another disk
    """
    surface(error)
    where = os.fspath(path)
    if isinstance(error, FileNotFoundError):
        fix = "was it moved or deleted? pass its new path"
        return FileMissing(
            f"a file that can be {doing}", got="it does not exist", where=where, fix=fix, errno=error.errno
        )
    reason = error.strerror or f"{type(error).__name__}: {error}"
    fix = _FIX.get(error.errno or 0, "check the path, its permissions and its storage")
    return StorageError(f"a file that can be {doing}", got=reason, where=where, fix=fix, errno=error.errno)


@contextmanager
def storage_errors(path: str | os.PathLike[str], doing: str = "read") -> Iterator[None]:
    """Raises a StorageError naming `path` in place of any OSError of the block; PenstockErrors pass."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise storage_error(error, error.filename if isinstance(error.filename, str) else path, doing) from error


@contextmanager
def temporary_errors(what: str) -> Iterator[None]:
    """The same for a file without a name, on disk (TMPDIR) or in memory; `what` says what it holds."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise temporary_error(error, what) from error


def temporary_error(error: OSError, what: str) -> StorageError:
    """Returns the StorageError of a file without a name.

    >>> temporary_error(OSError(24, "Too many open files"), "texts").expected
    'a temporary file for texts'
    """
    surface(error)
    if isinstance(error, FileNotFoundError):  # of `tempfile`, which found no folder at all
        where, fix = "TMPDIR, /tmp, /var/tmp", "set TMPDIR to a folder that this user can write to"
    else:
        where = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        fix = _FIX.get(error.errno or 0, "check the folder of temporary files")
        fix = fix.replace("choose another disk", "set TMPDIR to another disk")
    got = error.strerror or f"{type(error).__name__}: {error}"
    return StorageError(f"a temporary file for {what}", got=got, where=where, fix=fix, errno=error.errno)
