"""Any sequence of records as a source: anything with `len` and `[i]`, such as a torch Dataset or a list of dicts.

A list of plain data is identified by its content. Another object is identified by its class and what its `fingerprint`
(a method or an attribute) says; without one, by its content too, which reads every record once.

A dataset that has `__getitems__(numbers)`, as torch names it, is asked for many records in one call: worth it where
records are stored in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.plain_json import identity_json
from penstock.core.read_budget import pieces, spend_held
from penstock.core.signals import surface
from penstock.sources import record_fields
from penstock.sources.arrays import Arrays
from penstock.sources.base import Source
from penstock.sources.hf import HFDataset
from penstock.sources.record_fields import FieldError, FieldType
from penstock.sources.records import PLAIN, data_kind
from penstock.sources.tables import TableSource
from penstock.sources.tfds import TFDSource

_TRIED = 100  # records that are tried for the first that can be read


@runtime_checkable
class ManyItems(Protocol):
    """A sequence that returns a list of records for a list of numbers."""

    def __getitems__(self, numbers: list[int], /) -> Sequence[Any]: ...


class RecordSource:
    """Records of a sequence as columns, one Python call each; `record_fields` says what a record may be.

    `names` are the fields to read, or the names of a tuple's items; `version` names the content for the fingerprint.

    >>> source = RecordSource(["a", "b"])
    >>> source.read(np.array([1]))["text"].tolist(), source.columns
    (['b'], ['text'])
    """

    def __init__(self, items: Any, names: Sequence[str] | None = None, version: str | None = None) -> None:
        self.items, self.names, self.version = items, _checked_names(names), version
        self._size, self._id = len(items), ""
        if not self._size:
            raise UsageError("a dataset with at least one record", got="an empty one", fix="pass some data")
        self._types: dict[str, FieldType] = {
            name: record_fields.type_of(value) for name, value in self._first().items()
        }

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._types)

    def __len__(self) -> int:
        return self._size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows: list[dict[str, Any]] = []
        bad: list[RecordError] = []
        numbers = np.asarray(indices, np.int64).tolist()
        found = self._many(numbers)
        for row, number in enumerate(numbers):
            try:
                record = self._item(number, row) if found is None else found[row]
                rows.append(self._record(record, number, row))
                if found is None:
                    spend_held(rows[-1])
            except RecordError as error:
                bad.append(error)
        if bad:
            raise BadRecords(bad)
        return {name: record_fields.column([row[name] for row in rows], kind) for name, kind in self._types.items()}

    def _first(self) -> dict[str, Any]:
        """The first of a few records that can be read: it says which columns there are."""
        problem: RecordError | None = None
        for number in range(min(self._size, _TRIED)):
            try:
                return self._fields(self._item(number, 0), number, 0)
            except RecordError as error:
                problem = problem or error
        raise problem or UsageError("a record that can be read")

    def _many(self, numbers: list[int]) -> Sequence[Any] | None:
        """All records in one call; None if the dataset has none for that, or if it fails: one by one names the bad."""
        if not numbers or not isinstance(self.items, ManyItems):
            return None
        records: list[Any] = []
        for some in pieces(numbers):
            try:
                found = self.items.__getitems__(some)
            except Exception as error:  # the user's own class
                surface(error)
                return None
            if not isinstance(found, Sequence) or len(found) != len(some):
                got = f"{len(found)} records" if isinstance(found, Sequence) else type(found).__name__
                raise UsageError(
                    f"a list of {len(some)} records from __getitems__({len(some)} numbers)",
                    got=got, where=type(self.items).__name__, fix="return one record for each number, in their order",
                )  # fmt: skip
            records += found
            spend_held([*found])
        return records

    def _item(self, number: int, row: int) -> Any:
        try:
            return self.items[number]
        except Exception as error:  # the user's own class
            surface(error)
            raise self._bad("a record", f"{type(error).__name__}: {error}", number, row) from error

    def _fields(self, record: Any, number: int, row: int) -> dict[str, Any]:
        try:
            found = record_fields.fields_of(record, self.names)
            return {name: record_fields.plain(value, name) for name, value in found.items()}
        except FieldError as error:
            raise self._bad(error.expected, error.got, number, row) from error

    def _record(self, record: Any, number: int, row: int) -> dict[str, Any]:
        """The fields of a record, each of the type of its column."""
        found = self._fields(record, number, row)
        try:
            if found.keys() != self._types.keys():
                keys = ", ".join(map(repr, self._types))
                raise FieldError(f"the fields of the first record: {keys}", ", ".join(map(repr, found)) or "none")
            return {name: record_fields.held_to(value, self._types[name], name) for name, value in found.items()}
        except FieldError as error:
            raise self._bad(error.expected, error.got, number, row) from error

    def _bad(self, expected: str, got: str, number: int, row: int) -> RecordError:
        where = f"record {number} of {type(self.items).__name__}"
        return RecordError(expected, got=got, where=where, fix='return dicts such as {"text": "..."}', row=row)

    def fingerprint(self) -> str:
        if not self._id:
            own = getattr(self.items, "fingerprint", None) if self.version is None else self.version
            kind = f"{type(self.items).__module__}.{type(self.items).__qualname__}"
            named = [] if self.names is None else ["columns", *self.names]
            if own is not None:
                self._id = hashing.content_id([kind, self._size, str(own() if callable(own) else own), *named])
            else:
                content = (self._content(i) for i in range(self._size))
                self._id = hashing.content_id(chain(named, content))
        return self._id

    def _content(self, number: int) -> bytes:
        """What a record holds, for the fingerprint; of a bad record, why it is one."""
        try:
            return _content(self._fields(self._item(number, 0), number, 0))
        except RecordError as error:
            return f"bad record: {error.expected}".encode()

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "records": self._size, "columns": self.columns}

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": int(index)}

    def __repr__(self) -> str:
        return f"RecordSource({self._size} records: {', '.join(self.columns)})"


def _checked_names(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else list(names)
    if not listed or len(set(listed)) != len(listed) or not all(isinstance(name, str) for name in listed):
        raise UsageError("columns as a list of different names", got=repr(names), fix='columns=["image", "label"]')
    return listed


def _content(record: dict[str, Any]) -> bytes:
    try:
        return identity_json(record, PLAIN)
    except TypeError:
        pass
    try:
        return identity_json(record, PLAIN, _hashed)
    except TypeError as error:
        raise UsageError(
            "records of plain data, or a dataset with a fingerprint",
            got=str(error),
            fix="add `fingerprint = 'version 1'` to the dataset's class, and change it when its content changes",
        ) from error


def _hashed(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": hashing.content_id([value])}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"array": hashing.content_id([np.ascontiguousarray(value)]), "dtype": str(value.dtype)}
    if isinstance(value, complex | np.complexfloating):
        return {"complex": str(value)}
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def source_of(data: Any) -> Source | None:
    """The source of an object in memory: a source, a datasets or TFDS object, a sequence. None for anything else."""
    kind = data_kind(data)
    if kind == "source":
        return data  # type: ignore[no-any-return]
    if kind == "hf":
        return HFDataset(data)
    if kind == "tfds":
        return TFDSource(data)
    if kind == "table":
        return TableSource(data)
    return RecordSource(data) if kind == "sequence" else None


def adapted(data: Any) -> Source:
    """The source of an object in memory; raises for what is none."""
    found = source_of(data)
    if found is None:
        runs = isinstance(data, Iterable) and not isinstance(data, Mapping)
        raise UsageError(
            "a source, or a dataset: anything with __len__ and __getitem__",
            got=f"{type(data).__name__}, which can only be iterated" if runs else type(data).__name__,
            fix="penstock.from_stream(it), which reads it in its order, or add __len__ and __getitem__" if runs else
            "penstock.from_arrays(columns) for a dict of columns, a list for few records, read_*() for files",
        )  # fmt: skip
    return found


def dataset_source(dataset: Any, columns: Sequence[str] | None, version: str | None) -> Source:
    """The source of a dataset with `len` and `[i]`; arguments that only such a dataset has are refused for others."""
    if data_kind(dataset) == "sequence" or isinstance(dataset, list | tuple):
        return RecordSource(dataset, columns, version)
    if isinstance(dataset, str | os.PathLike):
        raise UsageError("a dataset with len() and [i]", got="a path", fix="penstock.read_*(path), or from_hf(name)")
    if columns is not None or version is not None:
        raise UsageError(
            "columns= and version= for a dataset with len() and [i] of its own",
            got=type(dataset).__name__, fix="leave them out, or choose columns with .map()",
        )  # fmt: skip
    return adapted(dataset)


def records_source(records: Any, columns: Sequence[str] | None) -> Source:
    """The source of records in memory: a list is made into columns at once, so that each has one type.

    A field that some records do not have is None there; in a column of numbers that is refused.
    """
    kind = data_kind(records)
    if kind == "table":
        found = TableSource(records)
        return found if columns is None else TableSource(found.table.select(_known(columns, found.columns)))
    if kind == "mapping":
        raise UsageError(
            "records, one dict each", got="a dict, which looks like columns", fix="penstock.from_arrays(columns)"
        )
    if kind in ("iterator", "stream") and not callable(records):
        records, kind = list(records), "sequence"
    if kind != "sequence" or not isinstance(records, Sequence) or isinstance(records, str):
        raise UsageError(
            "a list of dicts (or named tuples, dataclasses, tuples), or a table of pandas, Polars or Arrow",
            got=type(records).__name__ if kind != "paths" else "a path",
            fix="penstock.read_*() for files, from_dataset(dataset) for an object with len() and [i], from_hf(dataset)"
            if not callable(getattr(records, "collect", None))
            else "pass the table that its .collect() computes",
        )
    return _columns_of(records, _checked_names(columns))


def _columns_of(records: Sequence[Any], names: Sequence[str] | None) -> Arrays:
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        try:
            found = record_fields.fields_of(record, None if isinstance(record, Mapping) else names)
            rows.append({name: record_fields.plain(value, name) for name, value in found.items()})
        except FieldError as error:
            raise UsageError(
                error.expected,
                got=error.got,
                where=f"record {number}",
                fix='pass dicts such as {"text": "..."}, of values that NumPy reads: tensor.detach().float()',
            ) from error
    if not rows:
        raise UsageError("at least one record", got="an empty list", fix="pass some data")
    every = list(dict.fromkeys(name for row in rows for name in row))
    chosen = every if names is None else _known(names, every)
    return Arrays({name: _values(name, rows) for name in chosen})


def _values(name: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    values = [row.get(name) for row in rows]
    missing = next((i for i, value in enumerate(values) if value is None), None)
    numeric = next((i for i, value in enumerate(values) if record_fields.type_of(value).shape == "array"), None)
    if missing is not None and numeric is not None:
        raise UsageError(
            f"a number in field {name!r} of each record, as in record {numeric}",
            got="None" if name in rows[missing] else "no such field",
            where=f"record {missing}",
            fix=f"fill it in (float('nan') is a number), or leave the field out: columns=[...] without {name!r}",
        )
    return values


def _known(names: Sequence[str], every: Sequence[str]) -> list[str]:
    if unknown := [name for name in names if name not in every]:
        raise UsageError(f"a field {unknown[0]!r}", got=", ".join(map(repr, every[:20])), fix="name one of these")
    return list(names)
