"""When a second request is made beside a slow one, and how many such requests are allowed.

Of many requests a few are answered late: the slow machine, the lost packet. A second request that starts when the
first is older than nearly all others (the 99th percentile, at least `FLOOR`) is usually answered first. At most
`SHARE` of all requests, or `FREE` of few, are such; when more than `SUSPENDED` of the recent ones are late, the storage
is slow as a whole, more requests would make it slower, and none is made.
"""

from __future__ import annotations

import threading
from collections import deque

FLOOR = 0.5  # seconds
UNKNOWN = 2.0  # seconds before a second request while too few answers have been seen
SHARE = 0.02
FREE = 3  # of so few requests that the share of them is less
SUSPENDED = 0.05
_FEW = 50
_KEPT = 512
_RECENT = 1000


class Hedger:
    """The latencies of one bucket, by size of the answer, and the second requests made.

    >>> hedger = Hedger()
    >>> for _ in range(100): hedger.started(); hedger.answered(1000, 0.01)
    >>> hedger.delay(1000), hedger.allow(), hedger.allow(), hedger.allow(), hedger.allow()
    (0.5, True, True, True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[int, deque[float]] = {}
        self._delays: dict[int, tuple[int, float]] = {}  # at how many answers computed, and the delay
        self._answers: dict[int, int] = {}
        self.requests = self.hedges = 0
        self._recent: deque[bool] = deque(maxlen=_RECENT)  # whether each of the last requests was late

    def started(self) -> None:
        """A first request, or a retry, begins."""
        with self._lock:
            self.requests += 1

    def answered(self, size: int, seconds: float) -> None:
        """A request was answered with `size` bytes."""
        group = _group(size)
        with self._lock:
            self._times.setdefault(group, deque(maxlen=_KEPT)).append(seconds)
            self._answers[group] = self._answers.get(group, 0) + 1
            self._recent.append(False)

    def delay(self, size: int) -> float:
        """How old a request for `size` bytes is before it counts as late."""
        group = _group(size)
        with self._lock:
            count = self._answers.get(group, 0)
            if count < _FEW:
                return UNKNOWN
            at, value = self._delays.get(group, (0, 0.0))
            if not at or count - at >= 64:
                times = sorted(self._times[group])
                value = max(FLOOR, times[int(len(times) * 0.99)])
                self._delays[group] = count, value
            return value

    def allow(self) -> bool:
        """Whether a late request may have a second one; counts it as made."""
        with self._lock:
            self._recent.append(True)
            late = sum(self._recent)
            if late > max(FREE, SUSPENDED * len(self._recent)) or self.hedges + 1 > max(FREE, SHARE * self.requests):
                return False
            self.hedges += 1
            return True


def _group(size: int) -> int:
    """Answers of about the same size: 128 KiB, 256 KiB ..."""
    return (size >> 17).bit_length()
