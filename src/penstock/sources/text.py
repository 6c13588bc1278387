"""Plain text files: each file, each line or each paragraph is a record, column `text`.

UTF-8, with or without a byte order mark, `\\r\\n` read as `\\n`, plain or compressed. `mode="file"` opens one
file per record and keeps nothing; the other modes index byte offsets (see `lines`).
One pass with `iterate` decodes large pieces at once where they are valid UTF-8: several hundred MB/s for files, about
two million records a second for short lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources import compressed
from penstock.sources.cutting import BOM, PIECE_BYTES, Piece
from penstock.sources.formats import FORMATS, Options
from penstock.sources.lines import Chunk, Cursor, LineFiles, bare, checked_cursor, place, too_long
from penstock.storage import filesystem

SUFFIXES = FORMATS["text"].suffixes
MODES = ("file", "line", "paragraph")


def open_path(paths: filesystem.Paths, options: Options) -> TextFiles:
    """The opener of the registry."""
    return TextFiles(paths, mode=options.by)


class TextFiles:
    """Text files as records. `errors="replace"` puts U+FFFD for bytes that are not UTF-8 instead of refusing them.

    In a folder, files that end like text are read; a glob or a list names its files.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("one\\n\\ntwo\\nthree\\n")
    >>> TextFiles(path, mode="line").read(np.array([2, 0]))["text"].tolist()
    ['three', 'one']
    >>> TextFiles(path, mode="paragraph").read(np.array([1]))["text"].tolist()
    ['two\\nthree']
    """

    def __init__(
        self, paths: filesystem.Paths, *, mode: str = "file", errors: str = "strict", limits: Limits = LIMITS,
        storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        if mode not in MODES:
            raise UsageError(
                f"mode as one of {', '.join(MODES)}", got=repr(mode), fix="mode='file' makes one record of each file"
            )
        if errors not in ("strict", "replace"):
            raise UsageError(
                "errors as 'strict' or 'replace'", got=repr(errors), fix="leave it out to get an error for each"
            )
        self.mode, self.errors = mode, errors
        self._source: LineFiles | _WholeFiles
        if mode == "file":
            self._source = _WholeFiles(paths, limits, storage_options)
        else:
            self._source = LineFiles(
                paths, paragraphs=mode == "paragraph", limits=limits, storage_options=storage_options, suffixes=SUFFIXES
            )

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return self._source.paths

    @property
    def text_column(self) -> str:
        """The column that `iterate` reads."""
        return "text"

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Column `text`, one str per index."""
        indices = np.asarray(indices, np.int64)
        data, bad = self._source.fetch(indices)
        failed = {error.row for error in bad}
        texts: list[str] = []
        for row, record in enumerate(data):
            try:
                texts.append(self._decode(record))
            except UnicodeDecodeError as error:
                where = self._source.locate(int(indices[row]))
                bad.append(_not_utf8(where, record, error, row))
                failed.add(row)
                texts.append("")
        if bad:
            raise BadRecords(sorted(bad, key=lambda e: e.row))
        return {"text": strings(texts)}

    def _decode(self, record: bytes) -> str:
        text = record.decode("utf-8", self.errors)
        return text.replace("\r\n", "\n") if "\r" in text else text

    def iterate(self, start: Cursor | None = None) -> Iterator[Chunk]:
        """All records in file order, a few megabytes at a time; `start` is the cursor of an earlier chunk."""
        return self._source.chunks(self._parse, start)

    def _parse(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        limit = self._source.limit
        if self.mode == "line" and not piece.data.endswith(b"\r") and (piece.ends - piece.starts).max() <= limit:
            with suppress(UnicodeDecodeError):  # some line is bad: one by one below, to say which
                return _decode_lines(piece), []
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        for i, (s, e) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            record = piece.data[s:e]
            where: dict[str, Any] = {"file": path, "line": int(piece.lines[i]), "offset": piece.offset + s}
            if e - s > limit:
                bad.append((i, too_long(path, where["line"], where["offset"], limit, self._source.what)))
                continue
            try:
                # What `fetch` returns for the same record: without its line end, or the white space after a paragraph.
                texts.append(self._decode(_trim(record, self.mode)))
            except UnicodeDecodeError as error:
                bad.append((i, _not_utf8(where, record, error)))
        return texts, bad

    def fingerprint(self) -> str:
        """Hash of the mode and of every file's bytes; reads all files once."""
        ids = [filesystem.file_id(path, self._source.options) for path in self.paths]
        return hashing.content_id(["text", self.mode, self.errors, *ids])

    def describe(self) -> dict[str, Any]:
        return {**self._source.describe("text"), "mode": self.mode}

    def locate(self, index: int) -> dict[str, Any]:
        return self._source.locate(index)

    def close(self) -> None:
        """Frees temporary disk space, if any is used."""
        self._source.close()

    def __repr__(self) -> str:
        return f"TextFiles({len(self.paths)} files, mode={self.mode!r})"


def _trim(record: bytes, mode: str) -> bytes:
    if mode == "paragraph":
        return record.rstrip()
    return record.removesuffix(b"\r") if mode == "line" else record


def _decode_lines(piece: Piece) -> list[str]:
    """All lines by one decoding and one split, several times faster than line by line."""
    text = piece.data.decode("utf-8")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    if piece.offset == 0:
        lines[0] = lines[0].removeprefix("\ufeff")
    numbers = piece.lines - piece.first_line
    return [lines[i] for i in numbers.tolist()]


def _not_utf8(where: dict[str, Any], record: bytes, error: UnicodeDecodeError, row: int = 0) -> RecordError:
    utf16 = record.startswith((b"\xff\xfe", b"\xfe\xff"))
    at = place(where["file"], where["line"] + record.count(b"\n", 0, error.start), where["offset"] + error.start)
    return RecordError(
        "text in UTF-8",
        got="UTF-16, by its first bytes" if utf16 else f"byte 0x{record[error.start]:02x} ({error.reason})",
        where=at,
        fix="convert the file to UTF-8" + ("" if utf16 else ", or read with errors='replace'"),
        row=row,
    )


class _WholeFiles:
    """Each file one record, read on demand. Empty files are not records."""

    what = "file"

    def __init__(self, paths: filesystem.Paths, limits: Limits, options: filesystem.Options) -> None:
        self.options = dict(options or {})
        found = filesystem.expand(paths, options, SUFFIXES)
        stamps = [filesystem.stamp(path, self.options, fresh=False) for path in found]
        self.empty = [path for path, stamp in zip(found, stamps, strict=True) if not stamp.size]
        self.paths = [path for path, stamp in zip(found, stamps, strict=True) if stamp.size]
        self.stamps = [stamp for stamp in stamps if stamp.size]
        self.limits, self.limit = limits, limits.record_bytes
        if not self.paths:
            raise DataError(
                "at least one record",
                got="only empty files" if len(found) > 1 else "an empty file",
                where=", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else ""),
                fix="pass files with content",
            )

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, indices: NDArray[np.int64]) -> tuple[list[bytes], list[RecordError]]:
        out, errors = [], []
        for row, file in enumerate(indices.tolist()):
            if not 0 <= file < len(self.paths):
                raise UsageError(f"record numbers in [0, {len(self)})", got=str(file))
            try:
                out.append(self._load(file))
            except RecordError as error:
                error.row = row
                errors.append(bare(error))
                out.append(b"")
        return out, errors

    def _load(self, file: int) -> bytes:
        path = self.paths[file]
        if self.stamps[file].size > self.limit:
            raise too_long(path, 1, 0, self.limit, "file")
        kind = compressed.kind_of(path, self.options)
        stream = compressed.open_stream(path, kind, self.limits, self.options)
        try:
            data = compressed.read_up_to(stream, self.limit + 1)
        except DataError as error:
            raise RecordError(error.expected, got=error.got, where=error.where, fix=error.fix) from error
        finally:
            stream.close()
        if len(data) > self.limit:
            raise too_long(path, 1, 0, self.limit, "file")
        if kind == "plain" and len(data) != self.stamps[file].size:
            raise DataError(
                "the file as it was when it was opened",
                got=f"it changed ({self.stamps[file].size} bytes then, {len(data)} now)",
                where=path,
                fix="make the source again, and let nothing write to its files",
            )
        return data.removeprefix(BOM)

    def chunks(self, parse: Any, start: Cursor | None = None, size: int = PIECE_BYTES) -> Iterator[Chunk]:
        file, _, _ = checked_cursor(start, self.stamps, lambda _: "plain")
        chunk, held = Chunk([], [], {}), 0
        for i in range(file, len(self.paths)):
            data, errors = self.fetch(np.array([i]))
            if not errors:
                whole, one = np.array([0]), np.array([1])
                texts, bad = parse(Piece(data[0], 0, whole, np.array([len(data[0])]), one, 1, 0, 0), self.paths[i])
                errors = [error for _, error in bad]
                chunk.texts += texts
            (chunk.error_positions if errors else chunk.positions).append((i, 1, 0))
            chunk.errors += errors
            held += len(data[0])
            chunk.file_bytes += self.stamps[i].size
            if held >= size or i + 1 == len(self.paths):
                chunk.cursor = {"file": i + 1, "offset": 0, "line": 0}
                yield chunk
                chunk, held = Chunk([], [], {}), 0

    def locate(self, index: int) -> dict[str, Any]:
        return {"file": self.paths[index], "line": 1, "offset": 0}

    def describe(self, kind: str) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        return {
            "kind": kind, "files": len(self.paths), "records": len(self.paths), "bytes": total,
            "files_without_records": len(self.empty),
        }  # fmt: skip

    def close(self) -> None:
        """Nothing is held open."""
