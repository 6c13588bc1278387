"""Counts what object storage costs this process: requests, bytes, retries, hedged requests, waiting.

Process-wide, one set of counters for each scheme; threads may add at any time. Child processes count their own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass
class Counters:
    """What was asked of one kind of storage.

    `retries` are requests after a failed one, `hedges` second requests beside a slow one; both are part of `requests`.
    `wait_seconds` is the time that callers waited for answers.
    """

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    failures: int = 0
    wait_seconds: float = 0.0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


_counters: dict[str, Counters] = {}
_lock = threading.Lock()


def add(scheme: str, more: Counters) -> None:
    """Adds to the counters of a scheme."""
    with _lock:
        _counters[scheme] = _counters.get(scheme, Counters()) + more


def counters() -> dict[str, Counters]:
    """Returns the counters of each scheme that was used, since the process started.

    >>> before = counters()
    >>> add("s3", Counters(requests=2, bytes=100))
    >>> since(before)["s3"].requests
    2
    """
    with _lock:
        return {scheme: found + Counters() for scheme, found in _counters.items()}


def since(before: dict[str, Counters]) -> dict[str, Counters]:
    """Returns what was counted after `before`, which `counters` returned."""
    return {scheme: found - before.get(scheme, Counters()) for scheme, found in counters().items()}
