"""What the page cache of this process did: pages found and fetched, evicted, and the time that readers waited."""

from __future__ import annotations

import threading

NAMES = ("pages_found", "pages_missed", "pages_fetched", "pages_evicted", "pages_refetched", "wait_seconds")


class PageCounters:
    """Sums that threads add to. `since(before)` is what was added after `before = snapshot()`.

    >>> counters = PageCounters()
    >>> before = counters.snapshot()
    >>> counters.add("pages_found", 2)
    >>> counters.since(before)["pages_found"]
    2
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = dict.fromkeys(NAMES, 0)

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._sums[name] += amount

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            return dict(self._sums)

    def since(self, before: dict[str, float]) -> dict[str, float]:
        return {name: value - before.get(name, 0) for name, value in self.snapshot().items()}


PAGES = PageCounters()
