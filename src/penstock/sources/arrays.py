"""Data that is already in memory: named arrays, or a list of strings.

No number is copied when a source is made from arrays; a read is one NumPy selection per column. A column of more than
4 M characters (or bytes, if it is of bytes) is packed into memory that child processes share. The fingerprint hashes
all content once, so arrays must not be changed afterwards. Memory-mapped arrays work and stay on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Column, Columns, Ragged, nbytes, strings
from penstock.core.errors import PenstockError, StateError, UsageError
from penstock.core.exact import exact_array, exact_rows
from penstock.core.mapped import MappedFile, map_of
from penstock.core.packed_texts import PackedColumn, PackedTexts, pack
from penstock.core.plain_json import identity_json
from penstock.core.signals import surface
from penstock.sources.cutting import PIECE_BYTES
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Cursor, Range, row_ranges
from penstock.store.doctable import check_range

PACKED_CHARACTERS = 4 << 20


class Arrays:
    """Columns of equal length: arrays, `Ragged`, or lists (of numbers, of number lists, of anything else).

    >>> source = Arrays({"x": np.arange(4), "tag": ["a", "b", "c", "d"], "ids": [[1, 2], [3], [], [4]]})
    >>> batch = source.read(np.array([3, 0]))
    >>> batch["x"].tolist(), batch["tag"].tolist(), batch["ids"].tolist()
    ([3, 0], ['d', 'a'], [[4], [1, 2]])
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise UsageError(
                "a dict of columns", got="an empty one" if isinstance(columns, Mapping) else type(columns).__name__,
                fix='from_arrays({"x": array})',
            )  # fmt: skip
        self._columns: dict[str, Column | PackedColumn] = {
            str(name): _column(str(name), values) for name, values in columns.items()
        }
        (first, column), *others = self._columns.items()
        self._rows = len(column)
        for name, other in others:
            if len(other) != self._rows:
                raise UsageError(
                    "columns of one length",
                    got=f"{first!r} has {self._rows} rows, {name!r} has {len(other)}",
                    fix="cut or complete the shorter column",
                )
        if not self._rows:
            raise UsageError("at least one row", got=f"{first!r} has none", fix="pass some data")
        self._id = ""
        self._bytes = sum(c.nbytes if isinstance(c, PackedColumn) else nbytes({n: c}) for n, c in self._columns.items())
        self._files = self._mapped()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: NDArray[np.int64]) -> Columns:
        for file in self._files:
            file.check()
        rows = check_range(indices, self._rows)
        return {n: c.take(rows) if isinstance(c, Ragged | PackedColumn) else c[rows] for n, c in self._columns.items()}

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """The bytes of these rows; of objects other than text and bytes, nothing."""
        return sum(_bytes_of(column, indices) for column in self._columns.values())

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        return sum(map(_largest, self._columns.values()))

    def _mapped(self) -> list[MappedFile]:
        """The files behind memory-mapped columns."""
        parts = [c.values if isinstance(c, Ragged) else c for c in self._columns.values()]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        return [file for part in arrays if (file := map_of(part)) is not None]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = self._mapped()

    def fingerprint(self) -> str:
        """Hash of names, dtypes, shapes and all values."""
        if not self._id:
            parts: list[Any] = ["arrays"]
            for name, column in self._columns.items():
                parts += [name, *_parts(name, column)]
            self._id = hashing.content_id(parts)
        return self._id

    def in_memory(self) -> dict[str, Column]:
        """See `sources.base.MemorySource`: columns of numbers; texts are packed already."""
        return {name: _in_one_piece(column) for name, column in self._columns.items() if _may_move(column)}

    def use_moved(self, values: dict[str, Column]) -> None:
        """See `sources.base.MemorySource`."""
        self._columns = {**self._columns, **values}

    def describe(self) -> dict[str, Any]:
        return {"kind": "arrays", "records": self._rows, "bytes": self._bytes, "columns": self.columns}

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": int(index)}

    def __repr__(self) -> str:
        return f"Arrays({self._rows} rows: {', '.join(self._columns)})"


def _may_move(column: Column | PackedColumn) -> TypeGuard[Column]:
    if isinstance(column, PackedColumn):
        return False
    values = column.values if isinstance(column, Ragged) else column
    return values.dtype != object and map_of(values) is None


def _in_one_piece(column: Column) -> Column:
    """Every other row of an array, and the like, would be sent as a part of the pickle."""
    if isinstance(column, Ragged):
        return Ragged(np.ascontiguousarray(column.values), np.ascontiguousarray(column.offsets))
    return column if column.flags.forc else np.ascontiguousarray(column)


def _bytes_of(column: Column | PackedColumn, rows: NDArray[np.int64]) -> int:
    if isinstance(column, PackedColumn):
        return column.bytes_of(rows)
    if isinstance(column, Ragged):
        return int((column.offsets[rows + 1] - column.offsets[rows]).sum()) * column.values.itemsize
    if column.dtype != object:
        return len(rows) * (column.nbytes // max(1, len(column)))
    return sum(len(value) for value in column[rows].flat if isinstance(value, str | bytes))


def _largest(column: Column | PackedColumn) -> int:
    if isinstance(column, PackedColumn):
        return column.largest
    if isinstance(column, Ragged):
        return int(column.lengths.max(initial=0)) * column.values.itemsize
    if column.dtype != object:
        return column.nbytes // max(1, len(column))
    return max((len(value) for value in column.flat if isinstance(value, str | bytes)), default=0)


def _column(name: str, values: Any) -> Column | PackedColumn:
    column = _array(name, values)
    if not isinstance(column, np.ndarray) or column.dtype != object or column.ndim != 1:
        return column
    packed = pack(column, PACKED_CHARACTERS)
    return column if packed is None else packed


def _array(name: str, values: Any) -> Column:
    if isinstance(values, Ragged):
        return values
    if isinstance(values, np.ndarray):
        values = exact_array(values)
        if values.ndim == 0:
            raise UsageError(
                "columns with one value per row", got="a single number", where=f"column {name!r}", fix="[x]"
            )
        # Fixed-width text is an accident of how the array was made; rows are str like everywhere else.
        return strings(values.tolist()) if values.dtype.kind in "US" and values.ndim == 1 else values
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        array = np.asarray(values) if hasattr(values, "__array__") else None
        if array is not None and array.ndim and array.dtype != object:
            return array
        raise UsageError(
            "a column as an array or a list", got=type(values).__name__, where=f"column {name!r}", fix="list(...) it"
        )
    if values and all(_is_number(v) for v in values):
        return exact_array([v[()] if isinstance(v, np.ndarray) else v for v in values])
    if values and all(isinstance(v, list | tuple | np.ndarray) for v in values):
        return _rows(values)
    return strings(values)


def _is_number(value: Any) -> bool:
    """Whether a value is one number: Python's, NumPy's, or an array without dimensions."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biufcmM"
    return type(value) in (int, float, bool, np.bool_) or isinstance(value, np.number | np.datetime64)


def _rows(values: Sequence[Any]) -> Column:
    """Rows of numbers: one array when they have one shape, ragged when they are lists of different lengths."""
    if any(isinstance(v, np.ndarray) and v.ndim == 0 for v in values):
        return strings(values)
    try:
        arrays = [exact_array(v) if len(v) else np.empty(0, np.int64) for v in values]
    except PenstockError:
        raise
    except ValueError as error:  # lists of lists of different lengths, of which NumPy has no array
        surface(error)
        return strings(values)
    if any(a.dtype.kind not in "biuf" for a in arrays):
        return strings(values)
    arrays = exact_rows(arrays)
    if len({a.shape for a in arrays}) == 1 and isinstance(values[0], np.ndarray):
        return np.stack(arrays)
    return Ragged.of(arrays) if all(a.ndim == 1 for a in arrays) else strings(values)


def _parts(name: str, column: Column | PackedColumn) -> list[Any]:
    if isinstance(column, PackedColumn):
        return ["objects", str((len(column),)), *column]
    if isinstance(column, Ragged):
        low, high = int(column.offsets[0]), int(column.offsets[-1])
        return ["ragged", column.lengths, np.asarray(column.values[low:high])]
    if column.dtype != object:
        return ["array", np.asarray(column)]
    return ["objects", str(column.shape), *(_object(name, i, value) for i, value in enumerate(column.flat))]


def _object(name: str, row: int, value: Any) -> Any:
    if isinstance(value, str | bytes) or value is None:
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    try:
        return identity_json(value, orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise UsageError(
            "values with content that can be hashed: numbers, text, bytes, arrays, JSON-like lists and dicts",
            got=type(value).__name__,
            where=f"column {name!r}, row {row}",
            fix="convert them first",
        ) from error


class Texts:
    """A list of strings, column `text`.

    >>> Texts(["one", "two"]).read(np.array([1]))["text"].tolist()
    ['two']
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str):
            raise UsageError("a list of texts", got="one str", fix="from_texts([text])")
        listed = list(texts)
        for i, text in enumerate(listed):
            if not isinstance(text, str):
                raise UsageError("texts as str", got=type(text).__name__, where=f"text {i}", fix="decode or drop it")
        if not listed:
            raise UsageError("at least one text", got="an empty list", fix="pass some data")
        self._characters = sum(map(len, listed))
        # Many texts are packed into memory that child processes share.
        self._texts: Sequence[str] = PackedTexts.of(listed) if self._characters > PACKED_CHARACTERS else listed
        self._column = None if isinstance(self._texts, PackedTexts) else strings(listed)
        self._id = ""

    @property
    def text_column(self) -> str:
        """The column that `iterate` reads."""
        return "text"

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_range(indices, len(self))
        if isinstance(self._texts, PackedTexts):
            return {"text": self._texts.take(rows)}
        return {"text": self._column[rows]} if self._column is not None else {}

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """See `sources.base.SizedRows`."""
        if isinstance(self._texts, PackedTexts):
            return self._texts.bytes_of(indices)
        return sum(len(self._texts[i]) for i in indices.tolist())

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        return self._texts.largest if isinstance(self._texts, PackedTexts) else max(map(len, self._texts), default=0)

    def ranges(self, most: int) -> list[Range]:
        """Parts of about `most` characters."""
        return row_ranges(len(self), self._characters, most)

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """All texts in order; the cursor's offset is the number of the next text."""
        start, end = (start, len(self)) if part is None else (start or part.start, part.stop["offset"])
        at = 0 if start is None else start.get("offset", -1)
        if not isinstance(at, int) or not 0 <= at <= len(self):
            raise StateError(
                "a cursor of these texts",
                got=repr(start)[:200],
                where=f"{len(self)} texts",
                fix="start from the beginning",
            )
        while at < end:
            some, held = list[str](), 0
            while at + len(some) < end and held < PIECE_BYTES:
                more = self._texts[at + len(some) : min(at + len(some) + 256, end)]
                for text in more:
                    if held < PIECE_BYTES:
                        some.append(text)
                        held += len(text)
            stop = at + len(some)
            places = [(0, i + 1, i) for i in range(at, stop)]
            yield Chunk(some, places, {"file": 0, "offset": stop, "line": stop}, file_bytes=held)
            at = stop

    def fingerprint(self) -> str:
        """Hash of all texts."""
        self._id = self._id or hashing.content_id(chain(["texts"], self._texts))
        return self._id

    def describe(self) -> dict[str, Any]:
        return {"kind": "texts", "records": len(self), "bytes": self._characters}

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": int(index)}

    def __repr__(self) -> str:
        return f"Texts({len(self)})"
