"""What leaves a cache and when: least recently used first, never what a living process holds.

Beside each entry `KEY` stands `KEY.used`: its time is the last use, and readers hold a shared lock on it. Removal is a
rename first, so that no process opens half an entry, then a delete. Where the system has no such locks, entries in
use are protected by their open files alone; a reader that loses its store makes it again.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
import warnings
from contextlib import suppress
from pathlib import Path

from penstock.core import local_files
from penstock.core.errors import UsageError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PURPOSE = "preparing a token store"  # the purpose that `prepare` passes to its lock
DEFAULT_LIMIT = 256 << 30
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_count = itertools.count()

Mark = tuple[int, int] | None


def limit_of(given: int | None) -> int:
    """The size limit in bytes: the argument, else from the environment, else the default.

    >>> limit_of(10)
    10
    """
    if given is not None:
        return given
    text = os.environ.get("PENSTOCK_CACHE_LIMIT", "").strip()
    if not text:
        return DEFAULT_LIMIT
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.upper())
    if found is None:
        raise UsageError("a size such as 50GB in PENSTOCK_CACHE_LIMIT", got=repr(text), fix="export it as 50GB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


class Use:
    """Marks an entry as in use until this object is deleted, and as the most recently used.

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

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


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
