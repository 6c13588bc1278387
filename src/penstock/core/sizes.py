"""Sizes for people, and sizes that people write."""

from __future__ import annotations

import os
import re

from penstock.core.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_in_environment(name: str) -> int | None:
    """The bytes that an environment variable says, such as 50GB; None if it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.upper())
    if found is None:
        raise UsageError(f"a size such as 50GB in {name}", got=repr(text), fix="export it as 50GB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def size(count: float) -> str:
    """Formats a number of bytes.

    >>> size(999), size(12_345_678), size(2.05e15)
    ('999 B', '12.3 MB', '2.0 PB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    place = sum(count >= 1000**power for power in range(1, 7))
    return f"{count / 1000**place:.1f} {('kB', 'MB', 'GB', 'TB', 'PB', 'EB')[place - 1]}"
