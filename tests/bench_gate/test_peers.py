"""Peers in environments of their own: found, called in a child process, and named when they are missing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from bench import common, peers, windows


def test_a_peer_answers_calls_until_it_is_closed() -> None:
    with peers.Peer(sys.executable, "bench.common:exponent") as exponent:
        assert exponent([10, 100], [1, 10]) == pytest.approx(1)
        assert exponent([10, 100], [3, 3]) == pytest.approx(0)
    assert exponent.process.returncode == 0


def test_a_peer_that_fails_says_what_failed() -> None:
    failed = pytest.raises(peers.PeerFailed, match="bench.common:exponent: ZeroDivisionError")
    with peers.Peer(sys.executable, "bench.common:exponent") as exponent, failed:
        exponent([10], [1])


def test_a_peer_that_does_not_answer_is_ended() -> None:
    with peers.Peer(sys.executable, "time:sleep", timeout=0.2) as sleep:
        with pytest.raises(peers.PeerFailed, match=r"no answer in 0.2 s"):
            sleep(3600)
        sleep.patience = 0.1
    assert sleep.process.returncode == -9


def test_an_interpreter_is_found_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conflicting_peer.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PENSTOCK_PEERS", os.pathsep.join([str(tmp_path / "missing"), str(python)]))
    assert peers.python_with("json") == sys.executable
    assert peers.python_with("conflicting_peer") == str(python)


def test_a_missing_peer_is_printed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "HOME", tmp_path)
    assert peers.python_with("no_such.module", "Some Peer") is None
    assert "left out: Some Peer: no environment has it" in capsys.readouterr().out
    common.save("one", {})
    common.save("two", {})
    assert list(json.loads((tmp_path / "one.json").read_text())["left out"]) == ["Some Peer"]
    assert json.loads((tmp_path / "two.json").read_text())["left out"] == {}


def test_windows_run_without_grain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(windows, "TOKENS", 200_000)
    monkeypatch.setattr(windows, "find_spec", lambda name: None)
    targets = windows.run(seconds=0.02, count=1)["targets"]
    assert targets[0][0] == windows.BEST and targets[0][3].startswith("NOT MEASURED: without grain")
    assert "left out: grain: it is not installed" in capsys.readouterr().out
