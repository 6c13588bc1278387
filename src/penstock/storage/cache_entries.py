"""What leaves a cache and when: least recently used first, never what a living process holds.

Beside each entry `KEY` stands `KEY.used`: its time is the last use, and readers hold a shared lock on it. Removal is a
rename first, so that no process opens half an entry, then a delete. Where the system has no such locks, entries in
use are protected by their open files alone; a reader that loses its store makes it again.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.core import local_files
from penstock.core.errors import UsageError
from penstock.core.sizes import size_in_environment

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PURPOSE = "preparing a token store"  # the purpose that `prepare` passes to its lock
DEFAULT_LIMIT = 256 << 30
_count = itertools.count()

Mark = tuple[int, int] | None


def limit_of(limit: int | None) -> int:
    """The size limit in bytes: the argument, else from the environment, else the default.

    >>> limit_of(10)
    10
    """
    if limit is not None:
        return limit
    said = size_in_environment("PENSTOCK_CACHE_LIMIT")
    return DEFAULT_LIMIT if said is None else said


class Use:
    """Marks an entry as in use until `release` is called or this object is deleted, and as the most recently used.

    In a read-only cache there is nothing to mark: nobody can remove an entry there.
    """

    def __init__(self, root: Path, key: str) -> None:
        with local_files.writing(str(root)):
            try:
                root.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(root / f"{key}.used", os.O_RDWR | os.O_CREAT, 0o644)
                os.utime(self._handle if os.utime in os.supports_fd else root / f"{key}.used")
            except OSError as error:
                if local_files.can_write(error) or not (root / key).exists():
                    raise
            if fcntl is not None and hasattr(self, "_handle"):
                fcntl.flock(self._handle, fcntl.LOCK_SH)

    def release(self, close: Callable[[int], None] = os.close) -> None:
        """Ends the use. May be called more than once, and while the interpreter ends."""
        if (handle := self.__dict__.pop("_handle", None)) is not None:
            close(handle)

    __del__ = release


def mark(path: Path) -> Mark:
    """Identifies one version of a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def discard(folder: Path, seen: Mark) -> None:
    """Removes a damaged entry, unless another process has replaced it since it was seen."""
    if mark(folder / "manifest.json") == seen:
        _remove(folder)


def _remove(folder: Path) -> None:
    gone = folder.with_name(f".gone-{folder.name}-{os.getpid()}-{next(_count)}")
    with local_files.writing(str(folder)), suppress(FileNotFoundError):  # another process removed it first
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(root: Path, limit: int) -> list[str]:
    """Removes entries until the rest fits `limit`; returns the keys of those removed."""
    for left in root.glob(".gone-*"):  # a removal that was killed
        if time.time() - left.stat().st_mtime > 60:
            shutil.rmtree(left, ignore_errors=True)
    entries = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    sizes = {p: sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in entries}
    total = sum(sizes.values())
    removed: list[str] = []
    for entry in sorted(entries, key=_last_use):
        if total <= limit:
            break
        if _evict(root, entry):
            total -= sizes[entry]
            removed.append(entry.name)
    if removed:
        warnings.warn(
            f"penstock: {len(removed)} least recently used stores left the cache {root}, limited to {limit:,} bytes",
            ResourceWarning,
            stacklevel=2,
        )
    return removed


def _last_use(entry: Path) -> float:
    used = entry.with_name(f"{entry.name}.used")
    return used.stat().st_mtime if used.exists() else entry.stat().st_mtime


def _evict(root: Path, entry: Path) -> bool:
    """Removes an entry that no process reads or prepares."""
    used = root / f"{entry.name}.used"
    handle = os.open(used, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with local_files.lock(str(entry / ".lock"), PURPOSE + ": making room in the cache"):
            _remove(entry)
        return True  # the file stays: another process may wait for its lock
    except (BlockingIOError, UsageError):
        return False
    finally:
        os.close(handle)
