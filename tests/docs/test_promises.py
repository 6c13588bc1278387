"""Every promise of docs/explanation/promises.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/promises.md").read_text()
FINDINGS = (ROOT / "docs/explanation/findings.md").read_text()
ROWS = re.findall(r"^\| (\*\*.*) \| (.*) \|$", PAGE, re.MULTILINE)


def test_there_are_promises() -> None:
    assert len(ROWS) >= 25


def test_each_names_tests_that_exist() -> None:
    for promise, tests in ROWS:
        named = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert named, promise
        for name in named:
            path = ROOT / name
            files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
            assert any("def test_" in file.read_text() for file in files), f"{promise}: {name}"


def test_each_finding_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (?!found|---)(.*) \| (.*) \|$", FINDINGS, re.MULTILINE)
    assert len(rows) >= 45
    for finding, tests in rows:
        named = re.findall(r"`(tests/[\w/.]+?\.py)(?:::(\w+))?`", tests)
        assert named, finding
        for path, name in named:
            assert f"def {name or 'test_'}" in (ROOT / path).read_text(), f"{finding}: {path}::{name}"
