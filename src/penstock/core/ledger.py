"""The ledger lists skipped records: which, where and why.

Thread-safe. Memory is bounded: it keeps the first `keep` entries and counts all, in total and per reason. With a
budget, the entry that exceeds it raises an error with examples; without one the ledger only records.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from penstock.core import local_files
from penstock.core.errors import DataError, RecordError, UsageError

if TYPE_CHECKING:
    from fractions import Fraction

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One skipped record: its file, its line or record number if known, and the reason."""

    file: str
    record: int | None
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        place = self.file if self.record is None else f"{self.file}, record {self.record}"
        return f"{place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class Ledger:
    """Records skipped records up to a budget: an int is a count, a Fraction or float below 1 a share of `seen`.

    >>> ledger = Ledger(budget=1)
    >>> ledger.see(10)
    >>> ledger.add("a.jsonl", 3, "a JSON object")
    >>> ledger
    Ledger(1 of 10 records skipped; a JSON object: 1)
    """

    def __init__(self, budget: float | Fraction | None = None, keep: int = 1000) -> None:
        self.budget = _checked(budget)
        self.keep = keep
        self._lock = threading.Lock()
        self.entries: list[Entry] = []
        self.total = 0
        self.seen = 0
        self.by_reason: Counter[str] = Counter()

    def see(self, records: int) -> None:
        """Adds to the number of records read, good and bad: the base of a budget that is a share."""
        with self._lock:
            self.seen += records

    def add(self, file: str, record: int | None, reason: str, detail: str = "") -> None:
        """Adds one skipped record. Raises `DataError` when that exceeds the budget."""
        with self._lock:
            self.total += 1
            self.by_reason[reason] += 1
            if len(self.entries) < self.keep:
                self.entries.append(Entry(file, record, reason, detail))
            over = self.over_budget()
        if over:
            raise self._budget_error()

    def count(self, reason: str, records: int) -> None:
        """Counts skipped records that are not listed. Raises `DataError` when that exceeds the budget."""
        with self._lock:
            self.total += records
            self.by_reason[reason] += records
            over = self.over_budget()
        if over:
            raise self._budget_error()

    def skip(self, error: RecordError, place: Mapping[str, Any] | None = None) -> None:
        """Adds the record that raised `error`. `place` is the result of the source's `locate`."""
        file, record = error.where, None
        if place is not None:
            file = str(place.get("file", error.where))
            number = place.get("line", place.get("record", place.get("row")))
            record = int(number) if number is not None else None
        self.add(file, record, error.expected, error.got)

    def over_budget(self, least: int = 100) -> bool:
        """Whether more was skipped than allowed. A share is compared exactly, and of at least `least` records."""
        if self.budget is None:
            return False
        if isinstance(self.budget, int):
            return self.total > self.budget
        return self.total > self.budget * max(self.seen, self.total, least)

    def check(self) -> None:
        """Raises `DataError` when over budget. Call it at the end, when `seen` counts all records."""
        if self.over_budget(least=0):
            raise self._budget_error()

    def _budget_error(self) -> DataError:
        allowed = self.budget if isinstance(self.budget, int) else f"{float(self.budget or 0):.4g} of records"
        examples = "; ".join(str(entry) for entry in self.entries[:_EXAMPLES])
        return DataError(
            f"at most {allowed} skipped" + (" records" if isinstance(self.budget, int) else ""),
            got=f"{self.total} skipped of {max(self.seen, self.total)} seen ({self._reasons()})",
            where=examples,
            fix="repair the data, or raise the budget if losing these records is acceptable",
        )

    def _reasons(self) -> str:
        return ", ".join(f"{reason}: {count}" for reason, count in self.by_reason.most_common())

    def to_json(self) -> dict[str, Any]:
        """Counts and kept entries, as plain JSON values."""
        with self._lock:
            return {
                "skipped": self.total,
                "seen": self.seen,
                "reasons": dict(self.by_reason.most_common()),
                "entries": [asdict(entry) for entry in self.entries],
                "entries_not_kept": self.total - len(self.entries),
            }

    def lines(self) -> bytes:
        """JSON lines: one summary, then one line per kept entry."""
        facts = self.to_json()
        entries = facts.pop("entries")
        return b"".join(orjson.dumps(line) + b"\n" for line in [facts, *entries])

    def write(self, path: str) -> None:
        """Writes `lines` atomically."""
        local_files.atomic_write(path, self.lines())

    def __len__(self) -> int:
        return self.total

    def __bool__(self) -> bool:
        return True  # an empty ledger is still a ledger

    def __repr__(self) -> str:
        of = f" of {self.seen}" if self.seen else ""
        reasons = f"; {self._reasons()}" if self.total else ""
        return f"Ledger({self.total}{of} records skipped{reasons})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _checked(budget: float | Fraction | None) -> int | Fraction | None:
    if budget is None:
        return None
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    from fractions import Fraction  # here: most loaders have no budget of a share

    if isinstance(budget, float | Fraction) and 0 <= budget < 1:
        return Fraction(budget).limit_denominator(10**9)
    raise UsageError(
        "a budget: an integer number of records, or a share of them in [0, 1)",
        got=repr(budget),
        fix="for example budget=100 or budget=0.001",
    )
