"""Records of many plain local files without opening a file for each: maps that hold no descriptor.

Opening a file for each record of a shuffled batch costs five times what reading the record does, and keeping thousands
open is more than a process may. So each file is mapped when it is read for the second time, up to the system's limit on
maps. That a file is what it was is looked at before each read by its last bytes, one call for all files, and at most
once in four seconds by the size and time of each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, StoreError
from penstock.core.mapped import MappedFile, check_ends, map_file, maps_left
from penstock.core.mapped_copy import available, copy_ranges
from penstock.sources.cutting import Ints
from penstock.storage import filesystem
from penstock.store.arrays import distinct

_NEVER, _ONCE, _NOT = 0, 1, -1  # a file was not read yet, was read once, cannot be mapped
FEWEST = 17  # files; of fewer each is opened for each batch, which is cheap there
LOOK_SECONDS = 4.0


class MappedLines:
    """Maps of the files of `paths` that are read."""

    def __init__(self, paths: Sequence[str], stamps: Sequence[filesystem.Stamp]) -> None:
        self._paths, self._stamps = paths, stamps
        self._maps: dict[int, MappedFile] = {}
        self._first = np.zeros(len(paths), np.int64)  # addresses of first bytes, or one of the codes above
        self._ends, self._tails = np.zeros((2, len(paths)), np.uint64)
        self._looked = np.zeros(len(paths))
        self._lock = threading.Lock()

    def held(self, files: Ints) -> NDArray[np.bool_]:
        """Which of the files are mapped: those that were asked for before, as far as they can be."""
        first = self._first[files]
        new = first == _NEVER
        if (first == _ONCE).any():
            with self._lock:
                for file in distinct(files[first == _ONCE]).tolist():
                    if self._first[file] == _ONCE:
                        self._map(file)
            first = self._first[files]
        if new.any():
            with self._lock:  # another thread may have mapped them meanwhile
                some = files[new]
                self._first[some[self._first[some] == _NEVER]] = _ONCE
        return first > _ONCE

    def read(self, files: Ints, starts: Ints, stops: Ints) -> list[bytes]:
        """Bytes [start, stop) of each of these files, which are held."""
        now = time.monotonic()
        old = self._looked[files] < now - LOOK_SECONDS
        for file in distinct(files[old]).tolist() if old.any() else ():
            self._check(file)
            self._looked[file] = now
        try:
            check_ends(lambda k: self._maps[int(files[k])], self._ends[files], self._tails[files])
            found = copy_ranges(self._first[files] + starts, stops - starts)
        except StoreError:
            found = None
        if found is None:
            for file in distinct(files).tolist():
                self._check(file)
            raise DataError(
                "the files as they were when they were opened", got="other bytes at the end of one",
                where=", ".join(self._paths[file] for file in distinct(files).tolist()[:3]),
                fix="make the source again, and let nothing write to its files",
            )  # fmt: skip
        return found

    def _check(self, file: int) -> None:
        with suppress(OSError):
            found = os.stat(filesystem.local(self._paths[file]))
            if filesystem.Stamp(found.st_size, str(found.st_mtime_ns)) == self._stamps[file]:
                return
        filesystem.check_unchanged(self._paths[file], self._stamps[file])  # raises

    def _map(self, file: int) -> None:
        path, stamp = self._paths[file], self._stamps[file]
        self._first[file] = _NOT
        if filesystem.scheme(path) or maps_left() < 1 or not available():
            return
        with filesystem.open_read(path) as opened:
            found = filesystem.check_regular(path, opened.fileno())
            filesystem.check_unchanged(path, stamp, now=filesystem.Stamp(found.st_size, str(found.st_mtime_ns)))
            try:
                mapped = map_file(path, opened.fileno())
            except StoreError:  # a limit on memory or maps
                return
        if mapped.tail:
            self._maps[file] = mapped
            self._ends[file], self._tails[file] = mapped.end, mapped.tail
            self._looked[file] = time.monotonic()
            self._first[file] = mapped.array.__array_interface__["data"][0]
