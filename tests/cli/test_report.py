"""`penstock report`: one file, nothing in it but what we wrote, whatever the documents say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.markup.charts import histogram, log_bins, summary
from penstock.markup.pictures import charts_of

XSS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "</pre><script>alert(4)</script>",
    "</style><script>alert(5)</script>",
    "</title><body onload=alert(6)>",
    "<!-- --><script>alert(7)</script>",
    "]]><script>alert(8)</script>",
    "<iframe src=javascript:alert(9)></iframe>",
    "<a href='javascript:alert(10)'>x</a>",
    "<math><mtext><img src=1 onerror=alert(11)></mtext></math>",
    "<template><script>alert(12)</script></template>",
    "<style>@import 'http://evil.example/13.css';</style>",
    "<link rel=stylesheet href=http://evil.example/14.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/15'>",
    "<base href=http://evil.example/16>",
    "<object data=http://evil.example/17></object>",
    "<scr\x00ipt>alert(18)</scr\x00ipt>",
    "\x1b]8;;http://evil.example/19\x07click\x1b]8;;\x07<b>",
    "\u202e<script>alert(20)</script>\u2066",
]

TAGS = set(
    re.findall(
        r"\S+",
        "html head meta title style body main h1 h2 p div b span section table tr th td svg g rect text line article "
        "header pre footer h3 thead tbody details summary ol li small output",
    )
)
ATTRIBUTES = set(
    re.findall(
        r"\S+",
        "lang charset http-equiv content name class viewbox role aria-label x y x1 x2 y1 y2 width height rx "
        "id scope for title tabindex data-at data-to",
    )
)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def read(path: Path) -> tuple[str, Reader]:
    html = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(html)
    reader.close()
    return html, reader


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "<img src=x onerror=alert(0)>.jsonl"
    lines = [json.dumps({"text": text}) for text in XSS]
    path.write_text("\n".join([*lines, '{"<script>": 1}', "<script>alert(21)</script>"]) + "\n")
    return path


def only_ours(path: Path) -> Reader:
    html, reader = read(path)
    assert reader.tags <= TAGS, reader.tags - TAGS
    assert reader.attributes <= ATTRIBUTES, reader.attributes - ATTRIBUTES
    for text in XSS:
        assert text not in html, text
    assert not re.search(r"(src|href|url|action|data)\s*=", re.sub(r">[^<]*<", "><", html))
    assert "url(" not in html
    assert "@import" not in re.sub(r"<body>.*", "", html, flags=re.S)
    assert 'content="default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;"' in html
    assert html.index("Content-Security-Policy") < html.index("<title>")
    assert all(c.isprintable() or c == "\n" for c in html)
    return reader


def test_hostile_documents_stay_text(run: Any, hostile: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    ran = run("report", hostile, "--out", out, "--samples", 100, "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["documents"] == len(XSS)
    assert ran.json()["skipped"] == 2
    reader = only_ours(out)
    for n in range(1, 21):  # every one is there, as text
        assert f"alert({n})" in reader.text or f"/{n}" in reader.text, n
    assert "2 records were skipped" in reader.text


def test_a_hostile_store_with_skipped_records(run: Any, hostile: Path, tmp_path: Path) -> None:
    store, out = tmp_path / "<script>store", tmp_path / "r.html"
    assert run("prepare", hostile, "-t", "bytes", "-o", store, "--on-error", "skip", "-q").code == 0
    assert run("report", store, "--out", out, "--samples", 100, "--length", 16, "--batch", 4).code == 0
    reader = only_ours(out)
    assert "alert(12)" in reader.text
    assert "skipped" in reader.text
    assert "A training run with windows of 16 tokens and batches of 4" in reader.text


def test_a_store_that_lies_in_its_list_of_skipped(run: Any, store: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(store, tmp_path / "s")
    for content in (
        '{"skipped": "<b>"}',
        "[]",
        '{"skipped": 1, "reasons": {"<script>": 1}}\n{"file": "<script>"}',
        "\xff",
    ):
        (tmp_path / "s" / "skipped.jsonl").write_text(content, encoding="latin-1")
        assert run("report", tmp_path / "s", "--out", tmp_path / "r.html").code == 0
        only_ours(tmp_path / "r.html")


def test_figures_of_a_store(run: Any, store: Path, texts: list[str], tmp_path: Path) -> None:
    run("report", store, "--out", tmp_path / "r.html", "--samples", 3)
    _, reader = read(tmp_path / "r.html")
    tokens = sum(len(t.encode()) + 1 for t in texts)
    assert f"{tokens:,}" in reader.text
    assert texts[0] in reader.text
    again = tmp_path / "again.html"
    run("report", store, "--out", again, "--samples", 3)
    assert again.read_bytes() == (tmp_path / "r.html").read_bytes(), "the same data gives the same page"
    run("report", store, "--out", again, "--samples", 3, "--seed", 1)
    assert again.read_bytes() != (tmp_path / "r.html").read_bytes()


def test_a_store_too_small_for_the_plan_says_so(run: Any, store: Path, tmp_path: Path) -> None:
    assert run("report", store, "--out", tmp_path / "r.html", "--length", 10**6).code == 0
    assert "expected at least 1000001 tokens" in read(tmp_path / "r.html")[1].text


def test_bins_count_every_length_once() -> None:
    lengths = np.concatenate([np.arange(70), [2**40, 2**40 - 1]])
    for low, high, count in log_bins(lengths):
        assert count == int(((lengths >= low) & (lengths <= high)).sum())
    assert sum(count for _, _, count in log_bins(lengths)) == len(lengths)
    assert log_bins(np.array([], np.int64)) == []
    assert histogram(np.array([], np.int64), "tokens") == ""
    assert histogram(lengths, "tokens").count('class="bar"') == len(log_bins(lengths))
    assert dict(summary(np.array([1, 2, 3, 4])))["mean"] == 2.5


def test_the_plan_a_batch_and_a_run_are_those_of_the_loader(run: Any, store: Path, tmp_path: Path) -> None:
    out, recorded = tmp_path / "r.html", tmp_path / "run.jsonl"
    pipeline = ps.open_store(store).windows(16).shuffle(seed=3).batch(4)
    loader = pipeline.to_numpy(threads=0)
    list(loader.write_snapshots(recorded))
    ran = run("report", store, "--out", out, "--length", 16, "--batch", 4, "--seed", 3, "--step", 2, "--run", recorded)
    assert ran.code == 0, ran.err
    html, reader = read(out)
    assert f"{len(loader):,} batches" in reader.text and "The batch of step 2" in reader.text
    assert f"record {loader.why(2, 0)['record']:,}" in reader.text or str(loader.why(2, 0)["record"]) in reader.text
    assert "run.jsonl: ended" in reader.text and "Seconds of each step of the pipeline" in reader.text
    assert not re.search(r"<script|https?://(?!www.w3.org)", html)
    assert run("report", recorded, "--out", out).code == 0 and "Verdict" in read(out)[1].text
    missing = run("report", store, "--out", out, "--run", store)
    assert missing.code == 1 and "write_snapshots" in missing.err


def test_figures_are_written_as_pictures(run: Any, store: Path, tmp_path: Path) -> None:
    from PIL import Image

    recorded, folder = tmp_path / "run.jsonl", tmp_path / "png"
    with recorded.open("w") as file:
        for n in range(9):
            line = {"penstock_run": 1, "id": "a", "time": n, "seconds": n, "rows": n * n, "verbs": {"map": 1.0}}
            file.write(json.dumps(line) + "\n")
    ran = run("report", store, "--out", tmp_path / "r.html", "--run", recorded, "--png", folder, "--json",
              "--length", 16, "--batch", 4)  # fmt: skip
    assert ran.code == 0, ran.err
    names = sorted(path.name for path in folder.iterdir())
    assert ran.json()["pictures"] == len(names) == len(charts_of((tmp_path / "r.html").read_text())) >= 5
    for name in names:
        with Image.open(folder / name) as picture:
            assert picture.width > 1700 and len(picture.convert("RGB").getcolors(1 << 20)) > 8, name
    line = next(svg for name, svg in charts_of((tmp_path / "r.html").read_text()) if "throughput" in name)
    assert 'viewBox="0 0 1000 1000"' not in line and "<polyline" in line


def test_folders_of_media_and_configurations_are_reported(run: Any, tmp_path: Path) -> None:
    from PIL import Image

    for n in range(3):
        (tmp_path / "img" / "<b>cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (90 * n, 0, 99)).save(tmp_path / "img" / "<b>cat" / f"{n}.png")
    out = tmp_path / "r.html"
    assert run("report", tmp_path / "img", "--out", out).code == 0
    html = out.read_text()
    assert "Classes" in html and "0.png" in html  # the survey of the viewer's Data page
    assert html.count('src="data:image/png;base64,') >= 3 and "img-src data:;" in html and "<b>cat" not in html
    config = tmp_path / "pipeline.json"
    config.write_text('{"source": {"from_texts": {"texts": ["one <i>", "two"]}}, "steps": [{"batch": {"size": 2}}]}')
    ran = run("report", config, "--out", out)
    assert ran.code == 0, ran.err
    assert "1 batches" in read(out)[1].text and "one <i>" in read(out)[1].text
