"""Whether batches cost enough to be worth threads, and whether threads, once taken, are worth it.

Wall time alone cannot tell: on a busy machine a cheap batch looks slow because somebody else had the core, and threads
would make that worse. So the first batches, and later ones when batches have come to look slow, are watched closely:
processor time of this thread, and whether it had to wait for storage. The first batch and the dearest of those watched
do not count: they may have paid for opening files, or for the order of many batches to come.

Threads are of no use where the work keeps Python's lock (resampling audio does): then the trainer waits for a batch as
long as making it took, or longer. So they are on trial for a few batches.
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
WATCHED = 8  # batches watched closely
TRIED = 12  # batches a trial lasts
LONGER = 1.15  # the wait for a batch, in times of what it took without threads, from which they are given up
GLANCE = 63  # a glance when none of these bits is set in a batch's number, while nothing is watched


class Pace:
    """While `watching`, call `end` after each batch; it says True when threads are worth it. Otherwise `glance` now and
    then, which says whether to watch again."""

    def __init__(self) -> None:
        self.watching = True
        self._count = -1  # the very first batch is not counted
        self._wall = self._cpu = self._most = self._longest = self._waited = 0.0
        self._waits = _waits()

    def end(self, wall: float, began: float) -> bool:
        """`wall` seconds went by; `began` is the thread's processor time before the batch."""
        spent = time.thread_time() - began
        self._count += 1
        if self._count == 0:
            return False
        self._wall += wall
        self._cpu += spent
        self._most, self._longest = max(self._most, spent), max(self._longest, wall)
        if self._count < (2 if self._cpu > PLAINLY else WATCHED):
            return False
        waited = self._wall > WORTH_A_THREAD * self._count and _waits() - self._waits >= self._count
        self.watching = False
        return waited or self._cpu - self._most > WORTH_A_THREAD * (self._count - 1)

    def glance(self, waited: float) -> bool:
        """`waited` is the time the trainer has waited for batches in all."""
        if waited - self._waited > WORTH_A_THREAD * GLANCE and self._waited:
            self.watching, self._count = True, 0
            self._wall = self._cpu = self._most = self._longest = 0.0
            self._waits = _waits()
        self._waited = waited
        return self.watching

    @property
    def cost(self) -> float:
        """Seconds a batch took, once `end` has said True."""
        return (self._wall - self._longest) / max(1, self._count - 1)


class Trial:
    """Call `end` with the wait for each batch since threads were taken; it says True or False when it knows."""

    def __init__(self, cost: float, threads: int) -> None:
        self._cost, self._skip = cost, 2 * threads + 2  # until then threads only catch up
        self._count, self._waited = 0, 0.0

    def end(self, waited: float) -> bool | None:
        self._count += 1
        if self._count <= self._skip:
            return None
        self._waited += waited
        if self._count < self._skip + TRIED:
            return None
        return self._waited < LONGER * self._cost * TRIED


def _waits() -> int:
    """How often this thread gave up the core to wait for something."""
    return resource.getrusage(_WHO).ru_nvcsw if _WHO is not None else 0
