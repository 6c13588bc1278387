"""Run and Plan pages and the report in a real browser: they renew themselves, fit, ask nobody else, and pass axe."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.view.run_facts import run_paths
from tests.view.look import ROOT, browser

pytestmark = pytest.mark.skipif(browser() is None, reason="no browser on this machine (apt-get install chromium)")
pytest.importorskip("playwright", reason="playwright is not installed: no browser tests")

CHANGED = """async () => {
  const step = () => document.querySelector("#run .tiles").textContent, first = step();
  while (step() === first) await new Promise((ready) => setTimeout(ready, 50));
  return [first, step()];
}"""
TEXT = "() => document.querySelector('main').textContent"


def start(url: str, script: str, width: int = 1000, scheme: str = "light") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.view.look", url, str(width), scheme, script]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def look(url: str, script: str, width: int = 1000, scheme: str = "light") -> dict:
    with start(url, script, width, scheme) as process:
        out, _ = process.communicate(timeout=120)
    found = json.loads(out)
    assert found["errors"] == [] and found["width"] <= width
    assert not found["axe"], found["axe"]
    return found


def test_the_run_page_renews_itself_while_a_loader_writes(viewer, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = ps.from_arrays({"x": range(100)}).map(dict).repeat().batch(4).to_numpy(threads=1)
    run = iter(loader.write_snapshots(path, seconds=0.1))
    next(run)
    while not run_paths(str(path)):
        time.sleep(0.01)
    client = viewer(path)
    with start(f"{client.viewer.url} http://127.0.0.1:{client.viewer.port}/run", CHANGED) as process:
        while process.poll() is None:
            next(run)
            time.sleep(0.002)
        found = json.loads(process.stdout.read())
    run.close()
    before, after = found["result"]
    assert before != after and "rows/s" in after
    assert found["errors"] == [] and not found["axe"], found
    assert all(f"//127.0.0.1:{client.viewer.port}/" in url for url in found["asked"])


def test_the_plan_page_shows_the_counts(viewer, open_page) -> None:
    sources = [ps.from_arrays({"x": range(400)}), ps.from_arrays({"x": range(200)}).shuffle(seed=1)]
    pipeline = ps.mix(sources, [3, 1], stop="all").batch(8)
    viewed = viewer(pipeline).viewer
    page = open_page(viewed.url, width=420, color_scheme="dark")
    page.goto(f"http://127.0.0.1:{viewed.port}/plan?world=2")
    shown = page.evaluate(TEXT)
    assert f"{len(pipeline.to_numpy()):,} batches" in shown and "rank 1: 4 rows" in shown


def test_a_report_opened_from_a_file_asks_nobody(tmp_path: Path) -> None:
    texts, recorded, out = tmp_path / "a.jsonl", tmp_path / "run.jsonl", tmp_path / "r.html"
    lines = [json.dumps({"text": f"{n} <img src=http://evil.example/{n}> words"}) for n in range(60)]
    texts.write_text("\n".join(lines) + "\n")
    list(ps.read_jsonl(str(texts)).batch(4).to_numpy().write_snapshots(recorded))
    assert main(["report", str(texts), "--out", str(out), "--run", str(recorded), "--batch", "4"]) == 0
    found = look(f"file://{out}", TEXT, 420, "light")
    assert found["asked"] == [f"file://{out}"] and "evil.example" in found["result"]
    assert "15 batches" in found["result"] and "run.jsonl: ended" in found["result"]
