"""Odd but valid archives, as Python's tarfile reads them, and mutants of archives and of their index."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.sources.tar import TarShards
from penstock.sources.tar_index import SUFFIX
from tests.hostile.fuzzing import fuzz
from tests.hostile.test_tar import archive, header, padded, pax

GARBAGE = bytes(range(1, 256)) * 3


def filled(data: bytes) -> bytes:
    """A payload whose last block is filled with what happened to be in the writer's memory."""
    return data + GARBAGE[: -len(data) % 512]


def v7(name: str, size: int, *, signed: bool = False, field: bytes = b"") -> bytes:
    """A header of the oldest format: no magic, other spaces, garbage after the end of a field."""
    block = bytearray(header(name, size))
    block[156:157] = b"\0"
    block[257:] = bytes(255)
    block[124:136] = field or b"%11o " % size
    block[148:156] = b" " * 8
    total = sum(block) - (256 * sum(byte > 127 for byte in block) if signed else 0)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def with_global(*fields: str) -> bytes:
    body = pax(**dict.fromkeys(fields, "4"))[512:]
    size = len(body.rstrip(b"\0"))
    return header("pax_global_header", size, b"g") + body


ODD = {
    "garbage padding": archive(header("0.txt", 4) + filled(b"zero"), header("1.txt", 3) + filled(b"one")),
    "v7": archive(v7("0.txt", 4) + filled(b"zero"), v7("1.txt", 3) + filled(b"one")),
    "signed sums": archive(v7("0.é.txt", 4, signed=True) + padded(b"zero"), v7("1.é.txt", 3) + padded(b"one")),
    "garbage in a field": archive(v7("0.txt", 4, field=b"000004\0junk!") + padded(b"zero")),
    "a comment for all": archive(with_global("comment"), header("0.txt", 4) + padded(b"zero")),
    "a folder of v7": archive(v7("d/", 0), v7("d/0.txt", 4) + padded(b"zero")),
}


@pytest.mark.parametrize("name", ODD)
def test_read_as_tarfile_reads_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(ODD[name])
    with tarfile.open(path) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        expected = [(m.name.rpartition("/")[2].split(".")[0], tar.extractfile(m).read()) for m in files]  # type: ignore[union-attr]
    source = TarShards(path)
    columns = source.read(np.arange(len(source)))
    part = source.parts[0]
    found = list(zip((key.rpartition("/")[2] for key in columns["key"]), columns[part], strict=True))
    assert found == expected


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (archive(with_global("size"), header("0.txt", 4) + padded(b"zero")), "a global header without names or sizes"),
        (archive(header("d", 4, b"5") + padded(b"zero"), header("0.txt", 0)), "folders without content"),
        (archive(v7("d.txt/", 4) + padded(b"zero"), header("0.txt", 0)), "folders without content"),
        (ODD["v7"][:-1024], "cut short"),
        (ODD["v7"] + b"x", "a header was erased"),
    ],
)
def test_ambiguous_archives_are_refused(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DataError, match=text):
        TarShards(tmp_path / "a.tar")


def shard() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(3):
            for part, data in (("txt", b"text %d" % i), ("cls", b"%d" % i)):
                info = tarfile.TarInfo(f"folder/{'long' * 30 * (i == 1)}{i}.{part}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def content(path: Path) -> object:
    source = TarShards(path)
    return {name: list(column) for name, column in source.read(np.arange(len(source))).items()}


def test_mutants_without_an_index(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        Path(f"{path}{SUFFIX}").unlink(missing_ok=True)
        return content(path)

    assert fuzz(read, shard(), 500)["refused"] > 100


def test_mutants_of_an_indexed_archive_are_noticed(tmp_path: Path) -> None:
    path, data = tmp_path / "a.tar", shard()
    path.write_bytes(data)
    content(path)
    index = Path(f"{path}{SUFFIX}").read_bytes()

    def read(mutant: bytes) -> object:
        path.write_bytes(mutant)
        Path(f"{path}{SUFFIX}").write_bytes(index)
        return content(path)

    counts = fuzz(read, data, 500, checked=True)  # padding may differ
    assert counts["refused"] > 100


def test_mutants_of_an_index_are_built_again(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(shard())
    content(path)

    def read(mutant: bytes) -> object:
        Path(f"{path}{SUFFIX}").write_bytes(mutant)
        return content(path)

    fuzz(read, Path(f"{path}{SUFFIX}").read_bytes(), 300, checked=True)
