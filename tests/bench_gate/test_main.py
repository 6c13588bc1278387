"""`python -m bench`: one that is broken is said, stops no other, and makes the exit code 1."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from bench import __main__ as main
from bench import collate, packing


@pytest.mark.parametrize("failure", [RuntimeError("no data"), SystemExit(0)])
def test_a_broken_benchmark_exits_non_zero_after_the_others(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        raise failure

    monkeypatch.setattr(collate, "run", broken)
    monkeypatch.setattr(packing, "run", lambda: {"targets": [("fill", "0.9", ">= 0.995", "MISSED")]})
    monkeypatch.setattr("sys.argv", ["bench", "collate", "packing"])
    assert main.main() == 1
    said = capsys.readouterr()
    assert "missed: packing: fill (MISSED)\nbroken: collate" in said.out and type(failure).__name__ in said.err


def test_a_missed_target_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packing, "run", lambda: {"targets": [("fill", "0.9", ">= 0.995", "MISSED")]})
    monkeypatch.setattr("sys.argv", ["bench", "packing"])
    assert main.main() == 0 and "missed: packing: fill (MISSED)" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["bench", "nothing"])
    assert main.main() == 2 and "no such benchmark: nothing" in capsys.readouterr().out


@pytest.mark.parametrize("name", main.NAMES)
def test_every_benchmark_has_a_line_and_a_run(name: str) -> None:
    module = importlib.import_module(f"bench.{name}")
    assert callable(module.run) and (module.__doc__ or "").splitlines()[0]
