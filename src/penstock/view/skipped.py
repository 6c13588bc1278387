"""Reads `skipped.jsonl`, the list of records that `prepare` skipped, next to a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

_MOST_BYTES, _MOST = 64 << 20, 1000


@dataclass
class Skipped:
    """Number of skipped records, in total and by reason, and the listed entries."""

    total: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)


def read_skipped(folder: str | Path) -> Skipped | None:
    """Reads the first thousand entries of a store's list; None if there is none or it cannot be read."""
    path = Path(folder) / "skipped.jsonl"
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
        head, *rest = (orjson.loads(line) for line in lines[: _MOST + 1])
        reasons = {str(k): int(v) for k, v in head["reasons"].items()}
        return Skipped(int(head["skipped"]), reasons, [entry for entry in rest if isinstance(entry, dict)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
