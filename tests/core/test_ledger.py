"""The ledger counts every skipped record, keeps the first ones, and raises over its budget."""

from __future__ import annotations

import json
import pickle
import threading
from fractions import Fraction
from pathlib import Path

import pytest

from penstock.core.errors import DataError, RecordError, UsageError
from penstock.core.ledger import Ledger


def test_counts_all_keeps_the_first() -> None:
    ledger = Ledger(keep=2)
    ledger.see(10)
    for i in range(5):
        ledger.add("a.jsonl", i, "valid JSON" if i % 2 else "a field 'text'", "detail")
    assert ledger.total == len(ledger) == 5
    assert [e.record for e in ledger.entries] == [0, 1]
    assert repr(ledger) == "Ledger(5 of 10 records skipped; a field 'text': 3, valid JSON: 2)"
    assert repr(Ledger()) == "Ledger(0 records skipped)"
    facts = ledger.to_json()
    assert facts["reasons"] == {"a field 'text'": 3, "valid JSON": 2}
    assert facts["entries_not_kept"] == 3
    assert json.loads(json.dumps(facts)) == facts


def test_exceeding_a_count_budget_raises_with_examples() -> None:
    ledger = Ledger(budget=2)
    ledger.see(50)
    ledger.add("a.jsonl", 1, "valid JSON", "cut off")
    ledger.add("a.jsonl", 2, "valid JSON")
    with pytest.raises(DataError) as caught:
        ledger.add("b.jsonl", 9, "a field 'text'")
    assert str(caught.value) == (
        "expected at most 2 skipped records\n"
        "  got:   3 skipped of 50 seen (valid JSON: 2, a field 'text': 1)\n"
        "  where: a.jsonl, record 1: valid JSON (cut off); a.jsonl, record 2: valid JSON; "
        "b.jsonl, record 9: a field 'text'\n"
        "  fix:   repair the data, or raise the budget if losing these records is acceptable"
    )
    assert ledger.total == 3


@pytest.mark.parametrize("budget", [0.01, Fraction(1, 100)])
def test_a_share_budget(budget: float | Fraction) -> None:
    ledger = Ledger(budget=budget)
    ledger.see(1000)
    for i in range(10):
        ledger.add("a", i, "bad")
    ledger.check()
    with pytest.raises(DataError, match=r"at most 0.01 of records skipped\n  got:   11 skipped of 1000 seen"):
        ledger.add("a", 10, "bad")
    with pytest.raises(DataError):
        ledger.check()


def test_zero_budget_raises_at_once() -> None:
    with pytest.raises(DataError, match="at most 0 skipped"):
        Ledger(budget=0).add("a", None, "bad")


@pytest.mark.parametrize("budget", [-1, 1.0, 1.5, -0.1, True, "1", float("nan")])
def test_invalid_budgets(budget: object) -> None:
    with pytest.raises(UsageError, match=r"a budget: an integer number of records(.|\n)*budget=0.001"):
        Ledger(budget=budget)  # type: ignore[arg-type]


def test_errors_are_recorded_with_file_and_line(tmp_path: Path) -> None:
    ledger = Ledger()
    error = RecordError("valid JSON", got="cut off", where="a.jsonl, line 3, byte 9")
    ledger.skip(error)
    ledger.skip(error, {"file": "a.jsonl", "line": 3, "offset": 9})
    ledger.skip(error)
    ledger.write(str(tmp_path / "ledger.jsonl"))
    summary, *entries = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert summary["skipped"] == 3
    assert entries[0] == {
        "file": "a.jsonl, line 3, byte 9",
        "record": None,
        "reason": "valid JSON",
        "detail": "cut off",
    }
    assert entries[1]["file"] == "a.jsonl"
    assert entries[1]["record"] == 3


def test_threads_and_pickle() -> None:
    ledger = Ledger(keep=10)

    def work() -> None:
        for i in range(500):
            ledger.see(1)
            ledger.add("a", i, "bad")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.total, ledger.seen, len(ledger.entries), ledger.by_reason["bad"]) == (4000, 4000, 10, 4000)
    again = pickle.loads(pickle.dumps(ledger))
    again.add("a", 1, "bad")
    assert (again.total, ledger.total) == (4001, 4000)


def test_counted_records_are_in_the_budget_but_not_in_the_list() -> None:
    ledger = Ledger(budget=5)
    ledger.count("too short", 5)
    assert (ledger.total, ledger.by_reason["too short"], ledger.entries) == (5, 5, [])
    with pytest.raises(DataError, match="at most 5 skipped"):
        ledger.count("too short", 1)
