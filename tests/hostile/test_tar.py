"""Hostile archives: refused by name, from headers, with nothing written outside and little memory."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.core.limits import Limits
from penstock.sources import tar_walk
from penstock.sources.tar import TarShards


def header(name, size=0, kind=b"0", link=b"", prefix=b""):
    block = bytearray(512)
    block[:100] = name.encode()[:100].ljust(100, b"\0")
    block[100:108], block[108:116], block[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    block[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block[136:148] = b"00000000000\0"
    block[156:157], block[157 : 157 + len(link)] = kind, link
    block[257:265], block[345 : 345 + len(prefix)] = b"ustar\x0000", prefix
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


def archive(*pieces):
    return b"".join(pieces) + bytes(1024)


def pax(**records):
    body = b""
    for key, value in records.items():
        record = f" {key.replace('_', '.')}={value}\n".encode()
        size = len(record) + 1
        while len(str(size)) + len(record) != size:
            size = len(str(size)) + len(record)
        body += str(size).encode() + record
    return header("pax", len(body), b"x") + padded(body)


FINE = header("0000.txt", 4) + padded(b"fine")

HOSTILE = {
    "dots": (archive(FINE, header("../../etc/x.txt", 4) + padded(b"evil")), "'../../etc/x.txt'"),
    "dots_inside": (archive(header("a/../../x.txt", 4) + padded(b"evil")), "'a/../../x.txt'"),
    "dots_by_pax": (archive(pax(path="../x.txt"), header("x.txt", 4) + padded(b"evil")), "'../x.txt'"),
    "dots_by_gnu": (
        archive(header("L", 8, b"L") + padded(b"../x.txt"), header("x.txt", 4) + padded(b"evil")),
        "'../x.txt'",
    ),
    "dots_by_prefix": (archive(header("x.txt", 4, prefix=b"../up") + padded(b"evil")), "'../up/x.txt'"),
    "absolute": (archive(header("/etc/x.txt", 4) + padded(b"evil")), "'/etc/x.txt'"),
    "symbolic_link": (archive(FINE, header("x.txt", 0, b"2", b"/etc/passwd")), "'x.txt', a symbolic link"),
    "hard_link": (archive(FINE, header("x.txt", 0, b"1", b"/etc/passwd")), "'x.txt', a hard link"),
    "character_device": (archive(header("x.txt", 0, b"3")), "'x.txt', a character device"),
    "block_device": (archive(header("x.txt", 0, b"4")), "'x.txt', a block device"),
    "pipe": (archive(header("x.txt", 0, b"6")), "'x.txt', a named pipe"),
    "sparse_gnu": (archive(header("x.txt", 4, b"S") + padded(b"evil")), "'x.txt', a sparse file"),
    "sparse_pax": (archive(pax(GNU_sparse_major="1"), header("x.txt", 4) + padded(b"evil")), "'x.txt', a sparse file"),
    "unknown_type": (archive(header("x.txt", 0, b"Z")), "of unknown type b'Z'"),
    "no_name": (archive(header("", 0)), "''"),
    "pax_1_gb": (header("pax", 1 << 30, b"x") + bytes(4096), "1,073,741,824 bytes"),
    "long_name_1_gb": (header("L", 1 << 30, b"L") + bytes(4096), "1,073,741,824 bytes"),
    "global_pax_1_gb": (header("g", 1 << 30, b"g") + bytes(4096), "1,073,741,824 bytes"),
    "pax_length_lies": (archive(header("p", 20, b"x") + padded(b"999999 path=x.txt\n\0\0")), "b'999999 path=x"),
    "pax_without_equals": (archive(header("p", 9, b"x") + padded(b"9 nothing\n"[:9])), "b'9 nothin"),
    "pax_length_zero": (archive(header("p", 9, b"x") + padded(b"0 path=x\n")), "b'0 path=x"),
    "pax_size_negative": (archive(pax(size="-5"), header("x.txt", 4) + padded(b"evil")), "'-5'"),
    "pax_size_huge": (
        archive(pax(size="9" * 18), header("x.txt", 4) + padded(b"evil")),
        "999,999,999,999,999,999 bytes",
    ),
    "size_past_the_end": (archive(header("x.txt", 50_000) + padded(b"evil")), "the archive ends inside it"),
    "size_8_exabytes": (archive(header("x.txt", 2**62) + padded(b"evil")), "4,611,686,018,427,387,904 bytes"),
    "size_not_octal": (None, "b'99999999999"),
    "not_a_tar": (b"this is text " * 200, "whose checksum is wrong"),
    "empty": (b"", "the end of the file after 0 bytes"),
    "one_zero_block": (FINE + bytes(512), "the end of the file"),
    "hidden_after_the_end": (archive(FINE) + FINE, "a zero block with other bytes after it"),
    "compressed": (b"\x1f\x8b\x08" + bytes(600), "a compressed one"),
}


def bad_size():
    block = bytearray(header("x.txt", 4))
    block[124:136] = b"99999999999\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return archive(bytes(block) + padded(b"evil"))


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_by_name(name, tmp_path):
    data, text = HOSTILE[name]
    path = tmp_path / f"{name}.tar"
    path.write_bytes(bad_size() if data is None else data)
    with pytest.raises(DataError) as error:
        TarShards(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no side-car, nothing extracted


def test_the_pieces_are_sound_without_their_trick(tmp_path):
    path = tmp_path / "fine.tar"
    path.write_bytes(archive(FINE, pax(path="b/0001.txt"), header("x", 4) + padded(b"good")))
    shards = TarShards(path)
    assert shards.read(np.arange(2))["txt"].tolist() == [b"fine", b"good"]
    assert list(shards.keys) == ["0000", "b/0001"]
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["0000.txt", "b/0001.txt"]


def test_members_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_walk, "MAX_MEMBERS", 20)
    path = tmp_path / "many.tar"
    path.write_bytes(archive(*(header(f"{i:04d}.txt", 1) + padded(b"x") for i in range(20))))
    assert len(TarShards(path)) == 20
    path.write_bytes(archive(*(header(f"{i:04d}.txt", 1) + padded(b"x") for i in range(21))))
    with pytest.raises(DataError, match="at most 20 members"):
        TarShards(path)


def test_a_million_members_are_the_bound(monkeypatch):
    assert tar_walk.MAX_MEMBERS == 1_000_000

    class Endless(io.RawIOBase):
        """Header after header, without a file of 500 MB."""

        block = header("x.txt", 0)

        def read(self, size=-1):
            return self.block

    monkeypatch.setattr(tar_walk, "MAX_MEMBERS", 1000)
    members = tar_walk.walk(Endless(), "endless.tar", 1 << 62, Limits())
    assert sum(1 for _ in itertools.islice(members, 1000)) == 1000
    with pytest.raises(DataError, match="at most 1,000 members"):
        next(members)


def test_members_past_the_record_limit_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "large.tar"
    with open(path, "wb") as file:
        file.write(header("x.bin", 300 << 20))
        file.truncate(512 + (300 << 20) + 1024)
    with pytest.raises(DataError, match=r"'x\.bin' of 314,572,800 bytes"):
        TarShards(path)


CHILD = """
import json, resource, sys, pathlib
from penstock.sources.tar import TarShards
from penstock.core.errors import PenstockError

def peak():  # of this program: ru_maxrss would carry over what the parent held before it started us
    try:
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before, refused = peak(), 0
opened = []
def hook(event, args):
    if event == "open" and "w" in str(args[1]):
        opened.append(str(args[0]))


sys.addaudithook(hook)
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.tar")):
    try:
        TarShards(path)
    except PenstockError:
        refused += 1
print(json.dumps({"grew": peak() - before, "refused": refused, "written": opened}))
"""


def test_all_of_them_in_one_process_cost_little_and_write_nothing(tmp_path):
    for name, (data, _) in HOSTILE.items():
        (tmp_path / f"{name}.tar").write_bytes(bad_size() if data is None else data)
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    assert result["refused"] == len(HOSTILE)
    assert result["grew"] < 64
    assert result["written"] == []
