"""The viewer with data as people have it: notes beside pictures, damaged files, records with fields of their own."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.sources.formats import format_of
from tests.view.test_data import picture, seen


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten pictures in two classes, one cut off and one empty, and a text beside them."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            Image.effect_noise((64, 48), 40 + i).convert("RGB").save(tmp_path / "photos" / name / f"{i}.jpg")
    whole = (tmp_path / "photos/cat/0.jpg").read_bytes()
    (tmp_path / "photos/dog/cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos/dog/empty.jpg").write_bytes(b"")
    (tmp_path / "photos/notes.txt").write_text("taken in May\n")
    return tmp_path / "photos"


def test_a_note_beside_pictures_does_not_hide_them(viewer, photos: Path) -> None:
    text = seen(viewer(photos)).text
    assert "image files" in text and "10images" in text and "Classes" in text
    assert format_of(str(photos)).name == "text"  # for training a path with texts is its texts, as before
    for i in range(10):
        (photos / f"{i}.txt").write_text("more texts than pictures\n")
    assert format_of(str(photos), most=True).name == "text"


def test_damaged_files_do_not_hide_the_batches(viewer, photos: Path) -> None:
    client = viewer(photos)
    page = client.get("/batch")
    assert page.status == 200 and ".skip_errors()" in page.text and page.text.count("<figure") == 10
    assert "2 rows in the place of records" in page.text
    strict = viewer(ps.read_images(photos).decode_images(32).batch(2))
    answers = [strict.get(f"/batch?step={step}") for step in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    bad = [answer for answer in answers if "This batch cannot be shown" in answer.text]
    assert len(bad) in (1, 2) and all('id="slider"' in answer.text and "step=" in answer.text for answer in bad)
    assert any("a file with content" in answer.text for answer in bad)


def test_a_damaged_picture_says_why_in_its_caption(viewer, photos: Path) -> None:
    page = seen(viewer(photos)).text
    assert "expected a file with content, got 0 bytes" in page and r"content\n" not in page
    (photos / "cat" / f"{'long' * 40}.jpg").write_bytes(picture())
    shown = seen(viewer(photos)).text
    assert "longlong" in shown and "long" * 20 not in shown  # the full name is in the tooltip


def test_tar_shards_have_batches_and_their_texts_are_searched(viewer, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for i in range(4):
            for end, data in (("jpg", picture()), ("txt", f"caption {i} of a mill".encode())):
                entry = tarfile.TarInfo(f"{i}.{end}")
                entry.size = len(data)
                shard.addfile(entry, io.BytesIO(data))
    client = viewer(tmp_path / "a.tar")
    batch = client.get("/batch")
    assert batch.status == 200 and "caption 2 of a mill" in batch.text
    assert "20 characters" in seen(client).text  # 19 of the caption, 1 of the key
    assert "searched all 4 records: 1 found" in seen(client, "/data?q=caption+3").text


def test_each_record_is_shown_with_its_own_fields(viewer, tmp_path: Path) -> None:
    lines = [{"text": "first"}, {"text": "second", "later": "only here"}, {"text": 42}, {"text": "x"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = seen(viewer(tmp_path / "a.jsonl")).text
    assert "only here" in text and "null" not in text and "text, later" in text
    assert "expected field 'text' of type str" in text and "42" in text  # what a pipeline would refuse, and the value
    assert "1 character" in text and not re.search(r"\b1 characters", text)


def test_a_chat_is_shown_turn_by_turn(viewer, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "What is a <b>mill</b>?"}, {"role": "assistant", "content": "A wheel."}]
    other = [{"from": "human", "value": "And a river?"}]
    odd = [{"role": "user", "content": "hi", "weight": 0.5}]
    lines = [{"messages": turns}, {"messages": other}, {"messages": odd}, {"messages": []}]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    client = viewer(tmp_path / "chat.jsonl")
    page = client.get("/data").text
    assert page.count('class="turn"') == 3 and '<b class="role">assistant</b>A wheel.' in page
    assert "What is a <b>mill</b>?" in seen(client).text
    assert "&quot;weight&quot;: 0.5" in page  # nothing is left out
    assert "<mark>wheel</mark>" in client.get("/data?q=wheel").text


def test_numbers_are_what_they_are(viewer, tmp_path: Path) -> None:
    values = {"score": [float("nan"), 1.5, None], "text": ["x" * 1_000_000, "b", "c"]}
    pq.write_table(pa.table(values), tmp_path / "a.parquet")
    text = seen(viewer(tmp_path / "a.parquet")).text
    assert "nan" in text and "1,000,000 characters" in text and "1e+06" not in text


def test_nothing_that_can_be_read_is_said(viewer, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("é\nü\n".encode("latin-1"))
    client = viewer(tmp_path / "latin.txt")
    assert "unknown" not in seen(client).text
    batch = client.get("/batch")
    assert batch.status == 200 and "This batch cannot be shown" in batch.text
    (tmp_path / "one.txt").write_text("only\n")
    text = seen(viewer(tmp_path / "one.txt")).text
    assert "the only one was looked at" in text and "all 1" not in text


def test_scripts_are_counted_where_there_is_more_than_one(viewer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "мельница на реке"}\n{"text": "a mill"}\n{"text": "水車"}\n')
    text = seen(viewer(tmp_path / "a.jsonl")).text
    assert "Scripts" in text and "Cyrillic, 67%" in text and "Latin, 24%" in text and "Han, 9.5%" in text
    (tmp_path / "b.jsonl").write_text('{"text": "a mill"}\n')
    assert "Scripts" not in seen(viewer(tmp_path / "b.jsonl")).text
