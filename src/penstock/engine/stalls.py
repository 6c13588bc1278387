"""Warns when a batch takes long that is computed in the trainer's own thread, where nobody else would notice.

One daemon thread, which ends a second after the last such `for`. It looks now and then whether a generator is still
inside the same batch; iterating costs nothing for it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator
from types import FrameType, GeneratorType
from typing import Any

from penstock.core.signals import NoMoreThreads, start_thread

SECONDS = 30.0  # a longer wait for a batch is reported
LOOK_SECONDS = 1.0  # how often the thread looks


Run = Generator[Any, None, None]  # what a `for` iterates
Taken = Callable[[], int]  # a number that grows with each batch; must not keep the loader alive
Batch = Callable[[], int | None]  # the number of the batch, likewise; None where another part watches it


class _Watched:
    def __init__(self, taken: Taken, batch: Batch) -> None:
        self.taken, self.batch = taken, batch
        self.seen: int | None = None  # `taken` at the last look, if the generator was running
        self.since = 0.0  # of the first look at this batch
        self.warned = False

    def waits(self, run: Run, now: float) -> bool:
        """Whether the generator has been inside one batch for long; True once for each batch."""
        taken = self.taken() if isinstance(run, GeneratorType) and run.gi_running else None
        if taken is None or taken != self.seen:
            self.seen, self.since, self.warned = taken, now, False
        if self.warned or taken is None or now - self.since < SECONDS:
            return False
        self.warned = True
        return True


class _Watch:
    """The generators that are watched, and the thread that looks at them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._runs: weakref.WeakKeyDictionary[Run, _Watched] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()  # a generator may be collected, and so discarded, anywhere
        self._thread: threading.Thread | None = None

    def add(self, run: Run, taken: Taken, batch: Batch) -> None:
        with self._lock:
            self._runs[run] = _Watched(taken, batch)
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="penstock-stalls", daemon=True)
                try:
                    start_thread(thread)
                except NoMoreThreads:
                    return  # batches matter more than this warning
                self._thread = thread

    def discard(self, run: Run | None) -> None:
        with self._lock:
            if run is not None:
                self._runs.pop(run, None)

    def _look(self) -> None:
        while True:
            time.sleep(min(LOOK_SECONDS, SECONDS / 8))
            with self._lock:
                if not self._runs:
                    self._thread = None
                    return
                now = time.perf_counter()
                late = [(run, each) for run, each in list(self._runs.items()) if each.waits(run, now)]
            for run, each in late:
                if (batch := each.batch()) is not None:
                    _warn(f"penstock: batch {batch} has taken {now - each.since:.0f} s so far\n{_stack(run)}")
            late = []


_watch = _Watch()


if hasattr(os, "register_at_fork"):  # the thread is not in a forked copy, and the lock may be held there for ever
    os.register_at_fork(after_in_child=_watch.reset)


def watch(run: Callable[[], Run | None], taken: Taken, batch: Batch) -> None:
    """Warns when `run` stays in one batch for `SECONDS`, until `unwatch`."""
    if (alive := run()) is not None:
        _watch.add(alive, taken, batch)


def unwatch(run: Callable[[], Run | None], _ending: Callable[[], bool] = sys.is_finalizing) -> None:
    """Ends `watch`."""
    if not _ending():  # bound: `sys` may be gone at interpreter exit
        _watch.discard(run())


def _stack(run: Run) -> str:
    """The last calls of the thread that runs the generator."""
    for frame in sys._current_frames().values():
        caller: FrameType | None = frame
        while caller is not None:
            if isinstance(run, GeneratorType) and caller is run.gi_frame:
                return "".join(traceback.format_stack(frame)[-4:])
            caller = caller.f_back
    return ""


def _warn(text: str) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # warnings are errors here, but this thread is not the one that waits
        sys.stderr.write(f"{text}\n")
