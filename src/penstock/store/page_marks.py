"""Which pages of a store are verified: one flag for each page of the shards that were opened so far.

All flags are in one array, so that a batch over many shards is checked in one lookup. Memory grows with the shards that
are used, not with the store.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

_FIRST_PAGES = 4096


class PageMarks:
    """Flags of the pages of `parts` shards, all False at first.

    >>> marks = PageMarks(1_000_000)
    >>> marks.add(7, pages=3, file=1); marks.add(123_456, pages=5000, file=2)
    >>> marks.set(123_456, 4999)
    >>> marks.of(7).tolist(), int(marks.of(123_456).sum()), bool(marks.flags[marks.first[123_456] + 4999])
    ([False, False, False], 1, True)
    """

    def __init__(self, parts: int) -> None:
        self.first = np.zeros(parts, np.int64)  # the place of a shard's first flag; untouched zeros cost no memory
        self.flags = np.zeros(_FIRST_PAGES, bool)  # replaced by a larger array when it is full
        self._files = np.zeros(parts, np.int64)
        self._pages: dict[int, int] = {}
        self._used = 0
        self._lock = threading.Lock()

    def add(self, part: int, pages: int, file: int) -> None:
        """Makes room for the flags of a shard; one that was here before keeps its marks if the file is the same."""
        with self._lock:
            if self._pages.get(part) == pages:
                if self._files[part] != file:
                    self._files[part] = file
                    self.of(part)[:] = False
                return
            self._files[part] = file
            stop = self._used + pages
            if stop > len(self.flags):
                grown = np.zeros(max(stop, 2 * len(self.flags)), bool)
                grown[: self._used] = self.flags[: self._used]
                self.flags = grown
            self.first[part] = self._used
            self._used, self._pages[part] = stop, pages

    def of(self, part: int) -> NDArray[np.bool_]:
        """Returns the flags of a shard, to read: the array may be replaced by a larger one."""
        first = int(self.first[part])
        return self.flags[first : first + self._pages[part]]

    def set(self, part: int, page: int) -> None:
        """Marks a page as verified."""
        with self._lock:
            self.flags[int(self.first[part]) + page] = True
