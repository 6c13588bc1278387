"""The texts of a source that is read by number, in one pass: for formats that have no faster way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, StateError, UsageError
from penstock.sources.line_errors import bare
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Cursor, Range, row_ranges

_ROWS = 1024  # records of a chunk


class RowTexts(ABC):
    """Adds `ranges`, `iterate` and `text_column` to a source with `read`; `text` is the column of texts."""

    text: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: NDArray[np.int64]) -> Columns: ...

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]: ...

    @abstractmethod
    def place(self, number: int) -> tuple[int, int]:
        """The file of a record, and its number in the file."""

    @abstractmethod
    def describe(self) -> dict[str, Any]: ...

    @property
    def text_column(self) -> str | None:
        """The column that `iterate` reads."""
        return self.text if self.text in self.columns else None

    def ranges(self, most: int) -> list[Range]:
        """Parts of about `most` bytes."""
        return row_ranges(len(self), self.describe().get("bytes"), most)

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """The texts of all records; the cursor's offset is the number of the next record."""
        if self.text_column is None:
            raise UsageError(
                f"a column {self.text!r} of texts", got=", ".join(self.columns[:20]),
                fix="name the column that holds them: field=... in tokenize() and prepare()",
            )  # fmt: skip
        start, end = (start, len(self)) if part is None else (start or part.start, part.stop["offset"])
        at = 0 if start is None else start.get("offset", -1)
        if not isinstance(at, int) or not 0 <= at <= end:
            raise StateError("a cursor of this source", got=repr(start)[:200], fix="start from the beginning")
        size = int(self.describe().get("bytes") or 0)
        while at < end:
            stop = min(end, at + _ROWS)
            yield self._chunk(at, stop, size * stop // len(self) - size * at // len(self))
            at = stop

    def _chunk(self, at: int, stop: int, size: int) -> Chunk:
        chunk = Chunk([], [], {"file": 0, "offset": stop, "line": stop}, file_bytes=size)
        numbers = np.arange(at, stop)
        try:
            columns = self.read(numbers)
        except BadRecords as error:
            for bad in error.errors:
                chunk.add_error(bare(bad), self._position(at + bad.row))
            numbers = np.delete(numbers, [bad.row for bad in error.errors])
            columns = self.read(numbers) if len(numbers) else {self.text: np.empty(0, object)}
        for number, text in zip(numbers.tolist(), columns[self.text], strict=True):
            if isinstance(text, str):
                chunk.add(text, self._position(number))
                continue
            got = "null" if text is None else type(text).__name__
            wrong = RecordError(f"text in column {self.text!r}", got=got, where=f"record {number}", fix="repair it")
            chunk.add_error(wrong, self._position(number))
        return chunk

    def _position(self, number: int) -> tuple[int, int, int]:
        file, row = self.place(number)
        return file, row + 1, row
