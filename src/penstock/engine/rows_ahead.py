"""Requests the records of the next steps from object storage while a thread parses those of this one.

For sources whose records are byte ranges of remote files (JSON lines, CSV, text, tar). The plan says which come;
those of several steps (`plan.ahead_groups`) are requested together, merged, and stay in memory until they are read: at
most `AHEAD_BYTES`.
No batch changes: what is not there, the reader reads itself, and it meets every error.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import PenstockError
from penstock.core.signals import NoMoreThreads, start_thread
from penstock.core.waits import Condition
from penstock.engine.batches import Batches
from penstock.engine.prefetch import register
from penstock.plan import ahead_groups
from penstock.plan.ahead_groups import bytes_ahead, steps_after
from penstock.plan.build import Plan
from penstock.sources.base import RowsAheadSource
from penstock.storage.ranges_ahead import RangesAhead

WAIT_SECONDS = 1.0  # how long a reader waits for its records to be requested, before it requests them itself


class RowsAhead:
    """Requests records for one rank, from step `at` up to `stop`."""

    def __init__(self, work: Batches, at: int, stop: int | None) -> None:
        self._work, self._stop = work, stop
        self._ranges = ranges_of(work.plan)
        self._at = self._next = at  # of the trainer; the first step that is not requested
        self._steps = 1
        self._coming = 0  # calls whose records are on their way
        self._moved, self._planning = Condition(), threading.Lock()
        self._idle = self._closed = self._started = False
        self._threads = [
            threading.Thread(target=self._run, name="penstock-rows-ahead", daemon=True)
            for _ in range(ahead_groups.FETCHERS)
        ]

    def start(self) -> None:
        """Starts the threads, if they are not running."""
        if self._started or self._closed:
            return
        self._started = True
        register(self)
        try:
            for thread in self._threads:
                start_thread(thread)
        except NoMoreThreads:  # then readers request all
            self.close()

    def serve(self, work: Batches) -> None:
        """Readers of this work wait for what is about to be requested."""
        work.before_read = self.wait_for

    def took_one(self) -> None:
        """The trainer takes the next batch."""
        with self._moved.lock:
            self._at += 1
            self._moved.notify_all()

    def wait_for(self, stop: int) -> None:
        """A reader begins to read the steps before `stop`: waits a little until they are requested."""
        with self._moved.lock:
            if self._started and not self._closed and self._next < stop:
                self._moved.wait_for(lambda: self._closed or self._next >= stop or self._idle, WAIT_SECONDS)
            self._next = max(self._next, stop)
            self._moved.notify_all()

    def close(self) -> None:
        """Ends the threads; what they have requested is thrown away."""
        with self._moved.lock:
            self._closed = True
            self._moved.notify_all()
        for ranges in self._ranges:
            ranges.forget()

    def join(self, seconds: float) -> None:
        """Waits for the end of the threads."""
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(seconds)

    def _run(self) -> None:
        try:
            while self._fetch_next():
                pass
        except PenstockError:
            pass  # the reader meets the same error
        finally:
            self.close()

    def _fetch_next(self) -> bool:
        """Requests the records of the next steps; False when closed. One thread at a time plans."""
        size, starts = 0, dict[int, tuple[RowsAheadSource, list[NDArray[np.int64]]]]()
        # What is claimed is fetched after planning, also if planning fails: readers wait for it.
        with ExitStack() as claimed, self._planning:
            with self._moved.lock:
                self._idle = True
                self._moved.notify_all()  # readers do not wait for what will not come
                self._moved.wait_for(lambda: self._closed or self._has_work())
                self._idle = False
                if self._closed:
                    return False
                self._coming += 1
                claimed.callback(self._came)
                first = self._next
                last = first + self._steps if self._stop is None else min(self._stop, first + self._steps)
            for picks in self._work.orders(first, last):
                for leaf, rows, _, _, _ in self._work.plan.root.reads(picks):
                    if isinstance(leaf.source, RowsAheadSource):
                        starts.setdefault(leaf.number, (leaf.source, []))[1].append(rows)
            with self._moved.lock:
                if self._next > first:  # a reader did not wait, and requests them itself
                    return True
            for source, parts in starts.values():
                claimed.callback(source.claim_ahead(rows := np.concatenate(parts), last))
                size += bytes_ahead(source, rows)
            self._steps = steps_after(last - first, size)
            with self._moved.lock:
                self._next = max(self._next, last)
                self._moved.notify_all()
        for ranges in self._ranges:
            ranges.forget(self._at)
        return True

    def _came(self) -> None:
        with self._moved.lock:
            self._coming -= 1
            self._moved.notify_all()

    def _has_work(self) -> bool:
        held = sum(ranges.size for ranges in self._ranges) + self._coming * ahead_groups.CHUNK_BYTES
        end = self._at + ahead_groups.MOST_STEPS
        return held < ahead_groups.AHEAD_BYTES and self._next < (end if self._stop is None else min(end, self._stop))


def ranges_of(plan: Plan) -> Sequence[RangesAhead]:
    """What the sources of a plan request ahead."""
    found = (leaf.source.ahead for leaf in plan.root.leaves() if isinstance(leaf.source, RowsAheadSource))
    return [ranges for ranges in found if ranges is not None]
