"""Byte ranges that were requested before a reader asks for them, kept in memory until it does.

`claim` is called by threads that know the order of a run, `take` by readers. A range that is on its way is waited for;
one that could not be read is left to the reader, which meets the error with the record that needs it. What belongs to
steps that are over is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.core.errors import PenstockError

Key = tuple[int, int, int]  # file, start, stop


@dataclass(slots=True)
class _Held:
    """One range for the readers of these steps; None while it is on its way."""

    steps: list[int]
    data: bytes | None = None


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
        self._keys: dict[int, list[Key]] = {}  # that were claimed for each step, also if they are no longer held
        self._changed = threading.Condition()
        self.size = 0  # bytes held

    def __reduce__(self) -> tuple[type[RangesAhead], tuple[()]]:
        return RangesAhead, ()

    def claim(self, keys: Sequence[Key], step: int, read: Callable[[list[Key]], list[bytes]]) -> Callable[[], int]:
        """Readers of `step` wait for these ranges from now on; the result reads those that are not held."""
        mine: list[Key] = []
        with self._changed:
            held = self._held
            for key in keys:
                found = held.get(key)
                if found is None:
                    held[key] = _Held([step])
                    mine.append(key)
                else:
                    found.steps.append(step)
            self._keys.setdefault(step, []).extend(keys)
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
            held = self._held
            out: list[bytes | None] = []
            for key in keys:
                found = held.get(key)
                while found is not None and found.data is None:
                    self._changed.wait()
                    found = held.get(key)
                if found is None:
                    out.append(None)
                    continue
                out.append(found.data)
                self._ended(key, found, found.steps[0])
            return out

    def _ended(self, key: Key, found: _Held, step: int) -> None:
        """No reader of this step will take the range any more."""
        found.steps.remove(step)
        if not found.steps:
            del self._held[key]
            self.size -= len(found.data or b"")

    def forget(self, step: int | None = None) -> None:
        """Drops what readers of steps before `step` have not taken; None: of all steps."""
        with self._changed:
            for over in [each for each in self._keys if step is None or each < step]:
                coming = []
                for key in self._keys.pop(over):
                    found = self._held.get(key)
                    if found is not None and found.data is None:
                        coming.append(key)
                    elif found is not None and over in found.steps:
                        self._ended(key, found, over)
                if coming:
                    self._keys[over] = coming


def nothing() -> int:
    """Fetches nothing."""
    return 0
