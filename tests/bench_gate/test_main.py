"""`python -m bench`: one that is broken or takes too long is said, stops no other, and makes the exit code 1."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as main
from bench import collate, common, packing


@pytest.mark.parametrize("failure", [RuntimeError("no data"), SystemExit(0)])
def test_a_broken_benchmark_exits_non_zero_after_the_others(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        raise failure

    monkeypatch.setattr(collate, "run", broken)
    monkeypatch.setattr(packing, "run", lambda: {"targets": [("fill", "0.9", ">= 0.995", "MISSED")]})
    monkeypatch.setattr("sys.argv", ["bench", "--here", "collate", "packing"])
    assert main.main() == 1
    said = capsys.readouterr()
    assert "missed: packing: fill (MISSED)\nbroken: collate" in said.out and type(failure).__name__ in said.err


def test_a_missed_target_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packing, "run", lambda: {"targets": [("fill", "0.9", ">= 0.995", "MISSED")]})
    monkeypatch.setattr("sys.argv", ["bench", "--here", "packing"])
    assert main.main() == 0 and "missed: packing: fill (MISSED)" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["bench", "nothing"])
    assert main.main() == 2 and "no such benchmark: nothing" in capsys.readouterr().out


@pytest.mark.parametrize("name", main.NAMES)
def test_every_benchmark_has_a_line_and_a_run(name: str) -> None:
    module = importlib.import_module(f"bench.{name}")
    assert callable(module.run) and (module.__doc__ or "").splitlines()[0]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def started(note: Path) -> str:
    """Code of a benchmark that hangs, after it has started a process and noted its id."""
    return f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(note)!r}).write_text(str(child.pid))
time.sleep(600)
"""


def wait_until(true: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < 60
        time.sleep(0.05)


def test_one_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert main.limited([sys.executable, "-c", started(note)], 6) == " (ended after 0.1 minutes)"
    wait_until(lambda: not alive(int(note.read_text())))


def test_nothing_is_left_when_the_command_itself_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        f"import sys; from bench import __main__ as main; main.limited([sys.executable, '-c', {started(note)!r}], 600)"
    )
    command = subprocess.Popen([sys.executable, "-c", code], cwd=main.HERE.parent)
    wait_until(lambda: note.exists() and note.read_text() != "")
    command.terminate()
    assert command.wait(60) == 143
    wait_until(lambda: not alive(int(note.read_text())))


@pytest.mark.parametrize(("code", "said"), [("", None), ("raise SystemExit(3)", " (exit code 3)")])
def test_the_end_of_a_process_is_what_it_says(code: str, said: str | None) -> None:
    assert main.limited([sys.executable, "-c", code], 60) == said


def test_the_targets_of_a_child_are_those_that_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(command: list[str], seconds: float) -> str | None:
        name = command[-1]
        if name == "packing":
            common.save(name, {"targets": [("fill", "0.9", ">= 0.995", "MISSED")]})
        return " (exit code 1)" if name == "tar" else None

    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(main, "limited", child)
    monkeypatch.setattr("sys.argv", ["bench", "--minutes", "2", "packing", "tar", "collate"])
    assert main.main() == 1
    said = capsys.readouterr().out
    assert "3 benchmarks, at most 6 minutes" in said
    assert "missed: packing: fill (MISSED)\nbroken: tar (exit code 1), collate (saved no result)" in said
