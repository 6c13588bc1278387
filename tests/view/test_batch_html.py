"""A batch as HTML: all of the batch is there, hostile data is text, pictures and sounds are the delivered ones."""

from __future__ import annotations

import base64
import io
import re
import wave
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from PIL import Image

import penstock as ps
from penstock.view.batch_html import batch_html
from penstock.view.batches import batch_alone, batch_of

EVIL = "</span><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u202e\x1b[31m"


class Page(HTMLParser):
    """The tokens and elements of a page, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[str] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        if "tok" in (named.get("class") or "").split():
            self._inside = True
            self.tokens.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "span"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tokens[-1] += data


def test_the_tokens_of_the_page_are_those_of_the_batch() -> None:
    texts = [f"document {i}: a river & <b>mill</b>" for i in range(30)]
    pipeline = ps.from_texts(texts).tokenize("bytes", show_progress=False).pack(128).shuffle(seed=7).batch(2)
    page = Page(batch_html(batch_of(pipeline, 1)))
    batch = pipeline.to_numpy().batch_at(1)
    real = batch["input_ids"][batch["segment_ids"] > 0]
    assert len(page.tokens) == len(real)
    shown = "".join(page.tokens).replace("<eos>", "")
    assert shown == bytes(i for i in real.tolist() if i < 256).decode()
    titles = [named["title"] or "" for tag, named in page.tags if "tok" in (named.get("class") or "").split()]
    assert [int(re.findall(r"id (\d+)", title)[0]) for title in titles] == real.tolist()


def test_hostile_texts_names_and_columns_are_text(tmp_path: Path) -> None:
    root = tmp_path / "a<script>x"
    root.mkdir()
    (root / "1<img src=x onerror=y>.jsonl").write_text(
        '{"text": "' + EVIL.replace("\\", "").replace('"', "").replace("\x1b", "") + '"}\n'
    )
    lines = ps.read_jsonl(str(root)).batch(1)
    packed = ps.read_jsonl(str(root)).tokenize("bytes", show_progress=False).pack(256).batch(1)
    alone = batch_alone({EVIL: np.array([EVIL], object), "input_ids": np.array([[1, 2]])})
    for shown in (batch_of(lines), batch_of(packed), alone):
        html = batch_html(shown)
        tags = Page(html).tags
        assert not {"script", "iframe", "object"} & {tag for tag, _ in tags}
        assert not [a for _, named in tags for a in named if a.startswith("on") or a == "style"]
        assert not [n for tag, n in tags if tag == "img"]
        assert "\u202e" not in html and "\x1b" not in html
    assert "&lt;script&gt;" in batch_html(batch_of(lines))


def test_pictures_are_lossless_and_sounds_play() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), np.uint8)
    tone = np.stack([np.sin(np.arange(800) / 5), np.zeros(800)]).astype(np.float32)
    page = Page(batch_html(batch_alone({"image": pixels, "audio": tone, "sample_rate": np.array([8000, 8000])})))
    images = [named["src"] or "" for tag, named in page.tags if tag == "img"]
    for source, wanted in zip(images, pixels, strict=True):
        assert source.startswith("data:image/png;base64,")
        found = np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))
        assert np.array_equal(found, wanted)
    sounds = [named["src"] or "" for tag, named in page.tags if tag == "audio"]
    with wave.open(io.BytesIO(base64.b64decode(sounds[0].partition(",")[2]))) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (8000, 800, 1)
        samples = np.frombuffer(file.readframes(800), "<i2") / 32767
    assert np.abs(samples - tone[0]).max() < 1e-4


def test_what_is_cut_is_marked() -> None:
    shown = batch_alone({"input_ids": np.ones((1, 5000), np.int64), "note": np.array(["x" * 3000], object)})
    html = batch_html(shown)
    assert "3,976 more tokens" in html and "3,000 characters" in html and "as ids" in html


def test_every_row_says_why() -> None:
    pipeline = ps.from_texts(["one river", "two mills", "three"]).tokenize("bytes", show_progress=False)
    html = batch_html(batch_of(pipeline.windows(4).shuffle(seed=3).batch(2), 1))
    page = Page(html)
    assert [named["id"] for tag, named in page.tags if tag == "details" and named.get("class") == "why"] == [
        "a-why-0",
        "a-why-1",
    ]
    assert "from its token" in html and "row of the run" in html
