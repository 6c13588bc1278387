"""How many CPU cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """CPU cores this process may run on: its affinity mask where the system has one, else all cores.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
