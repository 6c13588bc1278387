"""Any sequence of records as a source: dicts or strings with `len` and `[i]`, such as a user's own dataset class.

A list of plain data is identified by its content. Another object is identified by its class and what its `fingerprint`
(a method or an attribute) says; without one, by its content too, which reads every record once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, from_rows
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.sources.base import Source
from penstock.sources.hf import HFDataset
from penstock.sources.records import PLAIN, data_kind, refused_table
from penstock.sources.tfds import TFDSource


class RecordSource:
    """Records of a sequence as columns, one Python call each; a string is `{"text": string}`.

    >>> source = RecordSource(["a", "b"])
    >>> source.read(np.array([1]))["text"].tolist(), source.columns
    (['b'], ['text'])
    """

    def __init__(self, items: Any) -> None:
        self.items = items
        self._size, self._id = len(items), ""
        if not self._size:
            raise UsageError("a dataset with at least one record", got="an empty one", fix="pass some data")
        self.columns = list(self._record(0, 0))

    def __len__(self) -> int:
        return self._size

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows: list[dict[str, Any]] = []
        bad: list[RecordError] = []
        for row, number in enumerate(np.asarray(indices, np.int64).tolist()):
            try:
                rows.append(self._record(number, row))
            except RecordError as error:
                bad.append(error)
        if bad:
            raise BadRecords(bad)
        return from_rows(rows) if rows else {name: np.empty(0, object) for name in self.columns}

    def _record(self, number: int, row: int) -> dict[str, Any]:
        try:
            record = self.items[number]
        except Exception as error:  # the user's own class
            raise self._bad("a record", f"{type(error).__name__}: {error}", number, row) from error
        if isinstance(record, str):
            return {"text": record}
        if not isinstance(record, Mapping):
            raise self._bad("a dict or a string as each record", type(record).__name__, number, row)
        return dict(record)

    def _bad(self, expected: str, got: str, number: int, row: int) -> RecordError:
        where = f"record {number} of {type(self.items).__name__}"
        return RecordError(expected, got=got, where=where, fix='return dicts such as {"text": "..."}', row=row)

    def fingerprint(self) -> str:
        if not self._id:
            own = getattr(self.items, "fingerprint", None)
            kind = f"{type(self.items).__module__}.{type(self.items).__qualname__}"
            if own is not None:
                self._id = hashing.content_id([kind, self._size, str(own() if callable(own) else own)])
            else:
                self._id = hashing.content_id(_content(self._record(i, 0)) for i in range(self._size))
        return self._id

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "records": self._size, "columns": self.columns}

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": int(index)}


def _content(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=PLAIN)
    except TypeError as error:
        raise UsageError(
            "records of plain data, or a dataset with a fingerprint",
            got=str(error),
            fix="add `fingerprint = 'version 1'` to the dataset's class, and change it when its content changes",
        ) from error


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
        raise refused_table(data)
    return RecordSource(data) if kind == "sequence" else None


def adapted(data: Any) -> Source:
    """The source of an object in memory; raises for what is none."""
    found = source_of(data)
    if found is None:
        raise UsageError(
            "a source, or a dataset: anything with __len__ and __getitem__",
            got=type(data).__name__,
            fix="penstock.from_arrays(columns) for a dict of columns, a list for few records, read_*() for files",
        )
    return found
