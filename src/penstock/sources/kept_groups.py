"""Decoded row groups that are kept for a while, bounded in bytes, and the damage of those that cannot be decoded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

from penstock.sources.line_errors import bare
from penstock.sources.parquet_damage import DamagedGroup

GROUPS = 256  # a shuffle by lanes reads from many at a time
BYTES = 512 << 20
_TURNS = 8


class KeptGroups:
    """The row groups that were used last. Two threads never decode the same one at once: see `turns`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_TURNS)]
        self._tables: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # with their bytes
        self._bad: dict[int, DamagedGroup] = {}
        self._bytes = 0
        self.decoded = 0  # rows, so far

    def turns(self, groups: list[int]) -> ExitStack | threading.Lock:
        """Held while some groups are looked up and decoded.

        For one group it is the lock itself: a signal cannot come between taking and holding it, as it can in a stack.
        """
        if len(groups) == 1:
            return self._turns[groups[0] % _TURNS]
        stack = ExitStack()
        for turn in sorted({group % _TURNS for group in groups}):
            stack.enter_context(self._turns[turn])
        return stack

    def get(self, group: int) -> Any:
        """A table, a `DamagedGroup`, or None."""
        with self._lock:
            if group not in self._tables:
                return self._bad.get(group)
            self._tables.move_to_end(group)
            return self._tables[group][0]

    def keep(self, group: int, table: Any) -> Any:
        """Keeps a table that was just decoded; those used longest ago go."""
        with self._lock:
            self.decoded += table.num_rows
            self._bytes -= self._tables.pop(group, (None, 0))[1]
            self._tables[group] = (table, table.nbytes)
            self._bytes += table.nbytes
            while len(self._tables) > 1 and (len(self._tables) > GROUPS or self._bytes > BYTES):
                self._bytes -= self._tables.popitem(last=False)[1][1]
        return table

    def remember(self, group: int, error: DamagedGroup) -> DamagedGroup:
        """Keeps the damage of a group."""
        with self._lock:
            return self._bad.setdefault(group, bare(error))

    def clear(self) -> None:
        """Frees the tables."""
        with self._lock:
            self._tables.clear()
            self._bytes = 0
