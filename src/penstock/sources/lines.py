"""Line files: records found by byte offset, plain or compressed, here or behind a URL.

Random access keeps one int64 per record (two where blank lines shift the numbers) and reads nothing else into memory.
The index is built on the first `len` or `fetch`, by one scan of each file. A compressed file is decompressed once
into a temporary file, one for all, that has no name, is bounded by the limits and vanishes with the process. `chunks`
is the one-pass way: no index, no copy, and a cursor after every chunk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import DataError, RecordError
from penstock.core.ledger import Entry
from penstock.core.limits import Limits
from penstock.sources import compressed
from penstock.sources.csv_cutting import QuotedCutter, Quoting
from penstock.sources.cutting import PIECE_BYTES, Cutter, Ints, Piece, Until
from penstock.sources.line_errors import no_records, place, too_long
from penstock.sources.line_index import Index, Wanted, claim_remote, read_remote, record_of, scan, scan_remote
from penstock.sources.line_ranges import checked_cursor, exact_bounds, line_ranges
from penstock.sources.line_scan import scan_lines
from penstock.sources.mapped_lines import FEWEST, MappedLines
from penstock.sources.ranges import Cursor, Range
from penstock.sources.record_spans import RecordTable, Spans
from penstock.sources.spool import Spool, Tee
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.storage.ranges_ahead import RangesAhead
from penstock.storage.sizes import PAGE
from penstock.store.arrays import distinct

Position = tuple[int, int, int]
"""File number, 1-based line (or record) in it, byte offset (or row) in it."""
_PICKLED_INDEX = 64 << 20
_READS = 3  # of a remote file that seems damaged
_SCANS = 8  # remote files that are indexed at once
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
    columns: Columns = field(default_factory=dict)
    """Columns that stay beside the tokens of each text, as they are stored."""

    def add(self, text: str, position: Position) -> None:
        self.texts.append(text)
        self.positions.append(position)

    def add_error(self, error: RecordError, position: Position) -> None:
        self.errors.append(error)
        self.error_positions.append(position)


Parse = Callable[[Piece, str], tuple[list[str], list[tuple[int, RecordError]]]]


class LineFiles:
    """The records of some line files, as bytes. Safe for many threads; pickles without handles."""

    def __init__(
        self,
        paths: filesystem.Paths,
        *,
        paragraphs: bool = False,
        quoting: Quoting | None = None,
        limits: Limits,
        storage_options: filesystem.Options = None,
        suffixes: Sequence[str] = (),
    ) -> None:
        self.options = dict(storage_options or {})
        found = filesystem.expand_stamped(paths, storage_options, suffixes)
        self.paths, self.stamps = list(found), filesystem.stamps(found, self.options)
        self.paragraphs, self.quoting, self.limits = paragraphs, quoting, limits
        self.limit = limits.record_bytes if paragraphs else limits.line_bytes
        self._kinds: dict[int, str] = {}
        self._fresh()
        if not any(self._has_content(i) for i in range(len(self.paths))):
            raise no_records(self.paths, quoting is not None and any(stamp.size for stamp in self.stamps))

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._spool: Spool | None = None
        self._regions = np.full(len(self.paths), -1)  # where the bytes of a decompressed file begin in the spool, or -1
        self._checked: set[int] = set()
        self._mapped = MappedLines(self.paths, self.stamps) if len(self.paths) >= FEWEST else None
        self.ahead = RangesAhead() if any(map(filesystem.scheme, self.paths)) else None

    _built: RecordTable | None = None

    def kind(self, file: int) -> str:
        """How a file is compressed, looked at when it is first needed."""
        if file not in self._kinds:
            self._kinds[file] = compressed.kind_of(self.paths[file], self.options, expected=self.stamps[file])
        return self._kinds[file]

    def _has_content(self, file: int) -> bool:
        if not self.stamps[file].size:
            return self._cut_off(file)
        cutter, stream = self.cutter(file)
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

    def cutter(
        self, file: int, offset: int = 0, line: int = 0, stop: int | None = None, checked: set[str] | None = None
    ) -> tuple[Cutter, compressed.Stream]:
        """Cuts records from byte `offset` on, before which there are `line` lines, up to byte `stop`."""
        self.check(file)
        stream = self._stream(file, checked)
        try:
            compressed.skip(stream, offset, self.paths[file])
        except BaseException:
            stream.close()
            raise
        if stop is not None:
            stream = Until(stream, stop - offset)
        return self._cut(stream, offset, line), stream

    def _cut(self, stream: compressed.Stream, offset: int = 0, line: int = 0) -> Cutter:
        if self.quoting is not None:
            return QuotedCutter(stream, self.quoting, limit=self.limit, offset=offset, line=line)
        return Cutter(stream, paragraphs=self.paragraphs, limit=self.limit, offset=offset, line=line)

    def _stream(self, file: int, checked: set[str] | None = None, verify: bool = True) -> compressed.Stream:
        path, kind, stamp, limits = self.paths[file], self.kind(file), self.stamps[file], self.limits
        return compressed.open_stream(path, kind, limits, self.options, expected=stamp, checked=checked, verify=verify)

    def check(self, file: int) -> None:
        """Raises when the file is not the one that was there at the beginning."""
        if not filesystem.checked_by_reads(self.paths[file], self.stamps[file]):
            filesystem.check_unchanged(self.paths[file], self.stamps[file], self.options)

    def _paged(self, file: int) -> bool:
        """Whether a file is remote and not compressed: read by merged ranges, and checked page by page."""
        return bool(filesystem.scheme(self.paths[file])) and self.kind(file) == "plain"

    # ---- random access

    @property
    def index(self) -> list[Index]:
        """One index per file, built on first use."""
        return self._indexed().indexes

    def _indexed(self) -> RecordTable:
        """Where the records of all files are."""
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._drop_spool()  # what an attempt that failed has left
                    ahead = self._build_remote()
                    indexes = [ahead.get(i) or self._built_again(i) for i in range(len(self.paths))]
                    files = [i for i, found in enumerate(self.stamps) if found.size and self.kind(i) != "plain"]
                    self._built = RecordTable(indexes, files)
        return self._built

    def _build(self, file: int, seen: set[str] | None = None) -> Index:
        if not self.stamps[file].size:
            cut_off = self._cut_off(file)
            return Index(np.zeros(int(cut_off), np.int64), None, 0, _EMPTY if cut_off else "")
        if self._paged(file):
            self.check(file)
            opened = partial(self._stream, file, verify=False)
            return scan_remote(opened, self.paths[file], self.stamps[file], self._cut, paragraphs=self.paragraphs)
        cutter, stream = self.cutter(file, checked=seen)
        try:
            if self.kind(file) == "plain":
                if (found := self._quick_index(stream, file)) is not None:
                    return found
                compressed.skip(stream, 0, self.paths[file])
            elif self.kind(file) != "plain":
                stream = self._spooling(file, stream)
                cutter = self._cut(stream)
            return scan(cutter, paragraphs=self.paragraphs)
        except BaseException:
            self._unspool(file)
            raise
        finally:
            stream.close()

    def _quick_index(self, stream: compressed.Stream, _: int) -> Index | None:
        """The index of a plain local file in one scan, where that needs no pieces of complete records."""
        return None if self.paragraphs or self.quoting is not None else scan_lines(stream.read, self.limit)

    def _built_again(self, file: int) -> Index:
        """The index; a remote file that seems damaged is read again first: its transfer may be at fault."""
        seen: set[str] = set()
        for _ in range(_READS if filesystem.scheme(self.paths[file]) else 1):
            self._unspool(file)
            found = self._build(file, seen)
            if not found.damage:
                break
        return found

    def _build_remote(self) -> dict[int, Index]:
        """The indexes of remote files, several at once: each waits for its storage most of the time."""
        remote = [file for file, path in enumerate(self.paths) if filesystem.scheme(path) and self.stamps[file].size]
        if len(remote) < 2:
            return {}
        with ThreadPoolExecutor(_SCANS, "penstock-index") as pool:
            plain = [file for file, paged in zip(remote, pool.map(self._paged, remote), strict=True) if paged]
            return dict(zip(plain, pool.map(self._build, plain), strict=True))

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
        start = int(self._regions[file])
        self._regions[file] = -1
        if start >= 0 and self._spool is not None:
            self._spool.cut(start)

    def spooled(self) -> int:
        """Bytes of temporary disk in use."""
        return 0 if self._spool is None else self._spool.size

    def _decompressed(self, files: Ints) -> tuple[int, Ints]:
        """Descriptor of the copies of compressed files, and where each begins; made again after unpickling."""
        with self._lock:
            for file in distinct(files[self._regions[files] < 0]).tolist():
                self._decompress(file, _READS if filesystem.scheme(self.paths[file]) else 1, set())
            if self._spool is None:
                raise DataError("a decompressed copy", where=self.paths[0], fix="report this")
            return self._spool.handle, self._regions[files]

    def _decompress(self, file: int, reads: int, seen: set[str]) -> None:
        tee = self._spooling(file, self.cutter(file, checked=seen)[1])
        try:
            while tee.read(PIECE_BYTES):
                pass
        except BaseException as error:
            if isinstance(error, DataError) and self._built is not None and self._built.indexes[file].damage:
                return
            self._unspool(file)
            if not isinstance(error, DataError) or reads == 1:
                raise
            self._decompress(file, reads - 1, seen)  # its transfer may be at fault
        finally:
            tee.close()

    def __len__(self) -> int:
        return len(self._indexed())

    def split(self, indices: NDArray[np.int64]) -> tuple[Ints, Ints]:
        """File and row in the file of each record number."""
        return self._indexed().split(np.asarray(indices, np.int64), self.paths[0])

    def fetch(self, indices: NDArray[np.int64]) -> tuple[list[bytes], list[RecordError]]:
        """The bytes of each record, and the errors of rows that cannot be read (their bytes are empty)."""
        out, errors = [b""] * len(indices), list[RecordError]()
        spans = self._spans(indices, errors)
        for at, data in self._read(spans):
            record = self._record(data)
            if len(record) > self.limit:
                errors.append(self._too_long(int(indices[at]), at))
            else:
                out[at] = record
        errors.sort(key=lambda e: e.row)
        return out, errors

    def _record(self, data: bytes) -> bytes:
        """The record at the beginning of its range."""
        return record_of(data, self.paragraphs) if self.quoting is None else self.quoting.record(data)

    def _too_long(self, number: int, at: int) -> RecordError:
        found = self.locate(number)
        error = too_long(found["file"], found["line"], found["offset"], self.limit, self.what)
        error.row = at
        return error

    def claim_ahead(self, indices: NDArray[np.int64], step: int) -> Callable[[], int]:
        """Requests these records before they are read, see `sources.base.RowsAheadSource`."""
        found = self._spans(indices, [])
        files, place = np.unique(found.files, return_inverse=True)
        found = found[np.array([self._paged(file) for file in files.tolist()], bool)[place]]
        return claim_remote(found.table(), self.paths, self.stamps, self.index, self.options, self.ahead, step)

    @property
    def range_unit(self) -> int:
        return PAGE if all(self.kind(file) == "plain" for file in range(len(self.paths))) else 0  # else fetched as one

    def record_ranges(self, indices: NDArray[np.int64]) -> Ints:
        return self._spans(indices, []).table()

    def _spans(self, indices: NDArray[np.int64], errors: list[RecordError]) -> Spans:
        """The byte ranges of records; those that are known to be damaged are errors."""
        found, bad = self._indexed().spans(np.asarray(indices, np.int64), self.paths[0], self.limit + 3)
        for at, file, row, start in zip(
            *(a.tolist() for a in (bad.places, bad.files, bad.rows, bad.starts)), strict=True
        ):
            errors.append(self.damaged(file, self.index[file].line(row), start, self.index[file].damage, at))
        return found

    def _read(self, spans: Spans) -> Iterator[tuple[int, bytes]]:
        """Place and bytes of each range; those of all remote files with one set of concurrent requests."""
        copied = self._indexed().is_compressed[spans.files]
        if copied.any():
            here = spans[copied]
            handle, base = self._decompressed(here.files)
            starts, stops, paths = (base + here.starts).tolist(), (base + here.stops).tolist(), self.paths
            for at, file, start, stop in zip(here.places.tolist(), here.files.tolist(), starts, stops, strict=True):
                yield at, filesystem.read_at(handle, start, stop, paths[file])
        if copied.all():
            return
        plain = spans[~copied] if copied.any() else spans
        if self._mapped is not None:
            held = self._mapped.held(plain.files)
            here = plain if held.all() else plain[held]
            yield from zip(here.places.tolist(), self._mapped.read(here.files, here.starts, here.stops), strict=True)
            if held.all():
                return
            plain = plain[~held]
        yield from self._read_plain(plain.by_file())

    def _read_plain(self, wanted: list[Wanted]) -> Iterator[tuple[int, bytes]]:
        remote = [] if self.ahead is None else [one for one in wanted if self._paged(one.file)]
        for one in remote:
            if one.file not in self._checked:  # asking a server each time would double the cost
                self.check(one.file)
                self._checked.add(one.file)
        found = iter(read_remote(remote, self.paths, self.stamps, self.index, self.options, self.ahead))
        for one in wanted:
            if remote and self._paged(one.file):
                yield from zip(one.places, found, strict=False)
            else:
                path, stamp = self.paths[one.file], self.stamps[one.file]
                yield from zip(one.places, filesystem.read_ranges(path, one.ranges, expected=stamp), strict=True)

    @property
    def cuttable(self) -> bool:
        """Whether the next record is found from any byte on; inside of quotes, no line break begins one."""
        return self.quoting is None

    @property
    def what(self) -> str:
        return "paragraph" if self.paragraphs else "line" if self.quoting is None else "record"

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

    def file_ids(self) -> list[str]:
        """The id of each file's bytes. Remote files are indexed first, which reads them once for both."""
        if any(map(filesystem.scheme, self.paths)):
            self._indexed()
        return file_ids(self.paths, self.stamps, self.options)

    def describe(self, kind: str) -> dict[str, Any]:
        """Plain facts; records and blank lines only once they have been counted."""
        facts: dict[str, Any] = {"kind": kind, "files": len(self.paths), "bytes": sum(s.size for s in self.stamps)}
        if self._built is not None:
            facts["records"] = len(self)
            facts["files_without_records"] = sum(not len(i.starts) for i in self._built.indexes)
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
        self._regions.fill(-1)

    def __getstate__(self) -> dict[str, Any]:
        state = {
            k: v
            for k, v in self.__dict__.items()
            if k not in ("_lock", "_spool", "_regions", "_checked", "_mapped", "ahead")
        }
        if self._built is not None and self._built.nbytes > _PICKLED_INDEX:
            del state["_built"]  # cheaper to scan again than to send
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    # ---- one pass

    def ranges(self, most: int) -> list[Range]:
        return line_ranges(self, most)

    def chunks(
        self, parse: Parse, start: Cursor | None = None, size: int = PIECE_BYTES, part: Range | None = None
    ) -> Iterator[Chunk]:
        """Chunks of about `size` bytes in file order, small files together, from `start` on; of `part` if given."""
        last, end = len(self.paths), 0
        if part is not None:
            first, stop = exact_bounds(self, part)
            last, end, start = stop["file"], stop["offset"], first if start is None else start
        file, offset, line = checked_cursor(start, self.stamps, self.kind)
        chunk, room = Chunk([], [], {}), size
        while file < last or (file == last and offset < end):
            if not self.stamps[file].size:
                if self._cut_off(file):
                    chunk.add_error(self.damaged(file, 1, 0, _EMPTY), (file, 1, 0))
                file, offset, line = file + 1, 0, 0
                continue
            cutter, stream = self.cutter(file, offset, line, end if file == last else None)
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
            if file == last:  # the range ends inside of this file
                offset, line = cutter.offset, cutter.line
                break
            file, offset, line = file + 1, 0, 0
            if room <= 0:
                chunk.cursor = {"file": file, "offset": 0, "line": 0}
                yield chunk
                chunk, room = Chunk([], [], {}), size
        if room < size or chunk.errors:  # a file damaged before its first line uses no room
            chunk.cursor = {"file": file, "offset": offset, "line": line}
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
