"""Byte ranges that were requested before a reader asks for them, kept in memory until it does.

`claim` is called by threads that know the order of a run, `take` by readers. A range that is on its way is waited for;
one that could not be read is left to the reader, which meets the error with the record that needs it. What belongs to
steps that are over is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.core.errors import PenstockError

Key = tuple[int, int, int]  # file, start, stop


@dataclass(slots=True)
class _Held:
    """One range for the readers of these steps; None while it is on its way."""

    data: bytes | None = None
    steps: list[int] = field(default_factory=list)


class RangesAhead:
    """The ranges of one source. Safe for many threads; another process has its own, empty.

    >>> ranges = RangesAhead()
    >>> ranges.claim([(0, 5, 8)], 3, lambda keys: [b"abc" for _ in keys])()
    3
    >>> ranges.take([(0, 5, 8), (0, 8, 9)]), ranges.size
    ([b'abc', None], 0)
    """

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}
        self._changed = threading.Condition()
        self.size = 0  # bytes held

    def __reduce__(self) -> tuple[type[RangesAhead], tuple[()]]:
        return RangesAhead, ()

    def claim(self, keys: Sequence[Key], step: int, read: Callable[[list[Key]], list[bytes]]) -> Callable[[], int]:
        """Readers of `step` wait for these ranges from now on; the result reads those that are not held."""
        mine: list[Key] = []
        with self._changed:
            for key in keys:
                if key not in self._held:
                    self._held[key] = _Held()
                    mine.append(key)
                self._held[key].steps.append(step)
        return lambda: self._fetch(mine, read)

    def _fetch(self, mine: list[Key], read: Callable[[list[Key]], list[bytes]]) -> int:
        found: list[bytes] = []
        try:
            with suppress(PenstockError):  # the reader meets the same error
                found = read(mine)
        finally:
            with self._changed:
                for key, data in zip(mine, found, strict=False):
                    self._held[key].data = data
                    self.size += len(data)
                for key in mine[len(found) :]:
                    del self._held[key]
                self._changed.notify_all()
        return sum(map(len, found))

    def take(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The bytes of those ranges that were fetched ahead; None for the others."""
        with self._changed:
            if not self._held:
                return [None] * len(keys)
            return [self._take(key) for key in keys]

    def _take(self, key: Key) -> bytes | None:
        while (held := self._held.get(key)) is not None and held.data is None:
            self._changed.wait()
        if held is None:
            return None
        held.steps.pop(0)
        if not held.steps:
            self._drop(key)
        return held.data

    def _drop(self, key: Key) -> None:
        held = self._held.pop(key)
        self.size -= len(held.data or b"")

    def forget(self, step: int | None = None) -> None:
        """Drops what readers of steps before `step` have not taken; None: of all steps."""
        with self._changed:
            for key, held in list(self._held.items()):
                if held.data is not None:
                    held.steps = [] if step is None else [each for each in held.steps if each >= step]
                    if not held.steps:
                        self._drop(key)


def nothing() -> int:
    """Fetches nothing."""
    return 0
