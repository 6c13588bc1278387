"""Decides with `threads=None` whether threads are worth their cost: `CostMonitor` before, `ThreadTrial` after a start,
`AutoThreads` for both.

Wall time alone does not show it: on a busy machine a cheap batch looks slow because another process has the core, and
threads would make that worse. So the first batches, and later ones once batches look slow, are measured in CPU time of
this thread, and in how often it waited for storage. The first batch and the most expensive one are not counted: they
may have opened files, or computed the order of many batches.

Threads do not help where the work holds the GIL (resampling audio does): the trainer then waits for a batch as long as
computing it takes, or longer. And they lengthen the step of a trainer that runs much Python of its own, because both
take turns with the GIL. So threads are tried for a few batches, and stopped unless the time between batches (the wait
and the trainer's own step) got shorter by a part of what computing a batch takes. `loss` is
what the trainer then loses, to threads or to computing batches itself: `engine.moving` decides whether a child helps.
"""

from __future__ import annotations

import time
from statistics import median

from penstock.engine.moving import Loss

try:
    import resource

    _WHO = getattr(resource, "RUSAGE_THREAD", None)
except ImportError:  # not on Windows
    _WHO = None

WORTH_A_THREAD = 300e-6  # seconds per batch; handing one over costs about a tenth of that
CLEARLY_WORTH = 20e-3  # CPU seconds after which two batches are enough to decide
WATCHED_BATCHES = 8  # batches that are measured
TRIAL_BATCHES = 12  # batches of a trial
MOST_OF_COST = 0.8  # threads are stopped if the wait, and what the trainer's step is longer, exceed this part of a cost
STEADY = 1.03  # a step of the trainer that is longer by less is called equal
RECHECK_MASK = 63  # recheck when (batch number & mask) == 0, while nothing is measured


class CostMonitor:
    """Measures what batches cost. While `watching`, call `end` after each batch; otherwise `recheck` now and then."""

    def __init__(self) -> None:
        self.watching = True
        self._count = -1  # the very first batch is not counted
        self._wall = self._cpu = self._most = self._longest = self._waited = 0.0
        self._waits = _waits()
        self._steps: list[float] = []

    def end(self, wall: float, began: float, step: float = 0.0) -> bool:
        """Measures one batch: its `wall` seconds, the thread's CPU time `began` before it, and the seconds of the
        trainer's own `step` before that. True: use threads."""
        spent = time.thread_time() - began
        self._count += 1
        if self._count == 0:
            return False
        self._wall += wall
        self._cpu += spent
        self._steps.append(step)
        self._most, self._longest = max(self._most, spent), max(self._longest, wall)
        if self._count < (2 if self._cpu > CLEARLY_WORTH else WATCHED_BATCHES):
            return False
        waited = self._wall > WORTH_A_THREAD * self._count and _waits() - self._waits >= self._count
        self.watching = False
        return waited or self._cpu - self._most > WORTH_A_THREAD * (self._count - 1)

    def recheck(self, waited: float) -> bool:
        """Whether to measure again; `waited` is the total time that the trainer has waited for batches."""
        if waited - self._waited > WORTH_A_THREAD * RECHECK_MASK and self._waited:
            self.watching, self._count = True, 0
            self._wall = self._cpu = self._most = self._longest = 0.0
            self._waits = _waits()
            self._steps.clear()
        self._waited = waited
        return self.watching

    @property
    def cost(self) -> float:
        """Seconds per batch, once `end` has returned True."""
        return (self._wall - self._longest) / max(1, self._count - 1)

    @property
    def step(self) -> float:
        """Seconds of the trainer's own step, likewise."""
        return median(self._steps) if self._steps else 0.0


class ThreadTrial:
    """Whether threads help: call `end` for each batch since they started; True or False when decided.

    `cost` is what a batch took without threads, `step` what the trainer's own step took.
    """

    def __init__(self, cost: float, threads: int, step: float = 0.0) -> None:
        self._cost, self._step, self._skip = cost, step, 2 * threads + 2  # threads catch up first
        self._count, self._waited = 0, 0.0
        self._steps: list[float] = []
        self.lost = 0.0  # seconds by which the trainer's period is longer than its step was before, once decided

    def end(self, waited: float, step: float = 0.0) -> bool | None:
        self._count += 1
        if self._count <= self._skip:
            return None
        self._waited += waited
        self._steps.append(step)
        if self._count < self._skip + TRIAL_BATCHES:
            return None
        step, waited = median(self._steps), self._waited / TRIAL_BATCHES
        self.lost = max(0.0, step - self._step + waited)
        return waited + max(0.0, step - STEADY * self._step) < MOST_OF_COST * self._cost


class AutoThreads:
    """The decision for one `for`: watches batches, tries threads, and settles on a number.

    While `busy`, call `end` after each batch; otherwise when (batch number & RECHECK_MASK) == 0.
    """

    def __init__(self, threads: int) -> None:
        self.busy = True
        self.settled: int | None = None
        self.loss: Loss | None = None  # once settled
        self._threads = threads  # to try
        self._monitor = CostMonitor()
        self._trial: ThreadTrial | None = None

    def end(self, wall: float, cpu: float, waited: float, step: float = 0.0) -> int | None:
        """Measures one batch: its seconds, the thread's CPU time before it, the total time waited, and the seconds of
        the trainer's own step before it. Returns the number of threads to change to, or None."""
        monitor = self._monitor
        if self._trial is not None:
            worth = self._trial.end(wall, step)
            if worth is None:
                return None
            self.settled = self._threads if worth else 0
            self.loss = Loss(monitor.step, monitor.cost, self._trial.lost if worth else monitor.cost, self.settled)
            return None if worth else 0
        if monitor.watching and monitor.end(wall, cpu, step):
            self._trial = ThreadTrial(monitor.cost, self._threads, monitor.step)
            return self._threads
        self.busy = monitor.watching if self.busy else monitor.recheck(waited)
        return None


def _waits() -> int:
    """How often this thread blocked (voluntary context switches)."""
    return resource.getrusage(_WHO).ru_nvcsw if _WHO is not None else 0
