"""`penstock peek NAME`: datasets by name."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

import penstock as ps
from penstock.cli.main import main


def test_a_registered_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    ps.register_dataset("peek-words", lambda: [{"text": "one"}, {"text": "two"}])
    assert main(["peek", "peek-words", "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert "peek-words, row 0" in out
    assert "one" in out
    assert "two" not in out


def test_a_saved_hf_dataset_by_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_dict({"text": ["a b", "c"], "n": [1, 2]}).save_to_disk("saved")
    ps.register_dataset("peek-saved", lambda: datasets.load_from_disk(str(tmp_path / "saved")))
    assert main(["peek", "peek-saved", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["records"]
    assert [r["record"]["text"] for r in rows] == ["a b", "c"]


def test_a_name_that_is_nowhere_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert main(["peek", "no-such-dataset-anywhere"]) == 1
    said = capsys.readouterr().err
    assert "registered datasets" in said
    assert "no-such-dataset-anywhere" in said
