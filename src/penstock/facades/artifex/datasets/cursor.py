"""The position in an endless sequence of shuffled epochs. No permutation is stored; any thread may take records."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.passes import in_windows
from penstock.order.shuffle import permute


class Cursor:
    """The position in an endless sequence of shuffled epochs.

    >>> cursor = Cursor(key=1)
    >>> sorted(cursor.take(3, size=5).tolist() + cursor.take(2, size=5).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.position = 0
        self._lock = threading.Lock()

    def take(self, count: int, size: int) -> NDArray[np.int64]:
        """Returns the next `count` records of `size`; they may cross from one epoch to the next."""
        turn, place = self._advance(count, size)
        return permute(place, size, randomness.keys(self.key, turn))

    def take_turns(self, count: int, size: int, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same with the epoch of each record, shuffled within windows; see `datasets.passes`."""
        turn, place = self._advance(count, size)
        rows = np.empty_like(place)
        for one in np.unique(turn).tolist():
            key = int(randomness.keys(self.key, np.array([one]))[0])
            rows[turn == one] = in_windows(place[turn == one], size, window, key)
        return turn, rows

    def _advance(self, count: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise UsageError("a batch size of at least 1", got=repr(count), fix="get_batch(32)")
        if size < 1:
            raise UsageError(
                "a dataset with at least one record", got="an empty one", fix="pass a dataset with records"
            )
        with self._lock:
            start = self.position
            self.position += int(count)
        turn, place = np.divmod(np.arange(start, start + int(count)), size)
        return turn, place

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "position": self.position}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
