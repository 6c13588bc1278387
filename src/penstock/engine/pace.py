"""Whether batches cost enough to be worth threads.

Wall time alone cannot tell: on a busy machine a cheap batch looks slow because somebody else had the core, and threads
would make that worse. So when batches look slow, a few are watched more closely: processor time of this thread, and
whether it had to wait for storage.
"""

from __future__ import annotations

import time

try:
    import resource

    _WHO = getattr(resource, "RUSAGE_THREAD", None)
except ImportError:  # not on Windows
    _WHO = None

WORTH_A_THREAD = 300e-6  # seconds a batch; handing one over costs about a tenth of that
PLAINLY = 20e-3
WATCHED, LOOKED_AT = 4, 64  # batches watched closely; batches between two looks


class Pace:
    """Call `begin` before a batch and `end` after it; `end` says True when threads are worth it."""

    def __init__(self) -> None:
        self._close = True  # the first batches are watched closely
        self._count = -1  # and the very first one pays for opening files
        self._wall = self._cpu = 0.0
        self._waits = _waits()

    def begin(self) -> float:
        return time.thread_time() if self._close else 0.0

    def end(self, wall: float, began: float) -> bool:
        if self._count < 0:
            self._count = 0
            return time.thread_time() - began > PLAINLY
        self._count += 1
        self._wall += wall
        if not self._close:
            if self._count >= LOOKED_AT:
                self._again(close=self._wall > WORTH_A_THREAD * self._count)
            return False
        self._cpu += time.thread_time() - began
        if self._cpu <= PLAINLY and self._count < WATCHED:
            return False
        waited = self._wall > WORTH_A_THREAD * self._count and _waits() - self._waits >= self._count
        worth = waited or self._cpu > WORTH_A_THREAD * self._count
        self._again(close=False)
        return worth

    def _again(self, close: bool) -> None:
        self._close, self._count, self._wall, self._cpu = close, 0, 0.0, 0.0
        self._waits = _waits() if close else 0


def _waits() -> int:
    """How often this thread gave up the core to wait for something."""
    return resource.getrusage(_WHO).ru_nvcsw if _WHO is not None else 0
