"""Plain text as files, lines and paragraphs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import BadRecords, DataError, FileMissing, LimitError, RecordError, UsageError
from penstock.core.limits import Limits
from penstock.sources.base import Source
from penstock.sources.text import TextFiles


def all_of(source: TextFiles) -> list[str]:
    texts = source.read(np.arange(len(source)))["text"].tolist()
    assert [t for chunk in source.iterate() for t in chunk.texts] == texts
    return texts


BODY = b"\xef\xbb\xbfone\r\n  two \r\n\r\n \t\r\nthr\xc3\xa9e\x0b\xe2\x80\xa8end\r\nfour\r"


def test_modes_agree_with_python(tmp_path: Path) -> None:
    for name, data in {"a.txt": BODY, "b.txt.gz": gzip.compress(BODY)}.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert all_of(TextFiles(path)) == ["one\n  two \n\n \t\nthrée\x0b\u2028end\nfour\r"]
        assert all_of(TextFiles(path, mode="line")) == ["one", "  two ", "thrée\x0b\u2028end", "four"]
        assert all_of(TextFiles(path, mode="paragraph")) == ["one\n  two", "thrée\x0b\u2028end\nfour"]


def test_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x\n\ny\n")
    (tmp_path / "a.txt").write_text("z\n")
    (tmp_path / "notes.bin").write_text("not text by its name")
    for mode, records in {"file": 2, "line": 3, "paragraph": 3}.items():
        source = TextFiles(tmp_path, mode=mode)
        assert isinstance(source, Source)
        assert len(source) == source.describe()["records"] == records
        assert source.describe()["files"] == 2
        assert source.read(np.array([], np.int64))["text"].shape == (0,)
    assert TextFiles(tmp_path, mode="line").locate(2) == {"file": str(tmp_path / "b.txt"), "line": 3, "offset": 3}


def test_fingerprint_is_of_content(tmp_path: Path) -> None:
    for folder, text in {"p": "same", "q": "same", "r": "other"}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.txt").write_text(text)
    p, q, r = (TextFiles(tmp_path / f).fingerprint() for f in "pqr")
    assert p == q != r
    assert p != TextFiles(tmp_path / "p", mode="line").fingerprint()


@pytest.mark.parametrize("mode", ["file", "line", "paragraph"])
def test_bad_utf8_names_line_and_byte(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\nstart\nab\xffcd\n\nfine\n")
    source = TextFiles(path, mode=mode)
    with pytest.raises(BadRecords) as caught:
        source.read(np.arange(len(source)))
    (error,) = caught.value.errors
    at = {"file": 4, "line": 4, "paragraph": 4}[mode]
    assert str(error) == (
        "expected text in UTF-8\n  got:   byte 0xff (invalid start byte)\n"
        f"  where: {path}, line {at}, byte 14\n"
        "  fix:   convert the file to UTF-8, or read with errors='replace'"
    )
    assert error.row == {"file": 0, "line": 2, "paragraph": 1}[mode]
    (chunk,) = source.iterate()
    assert str(chunk.errors[0]) == str(error)
    assert len(chunk.texts) == len(source) - 1 == len(chunk.positions)
    assert chunk.error_positions[0][:2] == (0, {"file": 1, "line": 4, "paragraph": 3}[mode])
    assert any("ab\ufffdcd" in t for t in all_of(TextFiles(path, mode=mode, errors="replace")))


def test_utf16_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("hello".encode("utf-16"))
    with pytest.raises(BadRecords, match="UTF-16, by its first bytes"):
        TextFiles(tmp_path / "a.txt").read(np.array([0]))


@pytest.mark.parametrize("mode", ["file", "line"])
def test_empty_files(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError) as caught:
        TextFiles(tmp_path / "a.txt", mode=mode)
    assert "expected at least one record\n  got:   an empty file\n" in str(caught.value)
    assert f"where: {tmp_path}/a.txt\n" in str(caught.value)
    (tmp_path / "b.txt").write_text("x")
    source = TextFiles(tmp_path, mode=mode)
    assert len(source) == 1
    assert source.describe()["files_without_records"] == 1


def test_only_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n\t\r\n" * 50_000)
    with pytest.raises(DataError, match="blank lines are not records"):
        TextFiles(tmp_path / "a.txt", mode="line")


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match="mode as one of file, line, paragraph\n  got:   'word'"):
        TextFiles(tmp_path / "a.txt", mode="word")
    with pytest.raises(UsageError, match="errors as 'strict' or 'replace'"):
        TextFiles(tmp_path / "a.txt", errors="ignore")
    with pytest.raises(FileMissing, match=r"files at .*\n  got:   no such file or folder"):
        TextFiles(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileMissing, match=r"files ending in .* at .*\n  got:   nothing matches"):
        TextFiles(tmp_path / "empty")


@pytest.mark.parametrize("packed", [False, True])
def test_file_limit_on_both_sides(tmp_path: Path, packed: bool) -> None:
    data = b"y" * 1000
    (tmp_path / "a.txt").write_bytes(gzip.compress(data) if packed else data)
    assert all_of(TextFiles(tmp_path / "a.txt", limits=Limits(record_bytes=1000))) == ["y" * 1000]
    source = TextFiles(tmp_path / "a.txt", limits=Limits(record_bytes=999))
    with pytest.raises(BadRecords, match=r"a file of at most 999 bytes(.|\n)*raise limits.record_bytes"):
        source.read(np.array([0]))
    (chunk,) = source.iterate()
    assert isinstance(chunk.errors[0], RecordError)


@pytest.mark.parametrize("size", [5, 2_000_000])
def test_long_paragraph_is_passed_over(tmp_path: Path, size: int) -> None:
    big = b"word\n" * size
    (tmp_path / "a.txt").write_bytes(b"first\n\n" + big + b"  \n\nlast\nline\n")
    source = TextFiles(tmp_path / "a.txt", mode="paragraph", limits=Limits(record_bytes=20))
    chunks = list(source.iterate())
    assert [t for c in chunks for t in c.texts] == ["first", "last\nline"]
    ((error, position),) = [p for c in chunks for p in zip(c.errors, c.error_positions, strict=True)]
    assert position == (0, 3, 7)
    assert "a paragraph of at most 20 bytes" in str(error)
    assert chunks[-1].positions[-1][1] == size + 5
    with pytest.raises(BadRecords, match="line 3, byte 7"):
        source.read(np.arange(3))
    assert source.read(np.array([2, 0]))["text"].tolist() == ["last\nline", "first"]


def test_bomb_in_file_mode(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(2_000_000)))
    with pytest.raises(LimitError, match="decompression bomb"):
        TextFiles(tmp_path / "a.txt.gz", limits=Limits(expansion_free_bytes=1000)).read(np.array([0]))
