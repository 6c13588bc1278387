"""Where the records of a line file begin, found by one scan of the file.

A remote file is hashed during the scan (`storage.page_hashes`), so that wrong bytes in later reads are noticed; the
scan itself is repeated if its bytes do not agree with the file's ETag, until two scans see the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.core.errors import StorageError
from penstock.sources.compressed import Stream
from penstock.sources.cutting import PIECE_BYTES, Cutter, Ints
from penstock.storage import filesystem
from penstock.storage.file_ids import remember_id
from penstock.storage.object_reader import forget_beginning
from penstock.storage.page_hashes import PageHashes
from penstock.storage.ranges_ahead import Ranges, RangesAhead, nothing
from penstock.storage.scattered import read_scattered

_SCANS = 4


@dataclass(slots=True)
class Index:
    """Where the records of one file begin. `lines` is None when record i is line i + 1."""

    starts: Ints
    lines: Ints | None
    end: int
    damage: str = ""
    pages: PageHashes | None = None
    """Hashes of the file's pages, if it is remote and not compressed."""

    @property
    def nbytes(self) -> int:
        return int(self.starts.nbytes + (0 if self.lines is None else self.lines.nbytes))

    def line(self, row: int) -> int:
        return row + 1 if self.lines is None else int(self.lines[row])


@dataclass(slots=True)
class Wanted:
    """Ranges of a file that a fetch reads; where each record goes in the answer, and its row in the file."""

    file: int
    ranges: list[tuple[int, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Hashed:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: Stream, pages: PageHashes) -> None:
        self._stream, self._pages = stream, pages

    def read(self, n: int, /) -> bytes:
        data = self._stream.read(n)
        self._pages.update(data)
        return data

    def close(self) -> None:
        self._stream.close()

    @property
    def raw_position(self) -> int:
        return self._stream.raw_position


def scan(cutter: Cutter, *, paragraphs: bool) -> Index:
    """The index of a file that a cutter stands at the beginning of."""
    starts: list[Ints] = []
    lines: list[Ints] = []
    damage = ""
    while piece := cutter.next(2 * PIECE_BYTES):
        if piece.too_long:
            line, at = piece.too_long
            starts.append(np.array([at]))
            lines.append(np.array([line]))
        starts.append(piece.starts + piece.offset)
        lines.append(piece.lines)
        if piece.damage:
            damage = piece.damage.got
            starts.append(np.array([piece.next_offset]))
            lines.append(np.array([piece.next_line + 1]))
    all_starts, all_lines = np.concatenate(starts), np.concatenate(lines)
    plain_numbers = not paragraphs and bool((all_lines == np.arange(1, len(all_lines) + 1)).all())
    return Index(all_starts, None if plain_numbers else all_lines, cutter.offset, damage)


def scan_remote(
    open_: Callable[[], Stream],
    path: str,
    stamp: filesystem.Stamp,
    cut: Callable[[Stream], Cutter],
    *,
    paragraphs: bool,
) -> Index:
    """The index of a remote file, with the hashes of its pages. Its id is kept for `file_id`."""
    seen: set[str] = set()
    for _ in range(_SCANS):
        pages = PageHashes()
        stream = Hashed(open_(), pages)
        try:
            found = scan(cut(stream), paragraphs=paragraphs)
        finally:
            stream.close()
        pages.end()
        # An ETag that looks like an MD5 need not be one: then two scans that agree decide.
        if pages.agrees(stamp.tag) or pages.id in seen:
            remember_id(path, stamp, pages.id)
            found.pages = pages
            return found
        seen.add(pages.id)
        forget_beginning(path)
    raise StorageError(
        "the same bytes each time that the file is read", got=f"{_SCANS} reads that all differ", where=path,
        fix="check what is between here and the storage",
    )  # fmt: skip


def read_remote(
    wanted: Sequence[Wanted], paths: Sequence[str], stamps: Sequence[filesystem.Stamp], indexes: Sequence[Index],
    options: filesystem.Options, ahead: RangesAhead | None = None,
) -> list[bytes]:  # fmt: skip
    """The bytes of all ranges, in their order, each page compared with its hash."""
    ranges = np.array([r for one in wanted for r in one.ranges], np.int64).reshape(-1, 2)
    if not len(ranges):
        return []
    files = np.repeat(np.array([one.file for one in wanted], np.int64), [len(one.ranges) for one in wanted])
    hashes = [index.pages for index in indexes]
    return read_scattered(paths, stamps, files, ranges[:, 0], ranges[:, 1], options, hashes, ahead)


def claim_remote(
    ranges: Ranges, paths: Sequence[str], stamps: Sequence[filesystem.Stamp], indexes: Sequence[Index],
    options: filesystem.Options, ahead: RangesAhead | None, step: int,
) -> Callable[[], int]:  # fmt: skip
    """Readers of these ranges wait for the call of the result, which reads them."""

    def read(ranges: Ranges) -> list[bytes]:
        files, starts, stops = ranges.T
        return read_scattered(paths, stamps, files, starts, stops, options, [index.pages for index in indexes])

    return nothing if ahead is None else ahead.claim(ranges, step, read)


def record_of(data: bytes, paragraph: bool) -> bytes:
    """The record at the beginning of its range, without what separates it from the next."""
    if paragraph:
        return data.rstrip()
    line = data.partition(b"\n")[0]
    return line[:-1] if line.endswith(b"\r") else line
