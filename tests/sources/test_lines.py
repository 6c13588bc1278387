"""Line files: what is cut where, random access against one pass, resuming from every cursor."""

from __future__ import annotations

import gzip
import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import DataError, LimitError, StateError, UsageError
from penstock.core.limits import Limits
from penstock.sources.compressed import kind_of, open_stream, read_up_to
from penstock.sources.cutting import LONG_LINE, Cutter, Piece
from penstock.sources.lines import LineFiles


class Bytes:
    """A stream that gives awkwardly short reads."""

    def __init__(self, data: bytes, step: int) -> None:
        self.data, self.step, self.raw_position = data, step, 0

    def read(self, n: int) -> bytes:
        out = self.data[self.raw_position : self.raw_position + min(n, self.step)]
        self.raw_position += len(out)
        return out

    def close(self) -> None:
        return None


def cut(data: bytes, want: int, step: int, paragraphs: bool = False, offset: int = 0, line: int = 0) -> list[Piece]:
    cutter = Cutter(Bytes(data[offset:], step), paragraphs=paragraphs, limit=10**6, offset=offset, line=line)
    pieces = []
    while piece := cutter.next(want):
        pieces.append(piece)
    return pieces


def records(pieces: list[Piece]) -> list[tuple[int, int, bytes]]:
    return [
        (int(n), p.offset + int(s), p.data[s:e])
        for p in pieces
        for n, s, e in zip(p.lines, p.starts, p.ends, strict=True)
    ]


def expected_lines(data: bytes) -> list[tuple[int, int, bytes]]:
    out, at = [], 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            out.append((number, at, line))
        at += len(line) + 1
    return out


def expected_paragraphs(data: bytes) -> list[tuple[int, int, bytes]]:
    out: list[tuple[int, int, bytes]] = []
    last = -1
    for number, at, line in expected_lines(data):
        if out and number == last + 1:
            out[-1] = (out[-1][0], out[-1][1], data[out[-1][1] : at + len(line)])
        else:
            out.append((number, at, line))
        last = number
    return out


LINES = st.lists(st.sampled_from([b"", b"a", b"bb b", b" ", b"\t\r", b"ccc\r", b"long " * 9]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 60), st.integers(1, 50), st.booleans())
def test_pieces_hold_all_records_and_go_on_the_same_from_every_place(
    lines: list[bytes], ended: bool, want: int, step: int, paragraphs: bool
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    whole = cut(data, want, step, paragraphs)
    assert records(whole) == (expected_paragraphs if paragraphs else expected_lines)(data)
    for i, piece in enumerate(whole):
        rest = cut(data, want, 7, paragraphs, piece.next_offset, piece.next_line)
        assert [p.data for p in rest] == [p.data for p in whole[i + 1 :]]
        assert records(rest) == records(whole[i + 1 :])


@pytest.mark.parametrize("paragraphs", [False, True])
def test_what_happens_to_be_buffered_does_not_move_a_cut(paragraphs: bool) -> None:
    gap = b"\n\n" if paragraphs else b"\n"
    data = b"x" * 50 + gap + b"ab" + gap + b"cd"
    want = len(b"ab" + gap + b"cd")
    whole = cut(data, want, 1000, paragraphs)  # finding the end of the long record reads the whole file
    rest = cut(data, want, 1000, paragraphs, whole[0].next_offset, whole[0].next_line)
    assert [p.data for p in rest] == [p.data for p in whole[1:]] == [data[50 + len(gap) :]]


def parse(piece: Piece, path: str) -> tuple[list[str], list[tuple[int, object]]]:
    return [piece.data[s:e].decode() for s, e in zip(piece.starts, piece.ends, strict=True)], []


def write(folder: Path, rng: random.Random, files: int = 5) -> list[bytes]:
    contents = []
    for i in range(files):
        body = b"".join(
            b"\n" if rng.random() < 0.1 else b"f%d-%d %s\n" % (i, j, b"x" * rng.randrange(40))
            for j in range(rng.randrange(60))
        )
        contents.append(body)
        packed = [bytes, gzip.compress, zstandard.compress][i % 3](body) if body else b""
        (folder / f"{i}.txt").write_bytes(packed)
    return contents


@pytest.mark.parametrize("seed", range(4))
def test_random_access_and_one_pass_agree(tmp_path: Path, seed: int) -> None:
    contents = write(tmp_path, random.Random(seed))
    truth = [line.decode() for body in contents for _, _, line in expected_lines(body)]
    source = LineFiles(str(tmp_path), limits=Limits(), suffixes=(".txt",))
    assert len(source) == len(truth)
    order = np.random.default_rng(seed).permutation(len(truth))
    data, errors = source.fetch(np.concatenate([order, order[:3]]))
    assert not errors
    assert [d.decode() for d in data] == [truth[i] for i in [*order, *order[:3]]]
    chunks = list(source.chunks(parse, size=100))
    assert len(chunks) > 3
    assert [t for c in chunks for t in c.texts] == truth
    assert sum(c.file_bytes for c in chunks) == sum(s.size for s in source.stamps)
    for i, chunk in enumerate(chunks):
        rest = list(source.chunks(parse, chunk.cursor, size=100))
        assert [(c.texts, c.positions, c.cursor) for c in rest] == [
            (c.texts, c.positions, c.cursor) for c in chunks[i + 1 :]
        ]
    for i, (file, line, offset) in enumerate(p for c in chunks for p in c.positions):
        assert source.locate(i) == {"file": source.paths[file], "line": line, "offset": offset}


def test_small_files_share_a_chunk_and_a_trailing_empty_file_loses_nothing(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text("" if i == 4 else f"line {i}\n")
    (chunk,) = LineFiles(str(tmp_path), limits=Limits()).chunks(parse)
    assert chunk.texts == [f"line {i}" for i in range(4)]
    assert chunk.cursor == {"file": 5, "offset": 0, "line": 0}


def test_pickle_drops_handles_and_reads_on(tmp_path: Path) -> None:
    contents = write(tmp_path, random.Random(9), files=3)
    source = LineFiles(str(tmp_path), limits=Limits())
    n = len(source)
    assert source.spooled() == sum(map(len, contents[1:]))
    again = pickle.loads(pickle.dumps(source))
    assert again.spooled() == 0
    everything = np.arange(n)
    assert again.fetch(everything) == source.fetch(everything)
    again.close()
    assert again.spooled() == 0
    assert again.fetch(everything) == source.fetch(everything)


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    write(tmp_path, random.Random(5))
    source = LineFiles(str(tmp_path), limits=Limits())
    expected = LineFiles(str(tmp_path), limits=Limits()).fetch(np.arange(len(source)))[0]
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.integers(0, len(expected), 16)
            if source.fetch(rows)[0] != [expected[i] for i in rows]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "cursor",
    [
        {"file": 2, "offset": 0, "line": 0},
        {"file": 0, "offset": 99, "line": 0},
        {"file": 0, "offset": -1, "line": 0},
        {"file": 0},
        {"file": True, "offset": 0, "line": 0},
        {"file": "0", "offset": 0, "line": 0},
    ],
)
def test_a_foreign_cursor_is_refused(tmp_path: Path, cursor: dict[str, int]) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(StateError, match="a cursor of this source: file, offset and line"):
        list(LineFiles(str(tmp_path / "a.txt"), limits=Limits()).chunks(parse, cursor))


def test_record_numbers_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(UsageError, match=r"record numbers in \[0, 2\)"):
        LineFiles(str(tmp_path / "a.txt"), limits=Limits()).fetch(np.array([0, 2]))


def test_spool_limit(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"line\n" * 1000))
    ok = LineFiles(str(tmp_path / "a.gz"), limits=Limits(spool_bytes=5000))
    assert len(ok) == 1000
    with pytest.raises(LimitError, match=r"at most 4999 bytes of temporary disk.*\n.*\n.*\n.*raise limits.spool_bytes"):
        len(LineFiles(str(tmp_path / "a.gz"), limits=Limits(spool_bytes=4999)))


def test_compression_is_told_by_content_and_many_members_are_one_stream(tmp_path: Path) -> None:
    frames = {"gzip": gzip.compress(b"one\n") + gzip.compress(b"two\n") + b"\0" * 20, "zstd": b""}
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    frames["zstd"] = skippable + zstandard.compress(b"one\n") + zstandard.compress(b"two\n")
    for kind, data in frames.items():
        path = tmp_path / f"named-{kind}.txt"
        path.write_bytes(data)
        assert kind_of(str(path)) == kind
        stream = open_stream(str(path), kind, Limits())
        assert read_up_to(stream, 100) == b"one\ntwo\n"
        stream.close()
    (tmp_path / "not.gz").write_text("plain text")
    with pytest.raises(DataError, match=r"gzip data in a file named .gz\n.*begins with b'plai'"):
        kind_of(str(tmp_path / "not.gz"))


@pytest.mark.parametrize("length", [0, 1, 10, LONG_LINE - 1, LONG_LINE, LONG_LINE + 1, 50 * LONG_LINE])
def test_line_breaks_are_found_between_long_and_short_lines(length: int) -> None:
    data = (b"x" * length + b"\n") * 20 + b"y\n" * 30 + b"z" * (3 * LONG_LINE)
    lines = [line for line in data.split(b"\n") if line]
    piece = Cutter(Bytes(data, 1 << 20), paragraphs=False, limit=1 << 30).next(len(data))
    assert piece is not None
    assert [piece.data[s:e] for s, e in zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)] == lines
    assert piece.next_line == data.count(b"\n")
