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

from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources import splits
from penstock.sources.cutting import Piece
from penstock.sources.formats import FORMATS, Options
from penstock.sources.line_errors import place, too_long
from penstock.sources.line_source import LineSource
from penstock.sources.lines import Chunk, LineFiles
from penstock.sources.ranges import Cursor, Range
from penstock.sources.whole_files import WholeFiles
from penstock.storage import filesystem

SUFFIXES = FORMATS["text"].suffixes
MODES = ("file", "line", "paragraph")


def open_path(paths: filesystem.Paths, options: Options) -> TextFiles:
    """The opener of the registry."""
    return TextFiles(paths, mode=options.by, storage_options=options.storage_options)


class TextFiles(LineSource):
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
        self.files: LineFiles | WholeFiles
        self.scanned = mode != "file"
        if mode == "file":
            self.files = WholeFiles(paths, limits, storage_options, SUFFIXES)
        else:
            self.files = LineFiles(
                paths, paragraphs=mode == "paragraph", limits=limits, storage_options=storage_options, suffixes=SUFFIXES
            )
        splits.refuse_several(paths, self.paths, texts=True)

    @property
    def text_column(self) -> str:
        """The column that `iterate` reads."""
        return "text"

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Column `text`, one str per index."""
        indices = np.asarray(indices, np.int64)
        data, bad = self.files.fetch(indices)
        texts: list[str] = []
        for row, record in enumerate(data):
            try:
                texts.append(self._decode(record))
            except UnicodeDecodeError as error:
                where = self.files.locate(int(indices[row]))
                bad.append(_not_utf8(where, record, error, row))
                texts.append("")
        if bad:
            raise BadRecords(sorted(bad, key=lambda e: e.row))
        return {"text": strings(texts)}

    def _decode(self, record: bytes) -> str:
        text = record.decode("utf-8", self.errors)
        return text.replace("\r\n", "\n") if "\r" in text else text

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """All records in file order, a few megabytes at a time; `start` is the cursor of an earlier chunk."""
        return self.files.chunks(self._parse, start, part=part)

    def _parse(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        limit = self.files.limit
        if self.mode == "line" and not piece.data.endswith(b"\r") and (piece.ends - piece.starts).max() <= limit:
            with suppress(UnicodeDecodeError):  # some line is bad: one by one below, to say which
                return _decode_lines(piece), []
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        for i, (s, e) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            record = piece.data[s:e]
            where: dict[str, Any] = {"file": path, "line": int(piece.lines[i]), "offset": piece.offset + s}
            if e - s > limit:
                bad.append((i, too_long(path, where["line"], where["offset"], limit, self.files.what)))
                continue
            try:
                # What `fetch` returns for the same record: without its line end, or the white space after a paragraph.
                texts.append(self._decode(_trim(record, self.mode)))
            except UnicodeDecodeError as error:
                bad.append((i, _not_utf8(where, record, error)))
        return texts, bad

    def settings(self) -> tuple[Any, ...]:
        return "text", self.mode, self.errors

    def describe(self) -> dict[str, Any]:
        return {**self.files.describe("text"), "mode": self.mode}

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
