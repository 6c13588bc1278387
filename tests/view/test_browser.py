"""The viewer in a real browser: search, sort, tokens, players, narrow and dark screens, the keyboard, accessibility."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.codecs.audio import wav
from tests.view.conftest import AXE, XSS_TEXT, violations

DECODED = "Promise.all([...document.images].map(image => image.decode())).then(every => every.length)"
PLAYED = """player => new Promise((resolve, reject) => {
    player.addEventListener("ended", resolve);
    player.addEventListener("error", () => reject(player.error));
    player.muted = true;
    player.play().catch(reject);
})"""
FILES = ("store", "photos", "clips", "records.jsonl", "run.jsonl")
KINDS = (*FILES, "loader", "mixture")
# Beside the pages of the menu: two batches side by side, shares of ranks
MORE = {
    "store": ("/batch?step=1&other=0", "/plan?world=3"),
    "photos": ("/batch?step=1&seed=3",),
    "clips": (),
    "run.jsonl": (),
    "records.jsonl": ("/batch?other=1",),
    "loader": ("/data?q=pipe", "/batch?step=x"),
    "mixture": ("/plan?world=2",),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("targets")
    texts = [f"document {i} runs down the pipe\n" * (1 + i % 5) for i in range(30)]
    lines = [{"text": text, "source": "web" if i % 3 else "book", "lang": "en"} for i, text in enumerate(texts)]
    lines.append({"text": XSS_TEXT + "long " * 5000, XSS_TEXT: XSS_TEXT, "source": "web", "lang": "en"})
    (root / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "broken\n")
    command = ["prepare", "records.jsonl", "-t", "bytes", "-o", "store", "--on-error", "skip", "-q"]
    assert main([str(root / part) if part in ("records.jsonl", "store") else part for part in command]) == 0
    for kind in ("cat", "dog"):
        (root / "photos" / kind).mkdir(parents=True)
        for i in range(6):
            image.new("RGB", (60 + i, 40), (40 * i, 90, 200)).save(root / "photos" / kind / f"{i}.jpg")
    (root / "photos" / "dog" / (XSS_TEXT.replace("/", "_") + ".jpg")).write_bytes(b"\xff\xd8\xff\xe0 broken")
    (root / "clips").mkdir()
    for i in range(3):
        (root / "clips" / f"{i}.wav").write_bytes(wav.encode(0.5 * np.sin(np.arange(4000 + i) / (3 + i)), 8000))
    loader = ps.from_texts(texts).shuffle(seed=7).batch(4).to_numpy(threads=0)
    for _ in loader.write_snapshots(root / "run.jsonl", seconds=0.1):
        pass
    parts = [ps.from_arrays({"x": range(400)}), ps.from_arrays({"x": range(200)}).shuffle(seed=1)]
    mixture = ps.mix(parts, [3, 1], stop="all").batch(8)
    return {name: root / name for name in FILES} | {"loader": loader, "mixture": mixture}


@pytest.mark.parametrize("kind", KINDS)
def test_each_page_is_accessible_and_fits_a_narrow_screen(kind: str, targets, viewer, open_page) -> None:
    client = viewer(targets[kind], beside=targets["loader"] if kind == "mixture" else None)
    for scheme, width in (("light", 1000), ("dark", 420)):
        page = open_page(client.viewer.url, color_scheme=scheme, width=width, bypass_csp=True)
        links = page.locator("nav a").evaluate_all("links => links.map(link => link.href)")
        pages = ["run"] if kind == "run.jsonl" else ["data", "batch"]
        assert [link.rpartition("/")[2] for link in links[:2]] == pages
        for link in [*links, *(f"http://127.0.0.1:{client.viewer.port}{path}" for path in MORE[kind])]:
            if page.url != link:
                page.goto(link)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, link
            assert page.evaluate("window.alerted") is None
            assert violations(page, only=("color-contrast",) if scheme == "dark" else ()) == [], link
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")
        page.context.close()
    if AXE is None:
        pytest.skip("axe-core is not installed (make .venv/axe.done): accessibility was not checked")


def test_search_sort_and_tokens_answer_at_once(targets, viewer, open_page) -> None:
    page = open_page(viewer(targets["store"], window=64).viewer.url)
    page.fill("#q", "document 7 ")
    page.keyboard.press("Tab")  # leaving the field is the change; no button is needed
    page.wait_for_selector("text=searched all 31 documents: 1 found")
    assert page.locator("article").count() == 1 and page.locator("mark").count() > 0
    assert "q=document" in page.url
    page.fill("#q", "")
    page.select_option("#sort", "longest")
    page.wait_for_selector("article:first-of-type header:has-text('document 30')")
    page.goto(page.url.partition("?")[0])
    token = page.locator(".tokens .tok").nth(3)
    token.click()
    assert page.locator("output.token").first.inner_text() == "token 3: id 117, 'u'"
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("output.token").first.inner_text() == "token 4: id 109, 'm'"
    assert page.locator(".tokens").first.evaluate("box => getComputedStyle(box).outlineStyle") == "solid"
    page.fill("#window", "100")
    page.keyboard.press("Enter")
    page.wait_for_selector("text.cut-label:has-text('cut at 100 tokens')")
    page.locator("a[rel=next]").click()
    page.wait_for_selector("text=document 8,")


def test_images_load_and_a_clip_plays(targets, viewer, open_page) -> None:
    page = open_page(viewer(targets["photos"]).viewer.url)
    assert page.evaluate(DECODED) == 12
    assert page.locator("figcaption .bad").count() == 1  # the broken one says why
    page = open_page(viewer(targets["clips"]).viewer.url)
    assert page.evaluate(DECODED) == 6
    page.locator("audio").first.evaluate(PLAYED)
    assert page.locator("audio").first.evaluate("player => player.duration") == pytest.approx(0.5, abs=0.01)


def test_scripts_in_the_data_do_not_run(targets, viewer, open_page) -> None:
    page = open_page(viewer(targets["records.jsonl"]).viewer.url.replace("/?", "/data?at=25&"))
    assert page.locator("text=window.alerted").count() > 0 and page.evaluate("window.alerted") is None
    assert page.locator(".cut-here").count() > 0
    with pytest.raises(Exception, match="Content Security Policy"):
        page.add_script_tag(content="window.alerted = 1")


def test_another_site_gets_nothing(targets, viewer, open_page) -> None:
    client = viewer(targets["records.jsonl"])
    other = viewer(ps.from_texts(["another port of the same host, with our cookie"]))
    page = open_page(client.viewer.url)  # the browser has the cookie of both
    page.goto(other.viewer.url)
    page.wait_for_selector("main h1")
    address = f"http://127.0.0.1:{client.viewer.port}/data"
    answers = page.evaluate(
        """async (address) => {
            const tries = [fetch(address), fetch(address, {mode: "no-cors", credentials: "include"})];
            return (await Promise.allSettled(tries)).map(one => one.status + " " + (one.value ? one.value.type : ""));
        }""",
        address,
    )
    assert all(answer.startswith("rejected") for answer in answers), answers
