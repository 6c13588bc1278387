"""Joins the groups of a preparation in their order: shards, skipped records, line numbers.

Groups finish in any order and are added in the order of the input, so that budgets, errors and lists come out the same
wherever the groups were made.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.ledger import Ledger
from penstock.preparation.group import Job
from penstock.preparation.journal import Done
from penstock.store.writer import ShardInfo

_LINE = re.compile(r", line (\d+), byte ")


class Merge:
    """The groups added so far."""

    def __init__(self, job: Job, budget: int | float | Fraction | None) -> None:
        self.job = job
        self.ledger = Ledger(budget)
        self.shards: list[ShardInfo] = []
        self.filtered = self.text_bytes = self.groups = 0
        self._lines = 0  # of the file in which the last group ended, up to its end
        self._bases: list[tuple[int, int]] = []

    def add(self, records: list[Done]) -> None:
        """Adds the next group. Raises when that exceeds the budget."""
        base = self._base()
        part = self.job.part(self.groups)
        uncounted = part is not None and not part.counted
        if base != (self._bases[-1][1] if self._bases else 0):
            self._bases.append((len(self.shards), base))
        for done in records:
            done.recall(self.ledger, base if uncounted else 0)
            self.shards += [] if done.shard is None else [done.shard]
            self.filtered += done.filtered
            self.text_bytes += done.text_bytes
        inside = part is not None and part.stop["offset"] > 0
        self._lines = (base if uncounted else 0) + records[-1].cursor.get("line", 0) if inside else 0
        self.groups += 1

    def _base(self) -> int:
        """How many lines of its file come before the next group."""
        part = self.job.part(self.groups)
        if part is None:
            return 0
        return part.start["line"] if part.counted else self._lines

    def with_line(self, error: PenstockError) -> PenstockError:
        """The error of the next group with the number of the line in its file, not in its group."""
        part = self.job.part(self.groups)
        if part is not None and not part.counted:
            error.where = _LINE.sub(lambda m: f", line {int(m[1]) + self._lines}, byte ", error.where)
        return error

    def metadata(self) -> dict[str, Any]:
        """Which lines the shards count from, where that is not the beginning of a file: see `TokenStore.locate`."""
        if not self._bases:
            return {}
        return {"line_bases": {"shards": [s for s, _ in self._bases], "lines": [n for _, n in self._bases]}}
