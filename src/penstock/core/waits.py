"""Conditions and events whose lock is not left taken by an exception of a signal handler.

`with condition:` of `threading` takes its lock inside a function. An exception that a handler raises as that function
returns leaves the lock taken for ever, and every other thread waits for it: in a loop that did little else this was so
after 1,100 of 3,000 signals. The interpreter takes a plain lock in one step (none of 3,000), so here it is named:

    with changed.lock:
        changed.wait_for(...)
"""

from __future__ import annotations

import threading
from typing import NoReturn


def owned(lock: threading.RLock) -> bool:
    """Whether this thread has taken a lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


class Condition(threading.Condition):
    """A condition that is entered as `with condition.lock:`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(self.lock)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            return super().wait(timeout)
        except BaseException:
            if not owned(self.lock):  # it came as the lock had been released: `with` releases it once more
                self.lock.acquire()
            raise

    def __enter__(self) -> NoReturn:
        raise TypeError("with condition.lock: an exception of a signal handler may leave the lock taken otherwise")


class Event:
    """`threading.Event`, for threads of which one may be the main thread."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._changed.lock:
            self._set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, at most `timeout` seconds; returns whether it is."""
        with self._changed.lock:
            return self._changed.wait_for(lambda: self._set, timeout)
