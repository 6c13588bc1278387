"""Statistics of a loader: seconds per stage, waiting time and a verdict. Costs well under a microsecond per row."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.engine.advice import FIRST

if TYPE_CHECKING:
    from penstock.engine.verb_seconds import VerbSeconds

STAGES = ("order", "read", "finish", "deliver")


class Stats:
    """Counters that threads add to and `summary` reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.verbs: VerbSeconds | None = None  # if the seconds of each verb are measured
        self.children: tuple[int, ...] = ()  # process ids of the children that compute batches now
        self.reset()

    def reset(self) -> None:
        """Sets all counters to zero."""
        with self._lock:
            self._seconds = dict.fromkeys(STAGES, 0.0)
            self._counts = {"rows": 0, "batches": 0}
            self.taken = 0  # only the consumer's thread writes these four
            self.waited = 0.0
            self.began = self.ended = None

    began: float | None
    ended: float | None

    def add(self, batches: int, rows: int, read: float, finish: float, deliver: float) -> None:
        """Adds batches that a thread computed."""
        with self._lock:
            self._counts["rows"] += rows
            self._counts["batches"] += batches
            seconds = self._seconds
            seconds["read"] += read
            seconds["finish"] += finish
            if deliver:  # otherwise the consumer may be adding to it
                seconds["deliver"] += deliver

    def finished(self, seconds: float) -> None:
        """Adds the time of a batch in its stages."""
        with self._lock:
            self._seconds["finish"] += seconds

    def delivered(self, seconds: float) -> None:
        """Adds delivery time of the consumer's own thread; no other thread adds to it at the same time."""
        self._seconds["deliver"] += seconds

    def ordered(self, seconds: float) -> None:
        """Adds the time for computing the order of some batches."""
        with self._lock:
            self._seconds["order"] += seconds

    def took(self, waited: float, now: float) -> float:
        """The consumer took a batch after waiting. Returns the seconds between the last batch and the wait."""
        step = 0.0 if self.ended is None else now - waited - self.ended
        self.taken += 1
        self.waited += waited
        if self.began is None:
            self.began = now - waited
        self.ended = now
        return step

    def summary(self) -> dict[str, Any]:
        """Plain JSON: counts, seconds per stage, the share of time the consumer waited, and a verdict."""
        with self._lock:
            wall = (self.ended or 0.0) - (self.began or 0.0)
            share = self.waited / wall if wall > 0 else 0.0
            seconds = {stage: round(value, 6) for stage, value in self._seconds.items()}
            return {
                "batches_taken": self.taken,
                "batches_computed": self._counts["batches"],
                "rows_computed": self._counts["rows"],
                "seconds": round(wall, 6),
                "waited_seconds": round(self.waited, 6),
                "waited_share": round(min(1.0, share), 4),
                "stage_seconds": seconds,
                **({} if self.verbs is None else {"verb_seconds": self.verbs.seconds()}),
                "verdict": _verdict(self.taken, share, seconds),
            }


def _verdict(taken: int, share: float, seconds: dict[str, float]) -> str:
    if not taken:
        return "no batch was taken yet"
    if taken < FIRST:
        return f"too early to say: {taken} of the first {FIRST} batches"
    slowest = max(seconds, key=lambda stage: seconds[stage])
    if share < 0.02:
        return f"the loader keeps up: the trainer waited {share:.1%} of the time"
    if share < 0.2:
        return f"the loader nearly keeps up: the trainer waited {share:.1%} of the time, mostly for {slowest!r}"
    return f"the trainer waits for data {share:.0%} of the time; most of the work is in {slowest!r}"
