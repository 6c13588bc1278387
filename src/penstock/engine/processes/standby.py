"""One child process that takes over from a loader's threads in the middle of a run, and hands back if it fails.

It starts while the threads go on, and computes nothing until its steps are named; more may be named later. What goes
wrong in it is raised as `ChildLost`: the loader then computes the same batch in its own process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.engine.batches import Batches
from penstock.engine.moving import ChildLost
from penstock.engine.processes.child import WAITS
from penstock.engine.processes.connection import ChildGone
from penstock.engine.processes.isolated import Isolated, raised


class Standby(Isolated):
    """An `Isolated` with one child, whose steps are named by `begin`."""

    def __init__(self, work: Batches, *, threads: int, ahead: int, max_bytes: int) -> None:
        super().__init__(work, WAITS, None, workers=1, threads=threads, ahead=ahead, max_bytes=max_bytes)

    def is_ready(self) -> bool:
        """Whether the child has built its plan; does not wait for it."""
        link = self._links[0]
        if link.ready:
            return True
        try:
            message = link.receive(0.0)
        except ChildGone as gone:
            self.close()
            raise self._failed(gone) from None
        if message is None:
            return False
        if message[0] != "ready":
            self.close()
            raise self._failed(raised(message[1], link, self._taken))
        link.ready = time.perf_counter()
        return True

    def begin(self, start: int, stop: int | None) -> None:
        """Names steps to compute: after those named before, unless these were all taken."""
        if self._stop is None or self._taken >= self._stop:
            self._start = self._taken = start
        self._stop = stop
        self._links[0].moved(self._taken, self._batch_bytes)
        self._links[0].begin(start, stop)

    def __iter__(self) -> Iterator[object]:  # type: ignore[override]
        return self

    def _at_end(self) -> None:
        """More steps may come."""

    def _failed(self, error: BaseException) -> BaseException:
        return ChildLost(error)
