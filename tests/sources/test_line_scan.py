"""The quick index of plain lines is the index of the general scan, for any bytes and any size of blocks."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import BadRecords
from penstock.core.limits import Limits
from penstock.sources import line_scan
from penstock.sources.cutting import Cutter
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.line_index import Index, scan


class Bytes(io.BytesIO):
    raw_position = 0


def general(data: bytes, limit: int = 1 << 20) -> Index:
    return scan(Cutter(Bytes(data), paragraphs=False, limit=limit), paragraphs=False)


def same(a: Index, b: Index) -> bool:
    lines = [i.lines if i.lines is not None else np.arange(1, len(i.starts) + 1) for i in (a, b)]
    return np.array_equal(a.starts, b.starts) and np.array_equal(*lines) and a.end == b.end


PARTS = (
    b"\n",
    b"\n\n",
    b"\r\n",
    b" ",
    b"\t \n",
    b"\x0b",
    b"\xef\xbb\xbf",
    b"a",
    b'{"text": "x"}\n',
    b"word " * 9,
    b"\r",
)


def test_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    for turn in range(3000):
        data = b"".join(draw.choices(PARTS, k=draw.randint(1, 30)))
        data = (b"\xef\xbb\xbf" if turn % 5 == 0 else b"") + data
        monkeypatch.setattr(line_scan, "BLOCK_BYTES", draw.choice((1, 2, 7, 64, 1 << 20)))
        found = line_scan.scan_lines(io.BytesIO(data).read, 1 << 20)
        assert found is not None
        assert same(found, general(data)), (data, found.starts, general(data).starts)


def test_long_sparse_and_dense_lines() -> None:
    draw = random.Random(4)
    for width in (1, 3, 40, 1000):
        data = b"".join(b"x" * draw.randint(0, 2 * width) + b"\n" for _ in range(40_000 // width))
        found = line_scan.scan_lines(io.BytesIO(data).read, 1 << 20)
        assert found is not None
        assert same(found, general(data))


def test_a_line_beyond_the_limit_is_left_to_the_general_scan(tmp_path: Path) -> None:
    assert line_scan.scan_lines(io.BytesIO(b"abc\nabcdef\n").read, 5) is None
    path = tmp_path / "a.jsonl"
    rows = [{"text": "one"}, {"text": "x" * 9000}, {"text": "three"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonlFiles(path, limits=Limits(line_bytes=1000))
    assert len(source) == 3
    with pytest.raises(BadRecords):
        source.read(np.array([1]))
    assert source.read(np.array([2]))["text"].tolist() == ["three"]
