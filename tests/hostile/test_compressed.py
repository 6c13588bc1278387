"""Damaged gzip and Zstandard files: one pass and random access find the same records and name the same damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

import penstock as ps
from penstock.core.errors import BadRecords, DataError, PenstockError
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.text import TextFiles
from tests.hostile.fuzzing import mutants

LINES = "".join(f'{{"text": "document {i}"}}\n' for i in range(40)).encode()
SOUND = {
    ".jsonl.gz": gzip.compress(LINES, mtime=0),
    ".jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress(LINES),
}


def both(path: Path) -> tuple[list[str], list[str]]:
    """Texts and errors of a one-pass read, after checking that random access gives the same."""
    source = JsonlFiles(path)
    chunks = list(source.iterate())
    texts, errors = [t for c in chunks for t in c.texts], [str(e) for c in chunks for e in c.errors]
    try:
        again, wrong = source.read(np.arange(len(source)))["text"].tolist(), []
    except BadRecords as bad:
        wrong = [str(error) for error in bad.errors]
        rows = {error.row for error in bad.errors}
        again = source.read(np.array([i for i in range(len(source)) if i not in rows], np.int64))["text"].tolist()
    assert texts == again
    assert [e.replace("\n", " ") for e in errors] == [e.replace("\n", " ") for e in wrong]
    return texts, errors


@pytest.mark.parametrize("suffix", SOUND)
def test_mutants_are_refused_or_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(SOUND[suffix])
    sound = both(path)
    assert len(sound[0]) == 40 and not sound[1]
    refused = 0
    for number, mutant in enumerate(mutants(SOUND[suffix], 500, 5)):
        path.write_bytes(mutant)
        try:
            texts, errors = both(path)
        except PenstockError as error:
            texts, errors = [], [str(error)]
        if errors:
            assert path.name in errors[-1], number
            refused += 1
        elif texts != sound[0]:  # a checksum covers the data; a member or frame may be repeated or dropped as a unit
            repeated = len(mutant) > len(SOUND[suffix])
            assert repeated and texts == sound[0] * (len(texts) // 40), number
    assert refused > 350


@pytest.mark.parametrize("before", [0, 5_000_000])
def test_a_damaged_file_after_a_full_chunk_does_not_vanish(tmp_path: Path, before: int) -> None:
    """Finding 3: the error of a file that is damaged before its first byte was dropped with the last chunk."""
    if before:
        (tmp_path / "a.jsonl").write_text('{"text": "' + "x" * before + '"}\n')
    data = bytearray(gzip.compress(LINES))
    data[-8] ^= 1
    (tmp_path / "b.jsonl.gz").write_bytes(bytes(data))
    with pytest.raises(PenstockError, match=r"b\.jsonl\.gz"):
        ps.prepare(ps.read_jsonl(tmp_path), "bytes", tmp_path.parent / f"{tmp_path.name}-out", show_progress=False)
    source = JsonlFiles(tmp_path)
    errors = [error for chunk in source.iterate() for error in chunk.errors]
    assert len(errors) == 1 and "b.jsonl.gz" in errors[0].where


def parts() -> dict[str, bytes]:
    line = b'{"text": "a"}\n'
    frame = zstandard.ZstdCompressor().compress
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    dictionary = zstandard.ZstdCompressionDict(b"document text " * 100, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    window = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    large = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=window).stream_writer(large, closefd=False) as writer:
        writer.write(line)
        writer.flush()
        writer.write(line)
    return {
        "two.jsonl.gz": gzip.compress(line) * 2,
        "empty member.jsonl.gz": gzip.compress(b"") + gzip.compress(line),
        "padded.jsonl.gz": gzip.compress(line) + bytes(600),
        "two.jsonl.zst": frame(line) * 2,
        "empty frame.jsonl.zst": frame(b"") + frame(line),
        "skipped.jsonl.zst": skipped + frame(line) + skipped,
        "bad: nothing.jsonl.gz": b"",
        "bad: nothing.jsonl.zst": b"",
        "bad: not gzip.jsonl.gz": line,
        "bad: trailing.jsonl.gz": gzip.compress(line) + b"garbage",
        "bad: trailing.jsonl.zst": frame(line) + b"garbage",
        "bad: cut.jsonl.gz": gzip.compress(line)[:-3],
        "bad: cut.jsonl.zst": frame(line)[:-3],
        "bad: half skipped.jsonl.zst": frame(line) + skipped[:6],
        "bad: dictionary.jsonl.zst": zstandard.ZstdCompressor(dict_data=dictionary).compress(line * 3),
        "bad: window.jsonl.zst": large.getvalue(),
    }


@pytest.mark.parametrize("name", parts())
def test_a_file_among_others(tmp_path: Path, name: str) -> None:
    (tmp_path / "0.jsonl").write_bytes(b'{"text": "first"}\n')
    (tmp_path / name).write_bytes(parts()[name])
    (tmp_path / "z.jsonl").write_bytes(b'{"text": "last"}\n')
    if not name.startswith("bad"):
        texts, errors = both(tmp_path)
        count = 2 if name.startswith("two") else 1
        assert (texts, errors) == (["first", *["a"] * count, "last"], [])
        return
    try:
        texts, errors = both(tmp_path)
    except DataError as error:
        texts, errors = ["first", "last"], [str(error)]
    assert texts[0] == "first" and texts[-1] == "last"
    assert len(errors) == 1 and name in errors[0]
    with pytest.raises(PenstockError, match=name):
        ps.prepare(ps.read_jsonl(tmp_path), "bytes", tmp_path.parent / f"{tmp_path.name}-out", show_progress=False)


def test_an_empty_compressed_file_is_damaged_as_one_record_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"text")
    with pytest.raises(BadRecords, match=r"a\.txt\.gz"):
        TextFiles(tmp_path, mode="file").read(np.arange(2))
    assert [row["text"] for row in ps.read_text(tmp_path, on_error="skip").peek(1)] == ["text"]


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("a.txt", "text")
    return data.getvalue()


OTHERS = {"bzip2": bz2.compress(b"text"), "xz": lzma.compress(b"text"), "zip": zipped()}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.bin"])
def test_other_compressions_are_not_text(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / name).write_bytes(OTHERS[kind])
    with pytest.raises(DataError, match=f"{kind} data"):
        ps.read_text(tmp_path / name, by="line").peek()
    (tmp_path / "b.txt").write_text("BZh is how a text may begin")
    assert ps.read_text(tmp_path / "b.txt").peek() == [{"text": "BZh is how a text may begin"}]
