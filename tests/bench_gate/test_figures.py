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
    run = f"{saved['date']}, {saved['machine']['id']}"
    assert f"| growth | x | 1 | <= 2 | met | {run} |" in (tmp_path / "measured.md").read_text()


def test_benchmarks_that_were_not_run_keep_their_rows_and_curves(results: Path, tmp_path: Path) -> None:
    page, drawn = tmp_path / "measured.md", tmp_path / "growth.svg"
    first = common.curve("first & only", "us", {10: 1.0, 100: 10.0})
    common.save("growth", {"curves": [first], "targets": [common.judge("a | b", 1, 2, most=True)]})
    figures.run()
    (results / "growth.json").unlink()
    again = common.curve("second", "us", {10: 1.0, 100: 10.0})
    common.save("mixtures", {"curves": [again], "targets": [common.judge("y", 3, 2, most=True)]})
    figures.run()
    assert "first &amp; only" in drawn.read_text() and "second" in drawn.read_text()
    assert r"| growth | a \| b | 1 | <= 2 | met |" in page.read_text() and "| mixtures | y | 3 |" in page.read_text()
    assert "Of 2 targets 1 were met and 1 missed." in (tmp_path / "README.md").read_text()
    common.save("mixtures", {"curves": [again], "targets": [common.judge("z", 3, 2)]})
    figures.run()
    assert "| mixtures | y |" not in page.read_text() and drawn.read_text().count(">second<") == 1


def test_missing_peers_and_faults_are_in_the_page(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "measured.md"
    common.left_out("DALI", "no environment has it")
    common.save("images", {"targets": [common.unmeasured("times DALI", 1.15, "neither runs")]})
    common.save("faults", {"faults": {"dead worker": {"penstock": ["WorkerDied: a | b", 2.6]}}, "targets": []})
    figures.run()
    assert "| images | DALI | no environment has it |" in page.read_text()
    assert "| images | times DALI | - | >= 1.15 | NOT MEASURED: neither runs |" in page.read_text()
    assert r"| dead worker | WorkerDied: a \| b, 3 s | not tried |" in page.read_text()
    readme = (tmp_path / "README.md").read_text()
    assert "Of 1 targets 0 were met and 0 missed; 1 were not measured." in readme
    common.save("images", {"targets": [common.judge("times DALI", 2, 1.15)]})
    figures.run()
    assert "no environment has it" not in page.read_text()


def test_the_readme_has_a_few_figures_and_a_chart(results: Path, tmp_path: Path) -> None:
    judged = [common.judge("state, bytes", 180, 1024, most=True), common.judge("other", 3, 2, most=True)]
    common.save("start", {"targets": judged})
    common.save("windows", {"targets": [], "mtokens": {"bare gather": 1000.0, "penstock": 800.0, "<other>": 90.0}})
    figures.run()
    readme = (tmp_path / "README.md").read_text()
    assert "| state for a checkpoint, bytes | 180 | <= 1024 | met | 2" in readme and "other" not in readme
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
