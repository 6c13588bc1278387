"""Byte ranges that were requested before a reader asks for them, kept in memory until it does.

`claim` is called by threads that know the order of a run, `take` by readers. A range that is on its way is waited for;
one that could not be read is left to the reader, which meets the error with the record that needs it. What belongs to
steps that are over is dropped. Ranges are rows of arrays, looked up many in a call: a range costs about 1 us.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import PenstockError
from penstock.core.waits import Condition

I64 = NDArray[np.int64]
Ranges = NDArray[np.int64]
"""A row for each range: file, start, stop."""

_START_BITS = 44  # ranges are ordered by one number; two that share it are compared in full, or read by the reader


class _Held:
    """Distinct ranges that were claimed in one call, and their bytes once they are there."""

    def __init__(self, ranges: Ranges, readers: I64) -> None:
        self.ranges, self.readers = ranges, readers  # how many readers want each
        self.gone = np.zeros(len(ranges), np.int64)  # how many of these have it, or will not come
        self.data: list[bytes | None] | None = None  # None while they are on their way
        self.failed = False
        self.left = len(ranges)  # that a reader still wants
        self._order = _order(ranges)

    @property
    def coming(self) -> bool:
        return self.data is None and not self.failed

    def find(self, ranges: Ranges) -> tuple[NDArray[np.bool_], I64]:
        """Which of these ranges are here for a further reader, and the places of those."""
        at = np.minimum(np.searchsorted(self._order, _order(ranges)), len(self.ranges) - 1)
        here = (self.ranges[at] == ranges).all(axis=1) & (self.gone[at] < self.readers[at])
        return here, at[here]


class RangesAhead:
    """The ranges of one source. Safe for many threads; another process has its own, empty.

    >>> ranges = RangesAhead()
    >>> ranges.claim(np.array([[0, 5, 8]]), 3, lambda wanted: [b"abc" for _ in wanted])()
    3
    >>> ranges.take(np.array([[0, 5, 8], [0, 8, 9]])), ranges.size
    ([b'abc', None], 0)
    """

    def __init__(self) -> None:
        self._held: list[_Held] = []
        # For each claim its step, the ranges it wants, and how many readers want each up to this one.
        self._claims: list[tuple[int, list[tuple[_Held, I64, I64]]]] = []
        self._changed = Condition()
        self.size = 0  # bytes held

    def __reduce__(self) -> tuple[type[RangesAhead], tuple[()]]:
        return RangesAhead, ()

    def claim(self, ranges: Ranges, step: int, read: Callable[[Ranges], list[bytes]]) -> Callable[[], int]:
        """Readers of `step` wait for these ranges from now on; the result reads those that are not held."""
        if not len(ranges):
            return nothing
        ranges, readers = _distinct(ranges)
        uses = []
        with self._changed.lock:
            for held in self._held:
                here, at = held.find(ranges)
                if len(at):
                    held.readers[at] += readers[here]
                    uses.append((held, at, held.readers[at]))
                    ranges, readers = ranges[~here], readers[~here]
            mine = _Held(ranges, readers)
            if len(ranges):
                self._held.append(mine)
                uses.append((mine, np.arange(len(ranges)), readers.copy()))
            self._claims.append((step, uses))
        return lambda: self._fetch(mine, read)

    def _fetch(self, mine: _Held, read: Callable[[Ranges], list[bytes]]) -> int:
        found: list[bytes] | None = None
        try:
            with suppress(PenstockError):  # the reader meets the same error
                found = read(mine.ranges) if len(mine.ranges) else []
        finally:
            with self._changed.lock:
                if found is None:
                    mine.failed = True
                    self._held.remove(mine)
                else:
                    mine.data = list(found)
                    self.size += sum(map(len, found))
                self._changed.notify_all()
        return sum(map(len, found)) if found else 0

    def take(self, ranges: Ranges) -> list[bytes | None]:
        """The bytes of those ranges that were fetched ahead; None for the others."""
        out: list[bytes | None] = [None] * len(ranges)
        left = np.arange(len(ranges))
        with self._changed.lock:
            for held in tuple(self._held):
                while len(left):
                    here, at = held.find(ranges[left])
                    if not len(at):
                        break
                    if held.coming:
                        self._changed.wait()  # others may take them meanwhile: look again
                        continue
                    if held.data is None:
                        break
                    at, firsts = np.unique(at, return_index=True)  # a range that is asked for twice has two readers
                    places = np.flatnonzero(here)[firsts]
                    for row, place in zip(left[places].tolist(), at.tolist(), strict=True):
                        out[row] = held.data[place]
                    held.gone[at] += 1
                    self._drop(held, at)
                    left = np.delete(left, places)
        return out

    def _drop(self, held: _Held, places: I64) -> None:
        """Drops those of these ranges that no reader will take any more."""
        data = held.data
        if data is None:
            return
        for place in places[held.gone[places] >= held.readers[places]].tolist():
            content = data[place]
            if content is not None:
                self.size -= len(content)
                data[place] = None
                held.left -= 1
        if not held.left and held in self._held:
            self._held.remove(held)

    def forget(self, step: int | None = None) -> None:
        """Drops what readers of steps before `step` have not taken; None: of all steps."""
        with self._changed.lock:
            kept = []
            for each in self._claims:
                over, uses = each
                if (step is not None and over >= step) or any(held.coming for held, _, _ in uses):
                    kept.append(each)
                    continue
                for held, places, readers in uses:
                    held.gone[places] = np.maximum(held.gone[places], readers)
                    self._drop(held, places)
            self._claims = kept


def _order(ranges: Ranges) -> I64:
    order: I64 = (ranges[:, 0] << _START_BITS) + ranges[:, 1]
    return order


def _distinct(ranges: Ranges) -> tuple[Ranges, I64]:
    """These ranges, each once and sorted, and how often each was there."""
    found = ranges[np.lexsort((ranges[:, 2], _order(ranges)))]
    firsts = np.flatnonzero(np.append(True, (found[1:] != found[:-1]).any(axis=1)))
    return found[firsts], np.diff(np.append(firsts, len(found)))


def nothing() -> int:
    """Fetches nothing."""
    return 0
