"""The Data page shows what is in each kind of target, safely and without scanning."""

from __future__ import annotations

import io
import json
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.codecs.audio import wav
from penstock.view import samples as samples_module
from penstock.view.search import RECORDS as SEARCHED
from tests.cli.test_report import XSS

PIL = pytest.importorskip("PIL.Image")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(client: Any, path: str = "/data") -> Reader:
    """The page as a parser sees it: our own elements and addresses only, whatever the data says."""
    answer = client.get(path)
    assert answer.status == 200, answer.text
    reader = Reader()
    reader.feed(answer.text)
    assert reader.tags.count("script") == 1 and "iframe" not in reader.tags and "style" not in reader.tags
    for name, value in reader.attributes:
        assert not name.startswith("on") and name != "style", name
        if name in ("src", "href", "action"):
            assert value.startswith(("/data", "/static/", "?")) or value in ("/batch", "/plan", "/run"), value
    assert "<section" not in reader.text and "&lt;" not in reader.text  # nothing of ours was escaped twice
    return reader


def picture(side: int = 8, colour: tuple[int, int, int] = (200, 30, 30), **save: Any) -> bytes:
    file = io.BytesIO()
    PIL.new("RGB", (side, side // 2), colour).save(file, "JPEG", **save)
    return file.getvalue()


def tone(seconds: float = 0.25) -> bytes:
    return wav.encode(0.5 * np.sin(np.arange(int(8000 * seconds)) / 5), 8000)


def test_hostile_texts_names_and_headers_stay_text(viewer, tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, text: ["nested", {text: text}], "lang": text}) for text in XSS]
    file = tmp_path / "<img src=x onerror=alert(0)>.jsonl"
    file.write_text("\n".join([*lines, "<script>alert(21)</script>"]) + "\n")
    client = viewer(file)
    for path in ("/data", "/data?at=10", "/data?at=20", "/data?q=" + quote("<script>"), "/data?sort=longest",
                 "/data?q=" + quote(XSS[3]) + "&sort=" + quote(XSS[2]), "/data?window=" + quote(XSS[0])):  # fmt: skip
        seen(client, path)
    first = seen(client)
    assert "<script>alert(1)</script>" in first.text and "onerror=alert(0)" in first.text
    assert "1: expected valid JSON" in first.text  # the bad line, with its reason
    photos = tmp_path / "photos" / "<b>class"
    photos.mkdir(parents=True)
    exif = PIL.Exif()
    exif[0x010E] = "</figure><script>alert(22)</script>"
    (photos / '"><svg onload=alert(3)>.jpg').write_bytes(picture(exif=exif))
    client = viewer(tmp_path / "photos")
    assert "onload=alert(3)" in seen(client).text
    thumb = client.get("/data/image?n=0")
    assert (
        thumb.headers["content-type"] == "image/jpeg" and b"alert(22)" not in thumb.body and b"Exif" not in thumb.body
    )


def test_huge_records_are_cut_and_wrong_encodings_are_reasons(viewer, tmp_path: Path) -> None:
    records = [json.dumps({"text": "x" * 3_000_000}).encode(), b'{"text": "caf\xe9"}', b'{"text": "fine"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(records) + b"\n")
    answer = viewer(tmp_path / "a.jsonl").get("/data")
    assert len(answer.body) < 100_000
    assert "2,000 of 3,000,000 characters are shown" in answer.text
    assert "UTF-8" in answer.text and "fine" in answer.text and "line 2" in answer.text
    (tmp_path / "latin.txt").write_bytes("süß\nplain\n".encode("latin-1"))
    text = seen(viewer(tmp_path / "latin.txt")).text
    assert "plain" in text and "UTF-8" in text


def test_a_token_store_shows_tokens_lengths_and_the_cut(viewer, tmp_path: Path) -> None:
    texts = ["ab\n", "ab\n", "naïve <b>", "x" * 600]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts) + "\nbroken\n")
    command = ["prepare", "a.jsonl", "-t", "bytes", "-o", "store", "--on-error", "skip", "-q"]
    assert main([str(tmp_path / part) if part in ("a.jsonl", "store") else part for part in command]) == 0
    client = viewer(tmp_path / "store", window=8)
    page = client.get("/data").text
    found = re.findall(r'class="tok" title="token (\d): id (\d+), &#x27;(.)', page)
    assert found[:2] == [("0", "97", "a"), ("1", "98", "b")]
    text = seen(client).text
    assert "ab↵" in text and "400 of 601 tokens are shown" in text
    assert "cut at 8 tokens: 2 documents are longer" in text
    assert "cut at 500 tokens: 1 document is longer" in seen(client, "/data?window=500").text
    assert "1 exact duplicate " in text and "all 4 were looked at" in text
    assert "1 record skipped when the store was made" in text
    assert "searched all 4 documents: 1 found" in seen(client, "/data?q=" + quote("NAÏVE")).text
    assert seen(client, "/data?sort=longest").text.index("document 3") < seen(client, "/data?sort=longest").text.index(
        "document 0"
    )


def test_records_are_paged_sorted_searched_and_summed_up(viewer, tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(SEARCHED + 500)]
    records = ps.from_records([{"text": name, "lang": "de" if i % 4 else "en", "n": i} for i, name in enumerate(names)])
    client = viewer(records)
    text = seen(client).text
    assert f"{len(names):,}" in text and "name 9" in text and "name 10" not in text
    assert "name 3499" in seen(client, "/data?at=3499").text
    assert "Languages (lang)" in text and "Values of n" not in text
    assert re.search(r"600 of 3,500 were looked at \(17%\)", text)
    late = seen(client, "/data?q=name%203400").text  # beyond what one search looks at
    assert "searched records 0 to 2,999 of 3,500: 0 found" in late and "search on from 3,000" in late
    assert "name 3400" in seen(client, "/data?q=name%203400&from=3000").text
    assert "name 0" in seen(client, "/data?sort=shortest").text
    assert client.get("/data?at=99999999999999999999&from=-1&sort=%00&window=0x").status == 200


def test_files_folders_shards_and_saved_datasets(viewer, tmp_path: Path) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"caption": f"picture {i}", "label": i % 2} for i in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("caption,label\n" + "".join(f"picture {i},{i % 2}\n" for i in range(30)))
    labels = datasets.ClassLabel(names=["tabby", "hound"])
    features = datasets.Features({"caption": datasets.Value("string"), "label": labels})
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "hf"))
    for name in ("a.parquet", "a.csv", "hf"):
        text = seen(viewer(tmp_path / name)).text
        assert "picture 9" in text and "Values of label" in text, name
        assert ("tabby" in text) == (name == "hf")
    source = f'[source.read_parquet]\npaths = "{tmp_path}/a.parquet"\n'
    (tmp_path / "plan.toml").write_text(source + "[[steps]]\nbatch = {size = 4}\n")
    assert "picture 9" in seen(viewer(tmp_path / "plan.toml")).text
    (tmp_path / "code.toml").write_text(source + '[[steps]]\nmap = {function = {function = "os:getcwd"}}\n')
    with pytest.raises(ps.PenstockError, match="allow_functions"):
        viewer(tmp_path / "code.toml")
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for i in range(3):
            for end, data in (("jpg", picture()), ("wav", tone()), ("txt", f"caption {i}".encode())):
                info = tarfile.TarInfo(f"key{i}.{end}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    client = viewer(tmp_path / "s.tar")
    assert "caption 2" in seen(client).text and not list(tmp_path.glob("s.tar?*"))
    assert client.get("/data/image?n=1&f=jpg").body.startswith(b"\xff\xd8")
    assert client.get("/data/sound?n=1&f=wav").body.startswith(b"RIFF")
    for path in ("/data/image?n=1&f=txt", "/data/image?n=1&f=none", "/data/image?n=9&f=jpg", "/data/sound?n=1&f=jpg"):
        assert client.get(path).status == 400, path


def test_images_and_recordings(viewer, tmp_path: Path) -> None:
    for kind, count in (("cat", 3), ("dog", 1)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "photos" / kind / f"{i}.jpg").write_bytes(picture(400 + i, (0, 80 * i, 0)))
    (tmp_path / "photos" / "dog" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no")
    client = viewer(tmp_path / "photos")
    text = seen(client).text
    assert "Classes" in text and "400 × 200" in text and "Bad images" in text and "1: expected an image" in text
    with PIL.open(io.BytesIO(client.get("/data/image?n=0").body)) as small:
        assert small.size == (240, 120)
    assert client.get("/data/image?n=4").status == 400 and client.get("/data?q=dog/").status == 200
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.wav").write_bytes(tone(0.25))
    (tmp_path / "clips" / "b.wav").write_bytes(tone(2.0))
    client = viewer(tmp_path / "clips")
    assert "0.25 seconds" in seen(client).text
    whole = client.get("/data/sound?n=0")
    assert whole.headers["accept-ranges"] == "bytes" and len(whole.body) == 44 + 2 * 2000
    part = client.get("/data/sound?n=0", Range="bytes=10-19")
    assert part.status == 206 and part.body == whole.body[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.body)}"
    assert client.get("/data/sound?n=0", Range="bytes=-4").body == whole.body[-4:]
    assert client.get("/data/sound?n=0", Range="bytes=9999999-").status == 416
    for name in ("wave", "mel"):
        with PIL.open(io.BytesIO(client.get(f"/data/{name}?n=1").body)) as shown:
            assert shown.width >= 160 and len(np.unique(np.asarray(shown.convert("RGB")))) > 1


def test_large_files_are_read_from_the_front(viewer, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(8000)))
    monkeypatch.setattr(samples_module, "FRONT_BYTES", 1000)
    text = seen(viewer(tmp_path / "a.jsonl")).text
    assert "the first 5,000 records of" in text and "larger files are not scanned" in text and "line 9" in text


def test_an_endless_mixture_shows_its_first_rows(viewer) -> None:
    mixed = ps.mix([ps.from_texts(["one"] * 9), ps.from_texts(["other"] * 9)], [1, 1], seed=7).shuffle(seed=1).batch(4)
    text = seen(viewer(mixed)).text
    assert "one" in text and "other" in text and "5,000" in text


def test_a_loader_is_only_looked_at(viewer) -> None:
    loader = ps.from_texts([f"text {i}" for i in range(20)]).shuffle(seed=7).batch(4).to_numpy(threads=0)
    before = loader.state_dict()
    assert "text 7" in seen(viewer(loader)).text
    assert loader.state_dict() == before
    with loader.view(browser=False) as viewed, ps.from_texts(["a"]).view(browser=False) as other:
        assert viewed.session.loader is loader and viewed.port != other.port


def test_records_show_token_boundaries(viewer, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["né <b>", "x" * 5000, "", "three tokens"]
    records = [{"text": text, "note": "also text", "number": i} for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + '{"text": "\\ud800"}\n')
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("né <b>\nline two\n")
    for name, fields in (("a.jsonl", 2), ("a.parquet", 2), ("a.txt", 1)):
        page = seen(viewer(tmp_path / name, tokenizer="bytes"))
        titles = [value for attribute, value in page.attributes if attribute == "title" and value.startswith("token ")]
        assert titles[:3] == ["token 0: id 110, 'n'", "token 1: id 195, ''", "token 2: id 169, 'é'"], name
        assert "7 tokens" in page.text and ("9 tokens" in page.text) == (fields == 2)
        assert len(titles) < 2200  # of 5,000 characters the first 2,000
    page = seen(viewer(tmp_path / "a.jsonl", tokenizer="bytes", field="text"), "/data?q=three")
    assert page.text.count("12 tokens") == 1 and "mark" in page.tags and "9 tokens" not in page.text
    assert "tok" not in [value for _, value in seen(viewer(tmp_path / "a.jsonl")).attributes]
