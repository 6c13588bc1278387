"""Line files: records found by byte offset, plain or compressed, here or behind a URL.

Random access keeps one int64 per record (two where blank lines shift the numbers) and reads nothing else into memory.
The index is built on the first `len` or `fetch`, by one scan of each file. A compressed file is decompressed once
into a temporary file, one for all, that has no name, is bounded by the limits and vanishes with the process. `chunks`
is the one-pass way: no index, no copy, and a cursor after every chunk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.errors import DataError, RecordError, StateError
from penstock.core.ledger import Entry
from penstock.core.limits import Limits
from penstock.sources import compressed
from penstock.sources.cutting import PIECE_BYTES, Cutter, Ints, Piece
from penstock.sources.spool import Spool, Tee
from penstock.storage import filesystem
from penstock.store.doctable import check_range

if TYPE_CHECKING:
    from penstock.sources.whole_files import WholeFiles

Cursor = Mapping[str, int]
Position = tuple[int, int, int]
"""File number, 1-based line (or record) in it, byte offset (or row) in it."""
_PICKLED_INDEX = 64 << 20
_EMPTY = "an empty file"


@dataclass(slots=True)
class Chunk:
    """Consecutive records of a one-pass read. Reading from `cursor` continues exactly after it."""

    texts: list[str]
    positions: list[Position]
    cursor: dict[str, int]
    errors: list[RecordError] = field(default_factory=list)
    error_positions: list[Position] = field(default_factory=list)
    file_bytes: int = 0
    """Bytes of the files (as stored) read for this chunk, for progress."""
    skipped: list[Entry] = field(default_factory=list)
    """Bad records that steps of a pipeline have skipped already."""
    filtered: int = 0
    """Records that filters of a pipeline rejected."""

    def add(self, text: str, position: Position) -> None:
        self.texts.append(text)
        self.positions.append(position)

    def add_error(self, error: RecordError, position: Position) -> None:
        self.errors.append(error)
        self.error_positions.append(position)


Parse = Callable[[Piece, str], tuple[list[str], list[tuple[int, RecordError]]]]


def place(path: str, line: int, offset: int) -> str:
    """How messages name a record."""
    return f"{path}, line {line}, byte {offset}"


def bare(error: RecordError) -> RecordError:
    """The error without its traceback, which would keep the source and its data alive as long as the error."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def no_records(paths: Sequence[str]) -> DataError:
    """The error for files without content."""
    return DataError(
        "at least one record",
        got="only empty files" if len(paths) > 1 else "an empty file",
        where=", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else ""),
        fix="pass files with content; blank lines are not records",
    )


def too_long(path: str, line: int, offset: int, limit: int, what: str = "line") -> RecordError:
    """The error for a record beyond the limit."""
    return RecordError(
        f"a {what} of at most {limit} bytes",
        got="a longer one",
        where=place(path, line, offset),
        fix=f"split it, or raise limits.{'line' if what == 'line' else 'record'}_bytes",
    )


@dataclass(slots=True)
class Index:
    """Where the records of one file begin. `lines` is None when record i is line i + 1."""

    starts: Ints
    lines: Ints | None
    end: int
    damage: str = ""

    @property
    def nbytes(self) -> int:
        return int(self.starts.nbytes + (0 if self.lines is None else self.lines.nbytes))

    def line(self, row: int) -> int:
        return row + 1 if self.lines is None else int(self.lines[row])


class LineFiles:
    """The records of some line files, as bytes. Safe for many threads; pickles without handles."""

    def __init__(
        self,
        paths: filesystem.Paths,
        *,
        paragraphs: bool = False,
        limits: Limits,
        storage_options: filesystem.Options = None,
        suffixes: Sequence[str] = (),
    ) -> None:
        self.options = dict(storage_options or {})
        self.paths = filesystem.expand(paths, storage_options, suffixes)
        self.paragraphs, self.limits = paragraphs, limits
        self.limit = limits.record_bytes if paragraphs else limits.line_bytes
        self.stamps = [filesystem.stamp(path, self.options, fresh=False) for path in self.paths]
        self._kinds: dict[int, str] = {}
        self._fresh()
        if not any(self._has_content(i) for i in range(len(self.paths))):
            raise no_records(self.paths)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._spool: Spool | None = None
        self._regions: dict[int, int] = {}  # compressed file -> where its decompressed bytes begin in the spool
        self._checked: set[int] = set()

    _built: tuple[list[Index], Ints] | None = None

    def kind(self, file: int) -> str:
        """How a file is compressed, looked at when it is first needed."""
        if file not in self._kinds:
            self._kinds[file] = compressed.kind_of(self.paths[file], self.options)
        return self._kinds[file]

    def _has_content(self, file: int) -> bool:
        if not self.stamps[file].size:
            return self._cut_off(file)
        cutter, stream = self._cutter(file)
        try:
            while piece := cutter.next(1 << 16):
                if len(piece.starts) or piece.too_long or piece.damage:
                    return True
            return False
        finally:
            stream.close()

    def _cut_off(self, file: int) -> bool:
        """Whether a file without a byte is damaged rather than empty: compressed data is never nothing."""
        return compressed.promised(self.paths[file]) != ""

    def _cutter(self, file: int, offset: int = 0, line: int = 0) -> tuple[Cutter, compressed.Stream]:
        self.check(file)
        stream = compressed.open_stream(self.paths[file], self.kind(file), self.limits, self.options)
        try:
            compressed.skip(stream, offset, self.paths[file])
        except BaseException:
            stream.close()
            raise
        return Cutter(stream, paragraphs=self.paragraphs, limit=self.limit, offset=offset, line=line), stream

    def check(self, file: int) -> None:
        """Raises when the file is not the one that was there at the beginning."""
        filesystem.check_unchanged(self.paths[file], self.stamps[file], self.options)

    # ---- random access

    @property
    def index(self) -> list[Index]:
        """One index per file, built on first use."""
        return self._indexed()[0]

    def _indexed(self) -> tuple[list[Index], Ints]:
        """The indexes, and the number of the first record of each file (with the total at the end)."""
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._drop_spool()  # what an attempt that failed has left
                    indexes = [self._build(i) for i in range(len(self.paths))]
                    self._built = indexes, np.cumsum([0] + [len(i.starts) for i in indexes])
        return self._built

    def _build(self, file: int) -> Index:
        if not self.stamps[file].size:
            cut_off = self._cut_off(file)
            return Index(np.zeros(int(cut_off), np.int64), None, 0, _EMPTY if cut_off else "")
        starts: list[Ints] = []
        lines: list[Ints] = []
        damage = ""
        cutter, stream = self._cutter(file)
        try:
            if self.kind(file) != "plain":
                stream = self._spooling(file, stream)
                cutter = Cutter(stream, paragraphs=self.paragraphs, limit=self.limit)
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
        except BaseException:
            self._unspool(file)
            raise
        finally:
            stream.close()
        all_starts, all_lines = np.concatenate(starts), np.concatenate(lines)
        plain_numbers = not self.paragraphs and bool((all_lines == np.arange(1, len(all_lines) + 1)).all())
        return Index(all_starts, None if plain_numbers else all_lines, cutter.offset, damage)

    def _spooling(self, file: int, stream: compressed.Stream) -> compressed.Stream:
        """A stream that also keeps what goes through it in a temporary file, for `fetch`. The lock is held."""
        if self._spool is not None and self._spool.process != os.getpid():
            self._drop_spool()  # a forked copy must not write into the file of its parent
        if self._spool is None:
            self._spool = Spool()
        self._regions[file] = self._spool.size
        return Tee(stream, self._spool, self)

    def _unspool(self, file: int) -> None:
        """Drops the region that was written last."""
        start = self._regions.pop(file, None)
        if start is not None and self._spool is not None:
            self._spool.cut(start)

    def spooled(self) -> int:
        """Bytes of temporary disk in use."""
        return 0 if self._spool is None else self._spool.size

    def _decompressed(self, file: int) -> tuple[int, int]:
        """Descriptor and first byte of a compressed file's decompressed copy, made again after unpickling."""
        with self._lock:
            if file not in self._regions:
                _, stream = self._cutter(file)
                tee = self._spooling(file, stream)
                try:
                    while tee.read(PIECE_BYTES):
                        pass
                except DataError:
                    if self._built is None or not self._built[0][file].damage:
                        self._unspool(file)
                        raise
                except BaseException:
                    self._unspool(file)
                    raise
                finally:
                    tee.close()
            if self._spool is None:
                raise DataError("a decompressed copy", where=self.paths[file], fix="report this")
            return self._spool.handle, self._regions[file]

    def __len__(self) -> int:
        return int(self._indexed()[1][-1])

    def split(self, indices: NDArray[np.int64]) -> tuple[Ints, Ints]:
        """File and row in the file of each record number."""
        firsts = self._indexed()[1]
        check_range(indices, int(firsts[-1]), where=self.paths[0])
        files = np.searchsorted(firsts, indices, side="right") - 1
        return files, indices - firsts[files]

    def fetch(self, indices: NDArray[np.int64]) -> tuple[list[bytes], list[RecordError]]:
        """The bytes of each record, and the errors of rows that cannot be read (their bytes are empty)."""
        indices = np.asarray(indices, np.int64)
        files, rows = self.split(indices)
        out: list[bytes] = [b""] * len(indices)
        errors: list[RecordError] = []
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            self._fetch_file(file, places.tolist(), rows[places].tolist(), out, errors)
        errors.sort(key=lambda e: e.row)
        return out, errors

    def _fetch_file(
        self, file: int, places: list[int], rows: list[int], out: list[bytes], errors: list[RecordError]
    ) -> None:
        index, path = self.index[file], self.paths[file]
        wanted: list[tuple[int, int]] = []
        ranges: list[tuple[int, int]] = []
        for at, row in zip(places, rows, strict=True):
            last = row + 1 == len(index.starts)
            start, stop = int(index.starts[row]), index.end if last else int(index.starts[row + 1])
            if last and index.damage:
                errors.append(self.damaged(file, index.line(row), start, index.damage, at))
                continue
            # Blank lines after a record belong to its range: only what is read can tell a long record from those.
            ranges.append((start, min(stop, start + self.limit + 3)))
            wanted.append((at, row))
        for (at, row), data in zip(wanted, self._read(file, ranges), strict=True):
            record = _record(data, self.paragraphs)
            if len(record) > self.limit:
                error = too_long(path, index.line(row), int(index.starts[row]), self.limit, self.what)
                error.row = at
                errors.append(error)
            else:
                out[at] = record

    def _read(self, file: int, ranges: list[tuple[int, int]]) -> list[bytes]:
        path = self.paths[file]
        if not ranges:
            return []
        if self.kind(file) != "plain":
            handle, base = self._decompressed(file)
            return [filesystem.read_at(handle, base + start, base + stop, path) for start, stop in ranges]
        if not filesystem.scheme(path) or file not in self._checked:  # asking a server each time would double the cost
            self.check(file)
            self._checked.add(file)
        return filesystem.read_ranges(path, ranges, self.options)

    @property
    def what(self) -> str:
        return "paragraph" if self.paragraphs else "line"

    def damaged(self, file: int, line: int, offset: int, reason: str, row: int = 0) -> RecordError:
        """The error for the place from which a file cannot be read."""
        return RecordError(
            "complete compressed data",
            got=reason,
            where=place(self.paths[file], line, offset) + ", and everything after it in this file",
            fix="fetch or compress the file again",
            row=row,
        )

    def locate(self, index: int) -> dict[str, Any]:
        files, rows = self.split(np.array([index], np.int64))
        file, row = int(files[0]), int(rows[0])
        found = self.index[file]
        return {"file": self.paths[file], "line": found.line(row), "offset": int(found.starts[row])}

    def describe(self, kind: str) -> dict[str, Any]:
        """Plain facts; records and blank lines only once they have been counted."""
        facts: dict[str, Any] = {"kind": kind, "files": len(self.paths), "bytes": sum(s.size for s in self.stamps)}
        if self._built is not None:
            facts["records"] = len(self)
            facts["files_without_records"] = sum(not len(i.starts) for i in self._built[0])
        else:
            facts["files_without_records"] = sum(not s.size for s in self.stamps)
        return facts

    def close(self) -> None:
        """Frees temporary disk space. The source can still be read; it makes the copies again."""
        with self._lock:
            self._drop_spool()

    def _drop_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._spool = None
        self._regions.clear()

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_spool", "_regions", "_checked")}
        if self._built is not None and sum(i.nbytes for i in self._built[0]) > _PICKLED_INDEX:
            del state["_built"]  # cheaper to scan again than to send
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    # ---- one pass

    def chunks(self, parse: Parse, start: Cursor | None = None, size: int = PIECE_BYTES) -> Iterator[Chunk]:
        """Chunks of about `size` bytes in file order, small files together, from `start` on."""
        file, offset, line = checked_cursor(start, self.stamps, self.kind)
        chunk, room = Chunk([], [], {}), size
        while file < len(self.paths):
            if not self.stamps[file].size:
                if self._cut_off(file):
                    chunk.add_error(self.damaged(file, 1, 0, _EMPTY), (file, 1, 0))
                file, offset, line = file + 1, 0, 0
                continue
            cutter, stream = self._cutter(file, offset, line)
            raw = stream.raw_position
            try:
                while piece := cutter.next(room):
                    self._parse(piece, file, parse, chunk)
                    chunk.file_bytes += stream.raw_position - raw
                    raw = stream.raw_position
                    room -= piece.next_offset - piece.offset
                    if cutter.finished:
                        break
                    chunk.cursor = {"file": file, "offset": piece.next_offset, "line": piece.next_line}
                    yield chunk
                    chunk, room = Chunk([], [], {}), size
            finally:
                stream.close()
            file, offset, line = file + 1, 0, 0
            if room <= 0:
                chunk.cursor = {"file": file, "offset": 0, "line": 0}
                yield chunk
                chunk, room = Chunk([], [], {}), size
        if room < size or chunk.errors:  # a file damaged before its first line uses no room
            chunk.cursor = {"file": file, "offset": 0, "line": 0}
            yield chunk

    def _parse(self, piece: Piece, file: int, parse: Parse, chunk: Chunk) -> None:
        path = self.paths[file]
        if len(piece.starts):
            texts, bad = parse(piece, path)
            offsets = (piece.starts + piece.offset).tolist()
            positions: list[Position] = list(zip([file] * len(offsets), piece.lines.tolist(), offsets, strict=True))
            if bad:
                chunk.errors += [error for _, error in bad]
                chunk.error_positions += [positions[i] for i, _ in bad]
                for i, _ in reversed(bad):
                    del positions[i]
            chunk.texts += texts
            chunk.positions += positions
        if piece.too_long:
            line, offset = piece.too_long
            chunk.add_error(too_long(path, line, offset, self.limit, self.what), (file, line, offset))
        if piece.damage:
            line, offset = piece.next_line + 1, piece.next_offset
            chunk.add_error(self.damaged(file, line, offset, piece.damage.got), (file, line, offset))


class LineSource:
    """What the sources of text and JSON lines share: everything but how a record's bytes are parsed."""

    files: LineFiles | WholeFiles

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return self.files.paths

    def __len__(self) -> int:
        return len(self.files)

    def locate(self, index: int) -> dict[str, Any]:
        return self.files.locate(index)

    def close(self) -> None:
        """Frees the temporary disk space of compressed files."""
        self.files.close()

    def content_id(self, *settings: Any) -> str:
        """Hash of the settings and of every file's bytes; reads all files once."""
        settings = (*settings, *self.files.limits.changed("record_bytes", "line_bytes", "json_depth"))
        return hashing.content_id([*settings, *(filesystem.file_id(path, self.files.options) for path in self.paths)])


def _record(data: bytes, paragraph: bool) -> bytes:
    if paragraph:
        return data.rstrip()
    line = data.partition(b"\n")[0]
    return line[:-1] if line.endswith(b"\r") else line


def checked_cursor(
    cursor: Cursor | None, stamps: Sequence[filesystem.Stamp], kind: Callable[[int], str]
) -> tuple[int, int, int]:
    """File, offset and line of a saved place; a place that cannot be here is refused."""
    n_files = len(stamps)
    if cursor is None:
        return 0, 0, 0
    values = [cursor.get(k) for k in ("file", "offset", "line")] if isinstance(cursor, Mapping) else []
    good = len(values) == 3 and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    if good:
        file, offset, line = (int(v or 0) for v in values)
        inside = file < n_files and (offset <= stamps[file].size or kind(file) != "plain")
        if inside or (file == n_files and offset == 0):
            return file, offset, line
    raise StateError(
        "a cursor of this source: file, offset and line",
        got=repr(cursor)[:200],
        where=f"a source of {n_files} files",
        fix="use a cursor that came from the same files, or start from the beginning",
    )
