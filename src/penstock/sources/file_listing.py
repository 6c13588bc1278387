"""The files below a folder, sorted by relative path, and how many bytes each has.

Listing costs little more than walking the folder: names are sorted folder by folder, which is the order of full paths
as long as a folder counts with its "/". Sizes cost a `stat` each (2 us and more); for many files a thread gathers them
from a second after the listing on, a few at a time, so that the first checkpoint does not wait for them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.os_errors import storage_error
from penstock.core.signals import NoMoreThreads, start_thread
from penstock.sources.names import Names

MANY = 50_000  # files, from which their sizes are gathered in the background
WAIT_SECONDS, PAUSE_SECONDS, TOGETHER = 1.0, 0.001, 256

I64 = NDArray[np.int64]


Run = tuple[str, list[str]]  # files of one folder: its relative path with a "/", and their names


def list_files(root: str, suffixes: tuple[str, ...]) -> list[Run]:
    """Regular files that end in `suffixes`, folder by folder in the order of their paths.

    Links to files count, links to folders do not; hidden names are skipped.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for folder in ("a", "a-b"): (root / folder).mkdir()
    >>> for name in ("a/1.JPG", "a-b/2.jpg", "3.jpg", "4.txt", "a/.5.jpg"): (root / name).touch()
    >>> list_files(str(root), (".jpg",))
    [('', ['3.jpg']), ('a-b/', ['2.jpg']), ('a/', ['1.JPG'])]
    """
    out: list[Run] = []
    pending = [""]  # folders, and files between them, last first
    while pending:
        below = pending.pop()
        if below and not below.endswith("/"):
            folder, slash, name = below.rpartition("/")
            out.append((folder + slash, [name]))
            continue
        try:
            with os.scandir(os.path.join(root, below)) as entries:
                files, folders = _entries(list(entries), suffixes)
        except OSError as error:
            raise storage_error(error, os.path.join(root, below), "listed") from error
        if folders:
            pending += sorted([below + name for name in (*files, *folders)], reverse=True)
        elif files:
            files.sort()
            out.append((below, files))
    return out


def _entries(entries: list[os.DirEntry[str]], suffixes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    files = [entry.name for entry in entries if entry.is_file()]
    folders: list[str] = []
    if len(files) < len(entries):
        others = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
        folders = [f"{entry.name}/" for entry in others if entry.name[0] != "."]
    text = "\0".join(["", *files, ""])
    if "\0." in text or not any(text.count(f"{suffix}\0") == len(files) for suffix in suffixes):
        files = [name for name in files if name[0] != "." and name.lower().endswith(suffixes)]
    return files, folders


class FileSizes:
    """The sizes of many files, each asked for once. Nothing is locked: two that ask for the same find the same."""

    def __init__(self, root: str, names: Names) -> None:
        self._root, self._names = root, names
        self._sizes: I64 = np.full(len(names), -1, np.int64)
        if len(names) >= MANY:
            thread = threading.Thread(target=_gather, args=(weakref.ref(self),), name="penstock-sizes", daemon=True)
            with suppress(NoMoreThreads):  # whoever needs the sizes asks for them
                start_thread(thread)

    def all(self) -> I64:
        """Bytes of every file; raises `OSError` where the system cannot say."""
        for first in range(0, len(self._sizes), TOGETHER):
            self.ask(first)
        return self._sizes

    def ask(self, first: int) -> bool:
        """Asks for some files from `first` on; False if they were known."""
        part = self._sizes[first : first + TOGETHER]
        if part.min(initial=0) >= 0:
            return False
        prefix, blob, stat = os.fsencode(os.path.join(self._root, "")), self._names.blob, os.stat
        edges = self._names.offsets[first : first + len(part) + 1].tolist()
        try:
            for i in np.flatnonzero(part < 0).tolist():
                part[i] = stat(prefix + blob[edges[i] : edges[i + 1]]).st_size
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fsdecode(error.filename)) from error
        return True

    def __len__(self) -> int:
        return len(self._sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_names": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _sizes=np.full(len(state["_names"]), -1, np.int64))


def _gather(reference: weakref.ref[FileSizes]) -> None:
    """Asks for all sizes as long as somebody holds them; an error is left to who needs them."""
    time.sleep(WAIT_SECONDS)
    first = 0
    while (sizes := reference()) is not None and first < len(sizes):
        try:
            asked = sizes.ask(first)
        except OSError:
            return
        first += TOGETHER
        del sizes
        if asked:
            time.sleep(PAUSE_SECONDS)
