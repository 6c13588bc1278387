"""`python -m bench.figures`: results of two machines are not mixed silently, curves become a well-formed picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import common, figures


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (common, figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(figures, "README", tmp_path / "README.md")
    monkeypatch.setattr(figures, "CURVES", tmp_path / "growth.svg")
    monkeypatch.setattr(figures, "PAGE", tmp_path / "measured.md")
    monkeypatch.setattr(figures, "CHART", tmp_path / "windows.svg")
    for name in ("README.md", "measured.md"):
        (tmp_path / name).write_text("# a\n<!-- bench:begin -->\n<!-- bench:end -->\n")
    return tmp_path / "results"


def test_curves_and_targets_are_written(results: Path, tmp_path: Path) -> None:
    made = common.curve("open <a> & b, per file", "us", {10: 1.0, 100: 10.0, 1000: 100.0}, "1 us")
    assert made["exponent"] == 1.0
    common.save("growth", {"curves": [made, made], "targets": [common.judge("x", 1, 2, most=True)]})
    saved = json.loads((results / "growth.json").read_text())
    assert saved["machine"]["cpus"] >= 1 and saved["machine"]["id"]
    figures.run()
    picture = ElementTree.fromstring((tmp_path / "growth.svg").read_text())
    texts = [element.text or "" for element in picture.iter() if element.tag.endswith("text")]
    assert texts.count("open <a> & b, per file") == 2
    assert "us, grows as n^1.00, goal: 1 us" in texts and any(saved["machine"]["id"] in text for text in texts)
    assert "| growth | x | 1 | <= 2 | met |" in (tmp_path / "measured.md").read_text()


def test_the_readme_has_a_few_figures_and_a_chart(results: Path, tmp_path: Path) -> None:
    judged = [common.judge("state, bytes", 180, 1024, most=True), common.judge("other", 3, 2, most=True)]
    common.save("start", {"targets": judged})
    common.save("windows", {"targets": [], "mtokens": {"bare gather": 1000.0, "penstock": 800.0, "<other>": 90.0}})
    figures.run()
    readme = (tmp_path / "README.md").read_text()
    assert "| state for a checkpoint, bytes | 180 | <= 1024 | met |" in readme and "other" not in readme
    assert "Of 2 targets 1 were met and 1 missed." in readme
    picture = ElementTree.fromstring((tmp_path / "windows.svg").read_text())
    widths = [float(e.attrib["width"]) for e in picture.iter() if e.tag.endswith("rect")]
    assert widths[1] == pytest.approx(0.8 * widths[0], abs=0.1)
    assert "<other>" in [e.text for e in picture.iter() if e.tag.endswith("text")]
    figures.run()  # once more: the figures that are there stay
    assert (tmp_path / "README.md").read_text() == readme


def test_results_of_two_machines_are_not_mixed_silently(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common.save("growth", {"targets": []})
    other = json.loads((results / "growth.json").read_text())
    other["machine"]["id"] = "another"
    (results / "windows_elsewhere.json").write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="results of 2 machines are not mixed"):
        figures.run()
    assert not (tmp_path / "growth.svg").exists()
    figures.run(mixed=True)
    assert "results of 2 machines" in capsys.readouterr().out
