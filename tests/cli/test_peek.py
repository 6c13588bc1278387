"""`penstock peek`: records, documents and the windows of document 004, with nothing raw for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import create_dataloader, create_dataset


def test_windows_are_those_of_the_dataset(run: Any, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs fast"
    (tmp_path / "a.txt").write_text(text)
    argv = ["peek", tmp_path / "a.txt", "-t", "bytes", "--max-length", 4, "--stride", 2, "--batch-size", 2, "-n", 100]
    facts = run(*argv, "--json").json()
    dataset = create_dataset("gpt_v1", txt=text, tokenizer="bytes", max_length=4, stride=2)
    loader = create_dataloader(dataset, batch_size=2, shuffle=False, drop_last=True)
    assert facts["windows"] == len(dataset)
    assert facts["batches"] == len(loader)
    assert facts["batch_shape"] == list(next(iter(loader))[0].shape)
    assert [(w["input"], w["target"]) for w in facts["rows"]] == [(x.tolist(), y.tolist()) for x, y in dataset]
    assert facts["rows"][1]["input_text"] == text[2:6]
    assert facts["rows"][1]["target_text"] == text[3:7]
    shown = run(*argv).out
    assert "57 tokens, 27 windows of 4 tokens, 2 apart" in shown
    assert "13 batches of 2: inputs [2, 4] -> targets [2, 4], 1 window left over" in shown
    assert '  input   [84, 104, 101, 32]  "The "' in shown


@pytest.mark.parametrize("option", [["--max-length", 256], ["--stride", 128], ["--batch-size", 4]])
def test_defaults_of_the_document(run: Any, tmp_path: Path, option: list[Any]) -> None:
    (tmp_path / "a.txt").write_text("x" * 2000)
    ran = run("peek", tmp_path / "a.txt", *option, "--json")
    facts = ran.json()
    assert (facts["max_length"], facts["stride"], facts["batch_size"]) == (256, 128, 4)
    assert facts["overlap"] == 128
    assert "no --tokenizer" in ran.err


def test_too_short_for_a_window(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    ran = run("peek", tmp_path / "a.txt", "--max-length", 256)
    assert ran.code == 1
    assert "expected at least 257 tokens" in ran.err


def test_a_large_file_is_not_read_to_its_end(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from penstock.cli import peek

    monkeypatch.setattr(peek, "TEXT_BYTES", 1)
    (tmp_path / "a.txt").write_text(("a" * 99 + "\n") * 50_000)
    argv = ["peek", tmp_path / "a.txt", "--by", "line", "--max-length", 100, "--rows", 1]
    facts = run(*argv, "--json").json()
    assert 4e6 < facts["tokens"] < 99 * 50_000
    assert facts["whole_file"] is False
    assert "the rest was not read" in run(*argv).out
    monkeypatch.undo()
    assert run(*argv, "--json").json()["tokens"] == 99 * 50_000


def test_records_of_json_lines_with_all_fields_and_bad_ones(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "n": 1}\nbroken\n{"text": "three"}\n')
    found = run("peek", tmp_path / "a.jsonl", "--json").json()["records"]
    assert found[0]["record"] == {"text": "one", "n": 1}
    assert "expected valid JSON" in found[1]["error"]
    assert found[2]["where"].endswith("line 3, byte 31")
    shown = run("peek", tmp_path / "a.jsonl", "--rows", 2, "-t", "bytes").out
    assert "  !! expected valid JSON" in shown
    assert "ids     [111, 110, 101]" in shown
    assert "three" not in shown


def test_records_of_text_and_parquet(run: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.txt").write_bytes(b"one\ntwo\xff\n" + b"y" * 300)
    found = run("peek", tmp_path / "a.txt", "--by", "line", "--json").json()["records"]
    assert [list(one)[1] for one in found] == ["record", "error", "record"]
    assert "(300 characters)" in run("peek", tmp_path / "a.txt", "--by", "line").out
    pq.write_table(pa.table({"text": ["one", "two"], "ids": [[1, 2], [3]]}), tmp_path / "a.parquet")
    found = run("peek", tmp_path / "a.parquet", "-n", 1, "--json").json()["records"]
    assert found == [{"where": f"{tmp_path / 'a.parquet'}, row 0", "record": {"text": "one", "ids": [1, 2]}}]


def test_documents_of_a_store(run: Any, store: Path, texts: list[str]) -> None:
    facts = run("peek", store, "-n", 2, "--json").json()
    assert [row["text"] for row in facts["rows"]] == texts[:2], "a store of bytes needs no tokenizer to be read"
    assert facts["documents"] == 60
    shown = run("peek", store, "-n", 1).out
    assert "document 0, part-0.jsonl, line 1" in shown
    assert texts[0][:40] in shown


def test_another_tokenizer_than_the_stores_is_noticed(run: Any, store: Path, tmp_path: Path) -> None:
    from penstock import MicroTransformerTokenizer

    MicroTransformerTokenizer().save(tmp_path / "other")
    ran = run("peek", store, "-t", tmp_path / "other")
    assert ran.code == 0
    assert "another tokenizer" in ran.err


HOSTILE = "\x1b[2J\x1b]0;title\x07 \x9b31m \x00 \r over \x08\x7f \u202e rtl \u2028 \u200b end"


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_raw_reaches_the_terminal(run: Any, tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": HOSTILE, HOSTILE: HOSTILE, "l": [HOSTILE]}) + "\n")
    (tmp_path / "b\x1b[31m.txt").write_text(HOSTILE, newline="")
    more = ["--json"] if as_json else []
    assert run("prepare", tmp_path / "a.jsonl", "-t", "bytes", "-o", tmp_path / "s\x1b[1m", "-q").code == 0
    window = ["--max-length", 16, "--stride", 8]
    for argv in (
        ["peek", tmp_path / "a.jsonl", "-t", "bytes"],
        ["peek", tmp_path / "a.jsonl", *window],
        ["peek", tmp_path / "b\x1b[31m.txt"],
        ["peek", tmp_path / "s\x1b[1m"],
        ["peek", tmp_path / "s\x1b[1m", *window],
        ["info", tmp_path / "s\x1b[1m"],
        ["verify", tmp_path / "s\x1b[1m"],
        ["explain", tmp_path / "s\x1b[1m", "--length", 16, "--batch", 1, "--step", 0],
    ):
        ran = run(*argv, *more)
        assert ran.code == 0, ran.err
        bad = {c for c in ran.out + ran.err if c != "\n" and not c.isprintable()}
        assert not bad, (argv, bad)
        if as_json:
            json.loads(ran.out)
    shown = run("peek", tmp_path / "a.jsonl").out
    assert "\\x1b[2J" in shown
    assert "\\u202e rtl" in shown


def test_a_saved_dataset_is_its_records_not_its_metadata(run: Any, tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"text": ["one", "two"], "n": [1, 2]})
    data.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(tmp_path / "splits")
    found = run("peek", tmp_path / "saved", "--json").json()
    assert [one["record"] for one in found["records"]] == [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
    found = run("peek", tmp_path / "splits", "--split", "test", "--json").json()
    assert [one["record"]["text"] for one in found["records"]] == ["two"]
    facts = run("info", tmp_path / "saved", "--json").json()
    assert (facts["kind"], facts["records"]) == ("Hugging Face dataset", 2)
    refused = run("prepare", tmp_path / "saved", "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert refused.code == 1
    assert "penstock.from_hf(" in refused.err


def test_a_split_of_files_is_that_split(run: Any, tmp_path: Path) -> None:
    import io
    import tarfile

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    for split in ("train", "test"):
        for kind in ("lines", "texts", "tables", "tars"):
            (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / "lines" / f"{split}.jsonl").write_text(json.dumps({"text": f"{split} words"}) + "\n")
        (tmp_path / "texts" / f"{split}.txt").write_text(f"{split} words")
        pq.write_table(pa.table({"text": [f"{split} words"]}), tmp_path / "tables" / f"{split}-00000-of-00001.parquet")
        (tmp_path / "photos" / split / "cat").mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "photos" / split / "cat" / f"{split}.png")
        with tarfile.open(tmp_path / "tars" / f"{split}-0.tar", "w") as tar:
            member = tarfile.TarInfo("a.txt")
            member.size = len(split)
            tar.addfile(member, io.BytesIO(split.encode()))
    for kind in ("lines", "texts", "tables", "photos", "tars"):
        for split, other in (("train", "test"), ("test", "train")):
            shown = run("peek", tmp_path / kind, "--split", split, "--json")
            assert shown.code == 0, shown.err
            assert split in str(shown.json()["records"]), kind
            assert other not in str(shown.json()["records"]).replace(str(tmp_path), ""), kind
        missing = run("peek", tmp_path / kind, "--split", "validation")
        assert missing.code == 1, kind
        assert "'train', 'test'" in missing.err or "'test', 'train'" in missing.err, missing.err
    windows = run("peek", tmp_path / "texts", "--split", "test", "--max-length", 4, "--stride", 4, "--json").json()
    assert windows["rows"][0]["input_text"] == "test"


def test_a_split_of_what_has_none_is_refused(run: Any, store: Path) -> None:
    ran = run("peek", store, "--split", "train")
    assert ran.code == 1
    assert "leave out --split" in ran.err
