"""Text inputs made to hurt: bombs, lies, depth, odd names, files that change under the reader."""

from __future__ import annotations

import gc
import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from penstock.core.errors import BadRecords, DataError, LimitError, StorageError
from penstock.core.limits import Limits
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.text import TextFiles


@pytest.mark.parametrize("size", [100, 9_000_000])
def test_endless_line_is_passed_over_in_bounded_memory(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"x" * size + b'"}\n{"text": "b"}\n')
    source = JsonlFiles(path, limits=Limits(line_bytes=50))
    chunks = list(source.iterate())
    assert [t for c in chunks for t in c.texts] == ["a", "b"]
    assert [e.expected for c in chunks for e in c.errors] == ["a line of at most 50 bytes"]
    assert [p for c in chunks for p in c.error_positions] == [(0, 2, 14)]
    assert chunks[-1].positions[-1] == (0, 3, 27 + size)
    for i, chunk in enumerate(chunks):
        assert [c.texts for c in source.iterate(chunk.cursor)] == [c.texts for c in chunks[i + 1 :]]
    assert len(source) == 3
    with pytest.raises(BadRecords, match="a line of at most 50 bytes"):
        source.read(np.arange(3))
    assert source.read(np.array([0, 2]))["text"].tolist() == ["a", "b"]


def test_line_limit_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 50 + b"\r\n\n\n" + b"y" * 51 + b"\n")
    source = TextFiles(path, mode="line", limits=Limits(line_bytes=51))
    assert len(source.read(np.arange(2))["text"]) == 2
    source = TextFiles(path, mode="line", limits=Limits(line_bytes=50))
    with pytest.raises(BadRecords) as caught:
        source.read(np.arange(2))
    assert [e.row for e in caught.value.errors] == [1]


BOMB = """
import os, re, resource, sys
from penstock.sources.jsonl import JsonlFiles
from penstock.core.errors import LimitError
for use in (lambda s: list(s.iterate()), len):
    try:
        use(JsonlFiles(sys.argv[1]))
    except LimitError as error:
        print(error.got)
text = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else ""
peak = re.search(r"VmHWM:\\s+(\\d+)", text)
print(peak[1] if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # maxrss carries over the parent's
"""


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_bombs_stop_early_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.jsonl.{kind}"
    size = 600 << 20
    if kind == "gz":
        member = gzip.compress(bytes(64 << 20), 9)
        path.write_bytes(member * (size >> 26))
    else:
        path.write_bytes(zstandard.compress(bytes(size)))
    assert size / path.stat().st_size > 1000
    run = subprocess.run([sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, check=True)
    *refused, peak = run.stdout.split("\n")[:-1]
    assert len(refused) == 2
    assert all(int(got.split()[0]) < 140 << 20 for got in refused)
    assert int(peak) < 500 << 10


def test_bomb_error_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 3_000_000))
    with pytest.raises(
        LimitError, match=r"at most 200 decompressed bytes per compressed byte(.|\n)*decompression bomb"
    ):
        JsonlFiles(path, limits=Limits(expansion_free_bytes=1 << 20))


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_of_a_million(tmp_path: Path, opening: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": ' + opening * 10**6 + b'}\n{"text": "end"}\n')
    source = JsonlFiles(path)
    chunks = list(source.iterate())
    assert [t for c in chunks for t in c.texts] == ["ok", "end"]
    assert [e.expected for c in chunks for e in c.errors] == ["valid JSON"]
    with pytest.raises(BadRecords, match="valid JSON"):
        source.read(np.array([1]))


def test_nul_bytes_and_duplicate_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\0\0\0\0\n{"text": "a", "text": "b"}\n{"text": "a\\u0000b"}\n')
    source = JsonlFiles(path)
    with pytest.raises(BadRecords) as caught:
        source.read(np.arange(3))
    assert [e.row for e in caught.value.errors] == [0]
    assert source.read(np.array([1, 2]))["text"].tolist() == ["b", "a\0b"]
    (tmp_path / "b.txt").write_bytes(b"a\0b\n\0\n")
    assert TextFiles(tmp_path / "b.txt", mode="line").read(np.arange(2))["text"].tolist() == ["a\0b", "\0"]


@pytest.mark.parametrize("mode", ["file", "line"])
def test_file_disappears(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    source = TextFiles(path, mode=mode)
    assert len(source)
    path.unlink()
    for use in (lambda: source.read(np.array([0])), lambda: list(source.iterate())):
        with pytest.raises(StorageError, match=f"a file that can be read\n  got:   it does not exist\n  where: {path}"):
            use()


@pytest.mark.parametrize("change", ["longer", "shorter", "same size"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_file_changes(tmp_path: Path, change: str, pack: object) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(pack(b"one\ntwo\n"))  # type: ignore[operator]
    source = TextFiles(path, mode="line")
    if pack is bytes:
        assert len(source) == 2
    old = path.stat()
    path.write_bytes({"longer": old.st_size + 1, "shorter": old.st_size - 1, "same size": old.st_size}[change] * b"x")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    for use in (lambda: source.read(np.array([0])), lambda: list(source.iterate())):
        with pytest.raises(DataError) as caught:
            use()
        assert "expected the file as it was when it was opened" in str(caught.value)
        assert f"it changed ({old.st_size} bytes then, {path.stat().st_size} now)" in str(caught.value)
        assert f"where: {path}" in str(caught.value)


def test_file_mode_notices_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    source = TextFiles(path)
    path.write_text("another")
    with pytest.raises(DataError, match="it changed \\(3 bytes then, 7 now\\)"):
        source.read(np.array([0]))


@pytest.mark.parametrize(
    "name", ["with space.txt", "ünï-文.txt", "a..b.txt", "..txt", "*.txt", "[x].txt", "-rf.txt", "a\nb.txt"]
)
def test_odd_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / ".." / name
    path.write_text("x\n")
    source = TextFiles(path, mode="line")
    assert source.read(np.array([0]))["text"].tolist() == ["x"]
    assert source.locate(0)["file"] == str(path)


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 100))
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a"}\nbad\n')

    def use() -> None:
        source = JsonlFiles(tmp_path)
        for rows in (np.arange(3), np.arange(99, 102)):
            try:
                source.read(rows)
            except BadRecords:
                continue
        next(iter(source.iterate()))

    def is_open(handle: int) -> bool:
        try:
            os.fstat(handle)
        except OSError:
            return False
        return True

    def handles() -> int:
        return sum(map(is_open, range(512)))

    use()
    before = handles()
    gc.disable()  # what goes away must not wait for the garbage collector
    try:
        for _ in range(5):
            use()
        assert handles() == before
    finally:
        gc.enable()
