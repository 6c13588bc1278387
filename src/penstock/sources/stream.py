"""Records of a stream: an iterable, or a function that makes one. They can only be read in order, from the front.

The promise is narrower than that of a source with random access. The stream must give the same records each time that
it is read. Record n is reached by reading over the n before it, so resuming costs that replay, and every rank reads the
full stream and keeps its own rows. The last records are held, for threads that ask a little out of order: fewer where
they are large, but twice as many as anybody has asked back. An order far from the stream's own (`.shuffle()` without a
window) is refused, since each row would read the stream again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError, UserCodeError
from penstock.core.function_id import code_id
from penstock.core.held_bytes import held_bytes
from penstock.core.read_budget import spend_held
from penstock.core.signals import surface
from penstock.sources import record_fields
from penstock.sources.record_fields import FieldError, FieldType
from penstock.sources.records import data_kind

HELD_BYTES, LEAST_HELD = 64 << 20, 64  # records beyond this number are held up to these bytes
_SPARE_PASSES = 8  # over the stream, before reading it again and again is refused


class StreamSource:
    """The records of `stream`, by number; `length` of them, counted by one pass where it is not said.

    >>> source = StreamSource(lambda: ({"n": i} for i in range(5)))
    >>> source.read(np.array([1, 3]))["n"].tolist(), len(source)
    ([1, 3], 5)
    """

    def __init__(
        self, stream: Callable[[], Iterable[Any]] | Iterable[Any], names: Sequence[str] | None = None, *,
        length: int | None = None, version: str | None = None, buffer: int = 10_000,
    ) -> None:  # fmt: skip
        kind = data_kind(stream)
        if kind == "iterator":
            raise UsageError(
                "a stream that can be read again, for epochs, ranks and resuming",
                got=f"a {type(stream).__name__}, which can be read once",
                fix="pass the function that makes it: from_stream(make_records), not make_records()",
            )
        if kind not in ("stream", "hf stream", "sequence"):
            raise UsageError(
                "a function that returns an iterator, or an iterable", got=type(stream).__name__,
                fix="from_records(records) for data in memory, read_*() for files",
            )  # fmt: skip
        for name, value, least in (("length", length, 1), ("buffer", buffer, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError(f"{name}= of at least {least}", got=repr(value), fix=f"{name}=10_000")
        self.stream, self.version, self.buffer = stream, version, buffer
        self.names = None if names is None else [names] if isinstance(names, str) else list(names)
        self._length = length
        self._fresh()
        self._types: dict[str, FieldType] = {}
        first = self._fields(self._get([0])[0], 0, 0)
        self._types = {name: record_fields.type_of(value) for name, value in first.items()}

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # with their bytes
        self._bytes, self._back = 0, 0  # of all that are held; the most records that anybody has asked back
        self._records: Iterator[Any] | None = None
        self._next = self._passed = self._asked = 0

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._types)

    @property
    def held_records(self) -> int:
        return self.buffer

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self._begin())
        return self._length

    def _begin(self) -> Iterator[Any]:
        made = self.stream() if callable(self.stream) and not isinstance(self.stream, Iterable) else self.stream
        try:
            return iter(made)
        except TypeError as error:
            raise UsageError(
                "a function that returns an iterator", got=type(made).__name__, fix="yield the records in it"
            ) from error

    def _get(self, numbers: Sequence[int]) -> list[Any]:
        """The records with these numbers; the stream is read from the front again for one that has gone by."""
        with self._lock:
            self._asked += len(numbers)
            found = {}
            for number in sorted(set(numbers)):
                self._back = max(self._back, self._next - number)
                found[number] = self._one(number)
                spend_held(found[number])
        return [found[number] for number in numbers]

    def _one(self, number: int) -> Any:
        if number in self._held:
            return self._held[number][0]
        if self._records is None or number < self._next:
            self._records, self._next = self._begin(), 0
        while True:
            self._passed += 1
            if self._passed > _SPARE_PASSES * max(self._length or 0, self.buffer) + 4 * self._asked:
                raise UsageError(
                    "the records of a stream in order, or nearly so",
                    got="an order that reads it again for each row: .shuffle() makes one, and so do .filter() and"
                    " .skip_errors(), which replace a row by one from anywhere in the stream",
                    where="from_stream",
                    fix=".window_shuffle(1000) keeps near its order; leave rows out in the function that makes the"
                    " stream; or from_records(list(stream)), or write files",
                )  # fmt: skip
            try:
                record = next(self._records)
            except StopIteration:
                raise DataError(
                    f"at least {number + 1} records in the stream", got=f"{self._next}", where="from_stream",
                    fix="length= the number of records; a stream must be the same each time that it is read",
                ) from None  # fmt: skip
            except Exception as error:
                surface(error)
                self._records = None
                raise UserCodeError(
                    "a record from the stream", got=f"{type(error).__name__}: {str(error)[:300]}",
                    where=f"record {self._next} of the stream", fix="fix the function, or leave such records out in it",
                ) from error  # fmt: skip
            self._hold(record)
            if self._next > number:
                return record

    def _hold(self, record: Any) -> None:
        size = held_bytes(record)
        self._bytes += size - self._held.pop(self._next, (None, 0))[1]
        self._held[self._next] = record, size
        self._next += 1
        least = max(LEAST_HELD, 2 * self._back)
        while len(self._held) > self.buffer or (self._bytes > HELD_BYTES and len(self._held) > least):
            self._bytes -= self._held.popitem(last=False)[1][1]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        numbers = np.asarray(indices, np.int64).tolist()
        rows: list[dict[str, Any]] = []
        bad: list[RecordError] = []
        for row, (number, record) in enumerate(zip(numbers, self._get(numbers), strict=True)):
            try:
                rows.append(self._held_to(self._fields(record, number, row), number, row))
            except RecordError as error:
                bad.append(error)
        if bad:
            raise BadRecords(bad)
        return {name: record_fields.column([row[name] for row in rows], kind) for name, kind in self._types.items()}

    def _fields(self, record: Any, number: int, row: int) -> dict[str, Any]:
        try:
            found = record_fields.fields_of(record, self.names)
            return {name: record_fields.plain(value, name) for name, value in found.items()}
        except FieldError as error:
            raise _bad(error, number, row) from error

    def _held_to(self, found: dict[str, Any], number: int, row: int) -> dict[str, Any]:
        try:
            if found.keys() != self._types.keys():
                expected = f"the fields of the first record: {', '.join(map(repr, self._types))}"
                raise FieldError(expected, ", ".join(map(repr, found)) or "none")
            return {name: record_fields.held_to(value, self._types[name], name) for name, value in found.items()}
        except FieldError as error:
            raise _bad(error, number, row) from error

    def fingerprint(self) -> str:
        """What a stream can say of itself without being read: its code or class, its length, and `version`."""
        named = [] if self.names is None else self.names
        about = code_id(self.stream) if self.version is None else self.version
        return hashing.content_id(["stream", about, len(self), *named])

    def describe(self) -> dict[str, Any]:
        return {"kind": "stream", "records": self._length, "columns": self.columns}

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": int(index)}

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_lock", "_held", "_bytes", "_back", "_records", "_next", "_passed", "_asked")
        return {name: value for name, value in self.__dict__.items() if name not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __repr__(self) -> str:
        return f"StreamSource({self._length} records: {', '.join(self.columns)})"


def _bad(error: FieldError, number: int, row: int) -> RecordError:
    where, fix = f"record {number} of the stream", 'yield dicts such as {"text": "..."}'
    return RecordError(error.expected, got=error.got, where=where, fix=fix, row=row)
