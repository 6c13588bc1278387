"""What a path is, by its content: shown, or refused by the name of what it is; nothing shown is exit code 1."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.cli.main import main
from penstock.codecs.audio import wav

RECORDS = [{"instruction": f"q{i}", "output": "a"} for i in range(5)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("kinds")
    for name in ("img/cat", "img/dog", "flat", "aud", "void"):
        (here / name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    for name in ("img/cat/0.jpg", "img/dog/0.png", "flat/0.png"):
        Image.fromarray(pixels).save(here / name)
    (here / "img/cat/bad.jpg").write_bytes(b"\xff\xd8\xff broken")
    for i in range(2):
        (here / f"aud/{i}.wav").write_bytes(wav.encode(np.zeros(4000), 8000))
    photo = (here / "img/cat/0.jpg").read_bytes()
    with tarfile.open(here / "s.tar", "w") as tar:
        for name, data in (("0.jpg", photo), ("0.txt", b"a cat")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    lines = "".join(json.dumps(r) + "\n" for r in RECORDS)
    (here / "inst.jsonl").write_text(lines)
    (here / "inst").write_text(lines)
    (here / "inst.gz").write_bytes(gzip.compress(lines.encode()))
    (here / "inst.json").write_text(json.dumps(RECORDS))
    pq.write_table(pa.Table.from_pylist([{"text": "a"}]), here / "p.parquet")
    for name, of in (("photo.txt", photo), ("p.jsonl", (here / "p.parquet").read_bytes()), ("photo", photo)):
        (here / name).write_bytes(of)
    table = pa.table({"text": ["a", "b"]})
    for name, new in (("a.arrow", pa.ipc.new_file), ("stream", pa.ipc.new_file)):
        with new(str(here / name), table.schema) as writer:
            writer.write_table(table)
    (here / "table.csv").write_text("text,label\nhello,1\n")
    (here / "table").write_text("text,label\nhello,1\nbye,2\n")
    (here / "prose").write_text("One, two.\nThree, four, five.\nSix.\n")
    (here / "bad.jsonl").write_text("oops\nnope\n")
    (here / "empty.txt").write_bytes(b"")
    (here / "doc.pdf").write_bytes(b"%PDF-1.4 ...")
    (here / "thing.xyz").write_bytes(bytes(range(256)))
    return here


def run(here: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.chdir(here)
    before = sorted(os.listdir(here))
    code = main(list(arguments))
    assert sorted(os.listdir(here)) == before  # looking writes nothing
    return code


@pytest.mark.parametrize(("path", "kind", "records"), [
    ("img", "image folder", 3), ("flat", "image folder", 1), ("aud", "audio folder", 2), ("s.tar", "tar shards", 1),
    ("inst.jsonl", "jsonl", 5), ("inst", "jsonl", 5), ("inst.gz", "jsonl", 5), ("inst.json", "JSON array", 5),
    ("p.parquet", "parquet", 1), ("prose", "text", 1), ("table.csv", "csv", 1), ("table", "csv", 2),
    ("a.arrow", "arrow", 2), ("stream", "arrow", 2),
])  # fmt: skip
def test_info_and_peek_know_it(here, monkeypatch, capsys, path: str, kind: str, records: int) -> None:
    assert run(here, monkeypatch, "info", path, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["records"]) == (kind, records)
    assert run(here, monkeypatch, "peek", path, "--json", "-n", "9") == 0
    shown = json.loads(capsys.readouterr().out)["records"]
    assert len(shown) == records and "record" in shown[0]
    assert run(here, monkeypatch, "info", path) == run(here, monkeypatch, "peek", path) == 0


def test_the_fields_of_records_are_those_there(here, monkeypatch, capsys) -> None:
    for path in ("inst.jsonl", "inst", "inst.json"):
        run(here, monkeypatch, "info", path, "--json")
        assert json.loads(capsys.readouterr().out)["fields"] == ["instruction", "output"]


def test_headers_of_media(here, monkeypatch, capsys) -> None:
    run(here, monkeypatch, "info", "img", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["classes"], facts["formats"], facts["headers_damaged"]) == (["cat", "dog"], {"JPEG": 1, "PNG": 1}, 1)
    assert (facts["width"], facts["height"]) == (30, 20)
    run(here, monkeypatch, "peek", "img", "--json")
    shown = json.loads(capsys.readouterr().out)["records"]
    assert "error" in shown[1] and shown[2]["record"]["class"] == "dog"
    run(here, monkeypatch, "peek", "aud")
    assert "sample_rate  8000" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["info"], ["peek"], ["report", "--out", "r.html"],
                                     ["prepare", "-t", "bytes", "--out", "store"]])  # fmt: skip
@pytest.mark.parametrize(("path", "what"), [
    ("photo.txt", "text files, as the name of the file says\n  got:   content of the format 'images'"),
    ("p.jsonl", "JSON lines, as the name of the file says\n  got:   content of the format 'parquet'"),
    ("doc.pdf", "a PDF document"),
    ("thing.xyz", "binary data of an unknown format"), ("empty.txt", "an empty file"), ("void", "nothing matches"),
    ("none.txt", "no such file or folder"),
])  # fmt: skip
def test_what_cannot_be_shown_is_named(here, monkeypatch, capsys, command: list[str], path: str, what: str) -> None:
    assert run(here, monkeypatch, command[0], path, *command[1:]) == 1
    said = capsys.readouterr()
    assert what in said.err and said.out == ""


def test_nothing_shown_is_an_error(here, monkeypatch, capsys) -> None:
    assert run(here, monkeypatch, "peek", "bad.jsonl") == 1
    assert "no record could be read" in capsys.readouterr().err
    for path, reason in (("bad.jsonl", "valid JSON"), ("inst.jsonl", "a field 'text'")):
        assert run(here, monkeypatch, "report", path, "--out", "r.html") == 1
        assert reason in capsys.readouterr().err


def test_prepare_says_how_to_skip_and_how_to_name_the_field(here, monkeypatch, capsys) -> None:
    assert run(here, monkeypatch, "prepare", "inst.jsonl", "-t", "bytes", "--out", str(here.parent / "s1")) == 1
    said = capsys.readouterr().err
    assert "--field NAME" in said and "--on-error skip" in said


@pytest.mark.parametrize(("path", "documents"), [("table.csv", 1), ("table", 2), ("a.arrow", 2)])
def test_prepare_reads_them(here, monkeypatch, capsys, path: str, documents: int) -> None:
    out = str(here.parent / f"store of {path}")
    assert run(here, monkeypatch, "prepare", path, "-t", "bytes", "--out", out) == 0
    assert len(ps.open_store(out).rows()) == documents


def test_one_is_singular(here, monkeypatch, capsys) -> None:
    arguments = ["prepare", "inst.jsonl", "-t", "bytes", "--field", "output", "--out", str(here.parent / "s2")]
    assert run(here, monkeypatch, *arguments) == 0
    said = capsys.readouterr()
    assert "in 1 shard\n" in said.out and "1 file of" in said.err


@pytest.mark.parametrize("path", ["img/cat/0.jpg", "photo"])
def test_one_image_is_shown_and_not_prepared(here, monkeypatch, capsys, path: str) -> None:
    for command in (["info"], ["peek"], ["report", "--out", str(here.parent / "one.html")]):
        assert run(here, monkeypatch, command[0], path, *command[1:]) == 0
    assert "JPEG" in capsys.readouterr().out
    assert run(here, monkeypatch, "prepare", path, "-t", "bytes", "--out", "store") == 1
    assert "image files" in capsys.readouterr().err
