"""Cutting CSV into records: a line break inside of quotes does not end one.

A quote opens a quoted cell only at the beginning of a cell, and is doubled inside of it, as Python's `csv` has it. A
quote that is never closed spoils its own line: the record is that line, which does not parse, and reading continues
with the next one. Nothing but a record's first byte decides where it ends, so random access, one pass and a reader that
continues from a saved place meet the same records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from penstock.sources.compressed import Stream
from penstock.sources.cutting import BOM, PIECE_BYTES, Cutter, Piece


@dataclass(frozen=True)
class Quoting:
    """How the cells of a CSV file are separated, and whether its first record holds their names.

    With an empty `quote`, quotes are plain text and each line is a record.
    """

    delimiter: str = ","
    quote: str = '"'
    header: bool = True

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """One record, with its line break unless it is the last."""
        return _pattern(self.delimiter, self.quote)

    def record(self, data: bytes) -> bytes:
        r"""The record at the beginning of `data`, without its line break; the first line where a quote is not closed.

        Files of Windows that were written as text twice end lines with "\r\r\n": no cell ends with such a "\r".
        """
        found = self.pattern.match(data)
        return (found[0] if found else data.partition(b"\n")[0]).removesuffix(b"\n").rstrip(b"\r")

    def cells(self, record: str) -> list[str]:
        """The cells of a record. Raises ValueError where a quote is not closed.

        >>> Quoting().cells('1,"say ""no"", he said",')
        ['1', 'say "no", he said', '']
        """
        mark, quote = self.delimiter, self.quote
        if not quote or quote not in record:
            return record.split(mark)
        found, at, size = list[str](), 0, len(record)
        while at <= size:
            parts = list[str]()
            if record.startswith(quote, at):
                at += 1
                while True:
                    end = record.find(quote, at)
                    if end < 0:
                        raise ValueError(f"a quote that is not closed: {record[at - 1 : at + 59]!r}")
                    parts.append(record[at:end])
                    at = end + 1
                    if not record.startswith(quote, at):
                        break
                    parts.append(quote)
                    at += 1
            stop = record.find(mark, at)
            stop = size if stop < 0 else stop
            found.append("".join([*parts, record[at:stop]]))
            at = stop + 1
        return found


@cache
def _pattern(delimiter: str, quote: str) -> re.Pattern[bytes]:
    d, q = re.escape(delimiter.encode()), re.escape(quote.encode())
    if not quote:
        return re.compile(rb"[^\n]*+(?:\n|\Z)")
    cell = rb"(?:%b(?:[^%b]++|%b%b)*+%b[^%b\n]*+|(?!%b)[^%b\n]*+)" % (q, q, q, q, q, d, q, d)
    return re.compile(rb"%b(?:%b%b)*+(?:\n|\Z)" % (cell, d, cell))


class QuotedCutter(Cutter):
    """Takes pieces of complete CSV records from a stream; the header of a file is left out."""

    def __init__(self, stream: Stream, quoting: Quoting, *, limit: int, offset: int = 0, line: int = 0) -> None:
        super().__init__(stream, paragraphs=False, limit=limit, offset=offset, line=line)
        self._quoting, self._header_left = quoting, quoting.header and offset == 0

    def next(self, want: int = PIECE_BYTES) -> Piece | None:
        """The next piece of about `want` bytes; None when the file is done."""
        if self.finished:
            return None
        want = max(want, 1)
        size = want
        while True:
            self._fill(size + 1)
            ends = self._ends(want)
            if ends or self._ended:
                break
            if len(self._data) > self._limit:
                end = self._data.find(b"\n") + 1
                if not end:
                    return self._pass_over()
                ends = [end]  # a quote is not closed within the limit: the line alone is a bad record
                break
            size = 2 * len(self._data)
        if not ends and not self._data:
            self.finished = True
            if self._damage is None:
                return None
        piece = self._piece_of(ends)
        self._data = self._data[len(piece.data) :]
        self.finished = self._ended and not self._data
        piece.damage = self._damage if self.finished else None
        return piece

    def _ends(self, want: int) -> list[int]:
        """Where records end: all within `want` bytes, at least one; none while its end is not there yet."""
        match, data, found, at = self._quoting.pattern.match, self._data, list[int](), 0
        while at < len(data):
            record = match(data, at + self._mark(at))
            if record is None or not (record[0].endswith(b"\n") or self._ended):
                if not self._ended:
                    break
                at = data.find(b"\n", at) + 1 or len(data)  # a quote that is never closed: the line is the record
            elif self._damage is not None and not record[0].endswith(b"\n"):
                self._data = data[:at]  # a last record that is cut in its middle is the damaged one
                break
            else:
                at = record.end()
            if found and at > want:
                break
            found.append(at)
        return found

    def _mark(self, at: int) -> int:
        return len(BOM) if at == 0 and self.offset == 0 and self._data.startswith(BOM) else 0

    def _piece_of(self, ends: list[int]) -> Piece:
        data = self._data[: ends[-1] if ends else 0]
        offset, line = self.offset, self.line
        stops = np.array(ends, np.int64)
        starts = np.concatenate([[self._mark(0)], stops[:-1]]) if ends else stops
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        lines = line + 1 + np.searchsorted(newlines, starts)
        keep = np.array([bool(data[s:e].strip(b" \r\n")) for s, e in zip(starts.tolist(), ends, strict=True)], bool)
        if self._header_left and keep.any():
            keep[np.argmax(keep)] = False
            self._header_left = False
        self._advance(data)
        return Piece(data, offset, starts[keep], stops[keep], lines[keep], line + 1, self.offset, self.line)
