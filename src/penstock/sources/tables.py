"""Tables in memory: pyarrow, pandas, Polars, and every other object with the Arrow C stream interface.

Nothing is copied where the library keeps its columns as Arrow does. A read takes rows out of the table; the fingerprint
hashes all values once, so a table must not be changed afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.sources.arrow import kind_of, return_memory, to_columns
from penstock.sources.arrow_content import content_parts
from penstock.sources.arrow_views import without_views
from penstock.sources.block_bytes import SizedByBlocks, TableBytes
from penstock.store.doctable import check_range

_HASHED_ROWS = 1 << 16


class TableSource(SizedByBlocks):
    """The rows of a table.

    >>> import pyarrow as pa
    >>> source = TableSource(pa.table({"text": ["one", "two"], "n": [1, 2]}))
    >>> source.read(np.array([1]))["n"].tolist(), source.columns
    ([2], ['text', 'n'])
    """

    def __init__(self, data: Any) -> None:
        self.table, self._where = as_table(data), f"a {_title(data)}"
        if not self.table.num_rows:
            raise UsageError("a table with at least one row", got="an empty one", where=self._where, fix="pass data")
        self._kinds = {field.name: kind_of(field, self._where) for field in self.table.schema}
        self._id = ""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._kinds)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per column of the table; a row with a null among its numbers is a bad record."""
        asked = check_range(indices, len(self))
        columns, bad = to_columns(self.table.take(asked), self._kinds)
        if bad:
            raise BadRecords([self._bad(asked, *one) for one in sorted(bad, key=lambda b: b[0])])
        return columns

    def _measure(self) -> TableBytes:
        return TableBytes(self.table.columns)

    def _bad(self, asked: NDArray[np.int64], row: int, expected: str, got: str) -> RecordError:
        where, fix = f"{self._where}, row {int(asked[row])}", "fill or drop such rows, or add .skip_errors()"
        return RecordError(expected, got=got, where=where, fix=fix, row=row)

    def fingerprint(self) -> str:
        """Hash of column names, types and all values."""
        if not self._id:
            parts: list[Any] = ["table", orjson.dumps(list(self._kinds.items()))]
            for lo in range(0, len(self), _HASHED_ROWS):
                some = self.table.slice(lo, _HASHED_ROWS)
                parts.append(hashing.content_id(p for name in self.columns for p in content_parts(some.column(name))))
            self._id = hashing.content_id(parts)
        return self._id

    def in_memory(self) -> Any:
        """See `sources.base.MemorySource`."""
        return self.table

    def use_moved(self, values: Any) -> None:
        """See `sources.base.MemorySource`."""
        self.table = values
        return_memory()

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "table", "records": len(self), "bytes": int(self.table.nbytes), "columns": self.columns,
        }  # fmt: skip

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": int(index)}

    def __repr__(self) -> str:
        return f"TableSource({len(self)} rows: {', '.join(self.columns)})"


def as_table(data: Any) -> Any:
    """A pyarrow table of the rows of any table; where pandas has NaN for a missing number, it stays NaN."""
    if type(data).__name__ == "Series":
        raise UsageError(
            "a table",
            got=f"one column, a {_title(data)}",
            fix="series.to_frame(), or penstock.from_arrays({'x': series})",
        )
    pa = need("pyarrow", extra="parquet", purpose=f"to read a {_title(data)}")
    pandas = ("pandas", "DataFrame") in [(_library(kind), kind.__name__) for kind in type(data).__mro__]
    try:
        table = pa.Table.from_pandas(_named(data), preserve_index=False) if pandas else pa.table(data)
    except Exception as error:
        surface(error)
        raise UsageError(
            "a table whose columns each hold values of one type",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            where=f"a {_title(data)}",
            fix="convert the column, for example with astype(str)",
        ) from error
    if len(set(table.column_names)) != table.num_columns or not table.num_columns:
        raise UsageError(
            "a table of columns with different names", got=", ".join(table.column_names[:20]) or "no columns",
            where=f"a {_title(data)}", fix="rename them",
        )  # fmt: skip
    return without_views(_keeping_nan(table) if pandas else table)


def _named(frame: Any) -> Any:
    """A DataFrame whose column names are text: they may be numbers."""
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def _keeping_nan(table: Any) -> Any:
    compute = need("pyarrow.compute", extra="parquet")
    types = need("pyarrow", extra="parquet").types
    for i, field in enumerate(table.schema):
        if types.is_floating(field.type) and table.column(i).null_count:
            table = table.set_column(i, field, compute.fill_null(table.column(i), float("nan")))
    return table


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _title(data: Any) -> str:
    return f"{_library(type(data))} {type(data).__name__}"
