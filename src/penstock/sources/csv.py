"""CSV and TSV files, plain, gzip or Zstandard: each record is a row, by number or in one pass.

Random access goes by a byte-offset index of records (see `lines`); line breaks inside of quotes are part of a cell. A
column's type is that of the first thousand records: whole numbers, decimal numbers or else text; it can be said with
`types`. Every record is held to it, so a cell that does not fit is a bad record, never another dtype.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import DataError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources import compressed, json_fields, splits
from penstock.sources.csv_cutting import Quoting
from penstock.sources.cutting import BOM, Piece
from penstock.sources.formats import FORMATS, Options
from penstock.sources.line_errors import bare, place, too_long
from penstock.sources.line_source import LineSource
from penstock.sources.lines import Chunk, LineFiles
from penstock.sources.ranges import Cursor, Range
from penstock.storage import filesystem

SUFFIXES = FORMATS["csv"].suffixes
TYPES = ("str", "int", "float", "bool")
_SAMPLED = 1000
_HEAD = 1 << 20
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_DIGITS = re.compile(r"[-+]?[0-9]{16,400}")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_NO_NUMBER = ("", "nan", "NaN", "NA", "null", "NULL")
_BOOLS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}


def open_path(paths: filesystem.Paths, options: Options) -> CsvFiles:
    """The opener of the registry."""
    wanted = None if options.every_field else [options.field]
    return CsvFiles(paths, wanted, text=options.field, storage_options=options.storage_options)


class CsvFiles(LineSource):
    """CSV files with the same columns. `text` is the column that `iterate` reads.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text('text,n\\n"one\\nline",1\\ntwo,2\\n')
    >>> found = CsvFiles(path).read(np.array([1, 0]))
    >>> found["text"].tolist(), found["n"].tolist()
    (['two', 'one\\nline'], [2, 1])
    """

    def __init__(
        self, paths: filesystem.Paths, columns: Sequence[str] | None = None, *, text: str = "text",
        header: bool | Sequence[str] = True, delimiter: str | None = None, quote: str | None = '"',
        types: Mapping[str, str] | None = None, limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        self.text, self.limits = text, limits
        self._asked = json_fields.check_types(types or {}, TYPES)
        _check_marks(delimiter, quote)
        first = next(iter(filesystem.expand_stamped(paths, storage_options, SUFFIXES)))
        mark = delimiter or _delimiter(first, quote or "", limits, storage_options)
        self.quoting = Quoting(mark, quote or "", header is True)
        self.files = LineFiles(
            paths, quoting=self.quoting, limits=limits, storage_options=storage_options, suffixes=SUFFIXES
        )
        splits.refuse_several(paths, self.paths)
        if isinstance(header, bool):
            self.names = self._header() if header else [f"f{i}" for i in range(len(self._sample(1)[0]))]
        else:
            self.names = _checked_names(header, "header=")
        wanted = self.names if columns is None else _checked_names(columns, "columns=")
        if unknown := [name for name in [*wanted, *self._asked] if name not in self.names]:
            raise DataError(
                f"a column {unknown[0]!r}", got=", ".join(self.names[:20]), where=self.paths[0],
                fix="name one of these; header=[...] names the columns of a file without a header",
            )  # fmt: skip
        self._places = {name: self.names.index(name) for name in wanted}
        self.types = self._inferred(wanted)

    # What columns there are.

    def _header(self) -> list[str]:
        """The names of the columns; all files must have the same."""
        found: list[str] = []
        for file, path in enumerate(self.paths):
            if not self.files.stamps[file].size:
                continue
            names = self._cells(_first_record(path, self.quoting, self.limits, self.files.options), path)
            if names[0].lstrip().startswith(('{"', "[{")):
                raise DataError(
                    "a CSV file that begins with the names of its columns", got=f"JSON: {names[0][:60]}", where=path,
                    fix="read_jsonl(path) reads one JSON object a line, read_json(path) an array of them",
                )  # fmt: skip
            names = _checked_names([name.strip() or f"Unnamed: {i}" for i, name in enumerate(names)], path)
            found = found or names
            if names != found:
                raise DataError(
                    f"the columns of {self.paths[0]}: {', '.join(found)}", got=", ".join(names), where=path,
                    fix="pass files with the same columns in the same order",
                )  # fmt: skip
        return found

    def _cells(self, record: bytes, where: str) -> list[str]:
        try:
            return self.quoting.cells(record.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(
                "text in UTF-8", got=f"byte 0x{record[error.start]:02x} ({error.reason})", where=where,
                fix="convert the file to UTF-8, for example with iconv",
            ) from error  # fmt: skip
        except ValueError as error:
            raise RecordError(
                "quotes that are closed", got=str(error), where=where,
                fix="close or double the quote; quote=None reads quotes as plain text",
            ) from error  # fmt: skip

    def _sample(self, count: int) -> list[list[str]]:
        rows: list[list[str]] = []
        for chunk in self.files.chunks(_raw, size=1 << 16):
            for record in chunk.texts:
                try:
                    rows.append(self._cells(record.encode("utf-8", "surrogateescape"), ""))
                except RecordError:
                    continue
                if len(rows) == count:
                    return rows
        if not rows:
            raise DataError("at least one record", got="none", where=self.paths[0], fix="pass files with rows")
        return rows

    def _inferred(self, wanted: Sequence[str]) -> dict[str, str]:
        if all(name in self._asked for name in wanted):
            return {name: self._asked[name] for name in wanted}
        rows = [row for row in self._sample(_SAMPLED) if len(row) == len(self.names)]
        return {name: self._asked.get(name) or _type_of([row[self._places[name]] for row in rows]) for name in wanted}

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.types)

    @property
    def text_column(self) -> str | None:
        """The column that `iterate` reads."""
        return self.text if self.text in self.names else None

    # Records.

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per column of the files."""
        return json_fields.to_columns(self._parsed(indices, self._values), self.types)

    def _values(self, record: bytes, where: str) -> list[Any]:
        cells = self._row(record, where)
        return [_value(cells[self._places[name]], kind, name, where) for name, kind in self.types.items()]

    def _row(self, record: bytes, where: str) -> list[str]:
        cells = self._cells(record, where)
        if len(cells) != len(self.names):
            raise RecordError(
                f"{len(self.names)} cells: {', '.join(self.names[:8])}", got=f"{len(cells)} cells", where=where,
                fix=f"repair the record; quote cells that hold {self.quoting.delimiter!r}",
            )  # fmt: skip
        return cells

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """The cells of the column `text` in file order; `start` is the cursor of an earlier chunk."""
        if self.text_column is None:
            raise UsageError(
                f"a column {self.text!r} of texts", got=", ".join(self.names[:20]), where=self.paths[0],
                fix="name it: text=..., or field=... in tokenize() and prepare()",
            )  # fmt: skip
        return self.files.chunks(self._parse, start, part=part)

    def _parse(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        at, limit = self.names.index(self.text), self.files.limit
        for i, (s, e) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            line, offset = int(piece.lines[i]), piece.offset + s
            try:
                if e - s > limit + 2:
                    raise too_long(path, line, offset, limit, self.files.what)
                texts.append(self._row(self.quoting.record(piece.data[s:e]), place(path, line, offset))[at])
            except RecordError as error:
                bad.append((i, bare(error)))
        return texts, bad

    def settings(self) -> tuple[Any, ...]:
        how = [self.quoting.delimiter, self.quoting.quote, self.quoting.header, self.names, list(self.types.items())]
        return "csv", orjson.dumps(how)

    def describe(self) -> dict[str, Any]:
        return {**self.files.describe("csv"), "columns": self.columns}

    def __repr__(self) -> str:
        return f"CsvFiles({len(self.paths)} files: {', '.join(self.columns)})"


def _raw(piece: Piece, _path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
    pairs = zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)
    return [piece.data[s:e].rstrip(b"\r\n").decode("utf-8", "surrogateescape") for s, e in pairs], []


def _value(cell: str, kind: str, name: str, where: str) -> Any:
    if kind == "str":
        return cell
    text = cell.strip()
    if kind == "int" and _WHOLE.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return int(text)
    if kind == "float" and (text in _NO_NUMBER or _DECIMAL.fullmatch(text) or text.lower().lstrip("+-") == "inf"):
        return float(text) if text not in _NO_NUMBER else math.nan
    if kind == "bool" and text in _BOOLS:
        return _BOOLS[text]
    raise RecordError(
        f"column {name!r} of type {kind}", got=repr(cell[:60]) if cell else "an empty cell", where=where,
        fix=f"repair the record, or read the column as it comes: types={{{name!r}: 'str'}}",
    )  # fmt: skip


def _type_of(cells: Sequence[str]) -> str:
    """The type of a column by its first cells. Numbers with leading zeros are codes, and so text.

    >>> [_type_of(cells) for cells in (["1", "-2"], ["1", "2.5"], ["1", ""], ["007"], ["true", "False"], ["a", "1"])]
    ['int', 'float', 'float', 'str', 'bool', 'str']
    """
    texts = [cell.strip() for cell in cells]
    filled = [text for text in texts if text not in _NO_NUMBER]
    if not filled:
        return "str"
    if all(_INTEGER.fullmatch(t) and -(1 << 63) <= int(t) < 1 << 63 for t in filled):
        return "int" if len(filled) == len(texts) else "float"
    if all(_DECIMAL.fullmatch(text) and not _LEADING_ZERO.match(text) for text in filled):
        return "str" if any(_DIGITS.fullmatch(t) and abs(int(t)) > 1 << 53 for t in filled) else "float"
    return "bool" if all(text in _BOOLS for text in texts) else "str"


def _first_record(path: str, quoting: Quoting, limits: Limits, options: filesystem.Options) -> bytes:
    """The first record of a file that is not blank."""
    data = _head(path, limits, options)
    while data and not (record := quoting.record(data)).strip():
        data = data[len(record) :].lstrip(b"\r\n")
    return quoting.record(data) if data else b""


def _head(path: str, limits: Limits, options: filesystem.Options) -> bytes:
    stream = compressed.open_stream(path, compressed.kind_of(path, options), limits, options)
    try:
        return compressed.read_up_to(stream, _HEAD).removeprefix(BOM)
    finally:
        stream.close()


def _delimiter(path: str, quote: str, limits: Limits, options: filesystem.Options) -> str:
    """The delimiter of a file: by its name, else the one that the first line has most of."""
    if path.lower().removesuffix(".gz").removesuffix(".zst").endswith((".tsv", ".tab")):
        return "\t"
    line = _head(path, limits, options).lstrip().partition(b"\n")[0]
    plain = re.sub(rb"%b[^%b]*%b" % ((re.escape(quote.encode()),) * 3), b"", line) if quote else line
    counts = {mark: plain.count(mark.encode()) for mark in (",", "\t", ";", "|")}
    return max(counts, key=lambda mark: counts[mark])


def _check_marks(delimiter: str | None, quote: str | None) -> None:
    for name, mark in (("delimiter", delimiter), ("quote", quote)):
        if mark is None:
            continue
        if not isinstance(mark, str) or len(mark) != 1 or not mark.isascii() or mark in "\r\n":
            raise UsageError(f"{name}= one ASCII character", got=repr(mark), fix=f"{name}=','")
    if delimiter is not None and delimiter == quote:
        raise UsageError("different characters as delimiter= and quote=", got=repr(quote), fix="quote='\"'")


def _checked_names(names: Sequence[str], where: str) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    if not listed or len(set(listed)) != len(listed) or not all(isinstance(name, str) and name for name in listed):
        raise DataError(
            "columns with different names", got=", ".join(map(repr, listed[:20])) or "none", where=where,
            fix="header=['a', 'b', ...] names the columns of a file without a header, header=False numbers them",
        )  # fmt: skip
    return listed
