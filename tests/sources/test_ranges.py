"""Ranges of a source: read one by one, in any order, they are the records of one pass."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.sources.arrays import Texts
from penstock.sources.base import RangeSource
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.parquet import ParquetFiles
from penstock.sources.ranges import file_ranges, row_ranges
from penstock.sources.record_texts import record_texts
from penstock.sources.text import TextFiles


def texts_of(chunks: Any) -> list[str]:
    return [text for chunk in chunks for text in chunk.texts]


def in_ranges(source: RangeSource, most: int) -> tuple[list[str], int]:
    parts = source.ranges(most)
    order = list(range(len(parts)))
    random.Random(1).shuffle(order)
    found = {i: texts_of(source.iterate(None, parts[i])) for i in order}
    return [text for i in range(len(parts)) for text in found[i]], len(parts)


def test_files_are_joined_or_cut_by_their_sizes_alone() -> None:
    ids = [part.id() for part in file_ranges([0, 5, 5, 1, 30, 0, 9, 2, 10], 10, lambda _: [10, 20])]
    assert ids == ["0:0-3:0", "3:0-4:0", "4:0-4:10", "4:10-4:20", "4:20-5:0", "5:0-7:0", "7:0-8:0", "8:0-9:0"]
    assert [part.id() for part in file_ranges([7], 10, lambda _: [])] == ["0:0-1:0"]
    assert [part.id() for part in file_ranges([70], 10, lambda _: [])] == ["0:0-1:0"], "cannot be cut"


def test_rows_of_a_range_are_a_power_of_two_whatever_the_exact_size() -> None:
    cuts = {tuple(part.id() for part in row_ranges(1000, size, 3000)) for size in range(12_000, 12_400)}
    assert len(cuts) == 1
    assert [part.id() for part in row_ranges(5, 10, 10)] == ["0:0-0:5"]


ALPHABET = ["\n", "\n", "\n\n", "\r\n", " ", "\t", "a", "b", "é", "long " * 30]


@pytest.mark.parametrize("mode", ["line", "paragraph"])
@pytest.mark.parametrize("seed", range(40))
def test_text_in_ranges_of_any_size_is_the_text_of_one_pass(tmp_path: Path, mode: str, seed: int) -> None:
    draw = random.Random(seed)
    for name in "ab":
        data = "".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 60)))
        (tmp_path / f"{name}.txt").write_bytes((b"\xef\xbb\xbf" if draw.random() < 0.3 else b"") + data.encode() + b"x")
    source = TextFiles([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], mode=mode)
    want = texts_of(source.iterate())
    for most in (1, 2, 3, 7, 20, 100):
        assert in_ranges(source, most)[0] == want, most


def test_a_gap_over_many_blocks_is_found_from_both_sides(tmp_path: Path) -> None:
    data = b"one\n" + b" " * 200_000 + b"\n" + b"two\n\n" + b"x" * 100_000 + b"\n \n" + b"three"
    (tmp_path / "a.txt").write_bytes(data)
    source = TextFiles(tmp_path / "a.txt", mode="paragraph")
    want = texts_of(source.iterate())
    assert len(want) == 4
    for most in (1000, 65_536, 70_001, 150_000):
        assert in_ranges(source, most)[0] == want


def test_lines_are_counted_from_the_beginning_of_a_range(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"record {i}"}) + "\n" for i in range(100)))
    source = JsonlFiles(tmp_path / "a.jsonl")
    parts = source.ranges(500)
    assert len(parts) > 3
    lines = 0
    for number, part in enumerate(parts):
        chunks = list(source.iterate(None, part))
        assert part.counted == (number == 0)
        for chunk in chunks:
            for text, (_, line, offset) in zip(chunk.texts, chunk.positions, strict=True):
                assert text == f"record {lines + line - 1}"
                assert source.locate(lines + line - 1)["offset"] == offset
        lines += chunks[-1].cursor["line"]


def test_a_cursor_of_a_range_continues_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"{i} " * 40_000}) + "\n" for i in range(100)))
    source = JsonlFiles(tmp_path / "a.jsonl")
    part = source.ranges(8_000_000)[1]
    chunks = list(source.iterate(None, part))
    assert len(chunks) > 1
    again = list(source.iterate(chunks[0].cursor, part))
    assert [c.texts for c in again] == [c.texts for c in chunks[1:]]
    assert [c.cursor for c in again] == [c.cursor for c in chunks[1:]]
    assert list(source.iterate(chunks[-1].cursor, part)) == []


def test_a_compressed_file_is_one_range_also_under_another_name(tmp_path: Path) -> None:
    data = "".join(json.dumps({"text": random.Random(i).randbytes(20).hex()}) + "\n" for i in range(200)).encode()
    for name in ("a.jsonl.gz", "b.jsonl"):
        (tmp_path / name).write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl").write_bytes(data)
    source = JsonlFiles([str(tmp_path / n) for n in ("a.jsonl.gz", "b.jsonl", "c.jsonl")])
    found, parts = in_ranges(source, 1000)
    assert found == texts_of(source.iterate())
    assert parts == 2 + -(-len(data) // 1000)


def test_an_over_long_line_belongs_to_the_range_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n" + "x" * 5000 + "\ntwo\nthree\n")
    source = TextFiles(tmp_path / "a.txt", mode="line", limits=Limits(line_bytes=100))
    errors, texts = [], []
    for part in source.ranges(700):
        for chunk in source.iterate(None, part):
            errors += chunk.errors
            texts += chunk.texts
    assert texts == ["one", "two", "three"]
    assert len(errors) == 1
    assert "byte 4" in errors[0].where


def test_parquet_is_cut_between_row_groups(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, rows in (("a", 1000), ("b", 10), ("c", 20)):
        texts = [f"{name} {i} " + random.Random(i).randbytes(50).hex() for i in range(rows)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet", row_group_size=100)
    source = ParquetFiles(tmp_path)
    want = texts_of(source.iterate())
    size = (tmp_path / "a.parquet").stat().st_size
    for most, parts in ((size // 3, None), (size * 10, 1), (1, None), (size // 2 + 5000, None)):
        found, count = in_ranges(source, most)
        assert found == want
        assert parts in (None, count)
    starts = [part.start["offset"] for part in source.ranges(size // 3)]
    assert len(starts) > 3 and all(start % 100 == 0 for start in starts)
    part = source.ranges(size // 3)[1]
    place = next(iter(source.iterate(None, part))).positions[0]
    assert place[1] == part.start["offset"] + 1, "rows of the file, not of the range"


def test_whole_files_texts_and_records(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02d}.txt").write_text(f"file {i} " * (i + 1))
    files = TextFiles(tmp_path)
    found, parts = in_ranges(files, 900)
    assert found == texts_of(files.iterate()) and parts > 3
    texts = Texts([f"text {i} " * 20 for i in range(1000)])
    found, parts = in_ranges(texts, 20_000)
    assert found == texts_of(texts.iterate()) and parts > 3
    records = record_texts([{"n": i} for i in range(1000)])
    assert isinstance(records, RangeSource)
    assert in_ranges(records, 100)[0] == texts_of(records.iterate())
