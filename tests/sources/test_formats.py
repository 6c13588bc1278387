"""The registry of formats: each line can be opened, and a path is recognised or refused."""

from __future__ import annotations

import bz2
import lzma
import pickle
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.sources import base, formats
from penstock.sources.formats import FILES, FORMATS, Options, format_of, names_files


@pytest.mark.parametrize("known", FORMATS.values(), ids=FORMATS)
def test_every_line_names_things_that_exist(known: formats.Format) -> None:
    function = re.match(r"\w+", known.read)
    assert function is not None
    assert callable(getattr(ps, function[0]))
    assert known.suffixes or known.folder or known.pair
    if known.opener:
        module, _, opener = known.opener.partition(":")
        assert callable(getattr(import_module(f"penstock.sources.{module}"), opener))


def test_no_file_has_two_formats() -> None:
    every = [suffix for known in FILES if known.name != "json" for suffix in known.suffixes]  # .json: by content
    assert len(every) == len(set(every))
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in every)


def _made(folder: Path, kind: str) -> tuple[Path, str]:
    """A dataset, and the name of its format."""
    folder.mkdir(exist_ok=True)
    data = datasets.Dataset.from_dict({"text": ["one", "two"]})
    match kind:
        case "text" | "a name that says nothing":
            path = folder / ("a.txt" if kind == "text" else "README")
            path.write_text("one\n")
            return path, "text"
        case "jsonl" | "capital letters" | "json":
            path = folder / {"jsonl": "a.ndjson.gz", "capital letters": "A.JSONL", "json": "a.json"}[kind]
            path.write_text('{"text": "one"}\n')
            return path, "jsonl"
        case "parquet":
            pq.write_table(pa.table({"text": ["one"]}), folder / "a.pq")
            return folder, "parquet"
        case "hf":
            data.save_to_disk(folder / "saved")
            return folder / "saved", "hf"
        case "hf splits":
            datasets.DatasetDict({"train": data}).save_to_disk(folder / "saved")
            return folder / "saved", "hf splits"
        case "arrow":
            data.save_to_disk(folder / "saved")
            return next((folder / "saved").glob("*.arrow")), "arrow"
        case "store":
            return Path(ps.prepare(ps.from_texts(["one"]), "bytes", folder / "store").path), "store"
        case "shard":
            return next(Path(ps.prepare(ps.from_texts(["one"]), "bytes", folder / "s").path).glob("*.tokens")), "store"
        case "nanogpt":
            np.arange(9, dtype=np.uint16).tofile(folder / "a.bin")
            return folder / "a.bin", "nanogpt"
        case "megatron":
            for end in (".bin", ".idx"):
                (folder / f"a{end}").write_bytes(b"")
            return folder / "a", "megatron"
        case "array":
            np.save(folder / "a.npy", np.arange(9))
            return folder / "a.npy", "array"
        case "dolma":
            np.arange(9, dtype=np.uint16).tofile(folder / "a.npy")
            return folder / "a.npy", "dolma"
        case "images":
            (folder / "cat").mkdir()
            (folder / "cat" / "1.JPG").write_bytes(b"...")
            return folder, "images"
        case "tar":
            (folder / "a.tar").write_bytes(b"")
            return folder, "tar"
    raise AssertionError(kind)


KINDS = [
    "text", "a name that says nothing", "jsonl", "capital letters", "json", "parquet", "hf", "hf splits", "arrow",
    "store", "shard", "nanogpt", "megatron", "array", "dolma", "images", "tar",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_recognised(kind: str, tmp_path: Path) -> None:
    path, name = _made(tmp_path, kind)
    assert format_of(str(path)).name == name


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "hf", "hf splits", "arrow", "store", "array"])
def test_opened(kind: str, tmp_path: Path) -> None:
    if kind == "jsonl":
        kind = "capital letters"
    path, name = _made(tmp_path, kind)
    source = FORMATS[name].open(str(path))
    assert isinstance(source, base.Source)
    assert len(source)
    assert isinstance(source, base.TextSource) == FORMATS[name].one_pass


def test_a_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path, name = _made(tmp_path, "hf splits")
    with pytest.raises(UsageError, match="split= one of 'train'"):
        FORMATS[name].open(str(path), Options(split="test"))


def test_two_formats_are_refused(tmp_path: Path) -> None:
    _made(tmp_path, "text")
    _made(tmp_path, "jsonl")
    with pytest.raises(UsageError, match=r"files of one format\n  got:   1 \w+, 1 \w+\n(.|\n)*--format"):
        format_of(str(tmp_path))
    store, _ = _made(tmp_path / "more", "store")
    with pytest.raises(UsageError, match="1 store, 1 text"):
        format_of([str(store), str(tmp_path / "a.txt")])


def test_an_interrupted_preparation_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    assert format_of(str(tmp_path)).name == "jsonl"  # anybody may have a file of that name
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match="a preparation that was interrupted"):
        format_of(str(tmp_path))


def test_what_cannot_be_opened_by_its_path_alone_says_how(tmp_path: Path) -> None:
    path, name = _made(tmp_path, "images")
    with pytest.raises(UsageError, match=r"penstock\.read_images\(folder\)"):
        FORMATS[name].open(str(path))


@pytest.mark.parametrize(
    ("items", "paths"),
    [
        (["a.jsonl", "b.txt"], True),
        ([Path("anything")], True),
        (["s3://bucket/a", "data/*"], True),
        (["What is in a.jsonl"], False),
        (["one", "two\n"], False),
        ([{"text": "a.jsonl"}, "a.jsonl"], False),
        ([], False),
    ],
)
def test_paths_and_data_are_told_apart(items: list[Any], paths: bool) -> None:
    assert names_files(items) == paths


def test_a_file_without_a_suffix_is_a_path_when_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not names_files(["corpus"])
    Path("corpus").write_text("x")
    assert names_files(["corpus"])
    with pytest.raises(UsageError, match=r"only paths or only texts (.*)\n  got:   paths, and 'one'"):
        names_files(["corpus", "one"])
    assert not names_files(["A corpus is a list of texts.", "corpus", "one"])  # the word, not the file of this name
    with pytest.raises(UsageError, match="only paths or only texts"):
        names_files(["A corpus is a list of texts.", "corpus.jsonl"])


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\xff\xd8\xff\xe0...", "images"),
        (b"RIFF....WEBPVP8 ", "images"),
        (b"RIFF....WAVEfmt ", "audio"),
        (b"ID3\x04", "audio"),
        (bytes(257) + b"ustar\x0000", "tar"),
        (b"PAR1\x15", "parquet"),
        (b"\x93NUMPY\x01", "array"),
        (b"It was a dark night", "text"),
        ("naïve café".encode("latin-1"), "text"),
    ],
)
def test_a_name_that_says_nothing_is_recognised_by_content(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "data").write_bytes(head)
    assert format_of(str(tmp_path / "data")).name == name


@pytest.mark.parametrize(
    ("head", "title"),
    [
        (b"%PDF-1.4", "a PDF document"),
        (b"PK\x03\x04", "a zip archive"),
        ("text".encode("utf-16"), "UTF-16 text"),
        (b"SQLite format 3\0", "an SQLite database"),
        *[(pickle.dumps({"a": [1]}, protocol), "a pickle") for protocol in (4, 5)],
        (bz2.compress(b"text"), "bzip2 data"),
        (lzma.compress(b"text"), "xz data"),
        (b"abc\0def", "binary data of an unknown format"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, head: bytes, title: str) -> None:
    (tmp_path / "data").write_bytes(head)
    with pytest.raises(UsageError, match=f"(?s)a file of a known format.*{title}.*data"):
        format_of(str(tmp_path / "data"))


def test_a_csv_is_never_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n\none,1\n")
    assert format_of(str(tmp_path / "a.csv")).name == format_of(str(tmp_path)).name == "csv"
    assert FORMATS["csv"].open(str(tmp_path)).columns == ["text"]


def test_json_is_an_array_or_lines_by_its_content(tmp_path: Path) -> None:
    texts = {"array.json": '[{"a": 1}]', "object.json": '{\n "rows": [{"a": 1}]}', "lines.json": '{"a": 1}\n{"a": 2}',
             "line.json": '{"a": 1}', "array": ' [ {"a": 1} ]', "lines": '{"a": 1}\n'}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = {name: format_of(str(tmp_path / name)).name for name in texts}
    assert found == {"array.json": "json", "object.json": "json", "lines.json": "jsonl", "line.json": "jsonl",
                     "array": "json", "lines": "jsonl"}  # fmt: skip


def test_cards_and_licences_are_not_data(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "a.parquet")
    for name in ("README.md", "LICENSE.txt", "dataset_infos.json", ".gitattributes"):
        (tmp_path / name).write_text("{}")
    found = format_of(str(tmp_path))
    assert found.name == "parquet" and len(found.open(str(tmp_path))) == 1
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "a.txt").write_text("one")
    assert len(format_of(str(tmp_path)).open(str(tmp_path))) == 1


def test_from_hf_of_a_name_that_is_not_there_names_it() -> None:
    with pytest.raises(ps.StorageError, match="the dataset 'folder'"):
        ps.from_hf("folder")
