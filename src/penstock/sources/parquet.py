"""Parquet files: rows by number, through pyarrow, reading only the chosen columns.

Opening reads one footer per file. A read decodes the row groups it touches (a Parquet row cannot be decoded alone) and
keeps the last few, so nearby or shuffled-in-blocks rows are cheap and scattered rows cost a row group each. Page
checksums are verified where the file has them. Strings, bytes, dates, structs, maps and lists of anything but numbers
are object columns; numbers are arrays; lists of numbers are ragged; fixed-size lists of numbers are 2-D. A missing
number or number list is a bad record; other nulls are None.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, scatter
from penstock.core.errors import (
    BadRecords,
    DataError,
    LimitError,
    PenstockError,
    RecordError,
    StateError,
    UsageError,
)
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.sources import arrow, parquet_footer
from penstock.sources.cutting import PIECE_BYTES
from penstock.sources.formats import FORMATS, Options
from penstock.sources.lines import Chunk, Cursor
from penstock.storage import filesystem
from penstock.store.doctable import check_range

SUFFIXES = FORMATS["parquet"].suffixes
_KEPT_GROUPS = 8
_KEPT_BYTES = 512 << 20


def open_path(paths: filesystem.Paths, options: Options) -> ParquetFiles:
    """The opener of the registry."""
    return ParquetFiles(paths, None if options.every_field else [options.field], text=options.field)


class ParquetFiles:
    """Parquet files as one sequence of rows. `text` is the column that `iterate` reads.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> path = tempfile.mkdtemp() + "/a.parquet"
    >>> pq.write_table(pa.table({"text": ["one", "two"], "ids": [[1, 2], [3]]}), path)
    >>> batch = ParquetFiles(path).read(np.array([1, 0]))
    >>> batch["text"].tolist(), batch["ids"].tolist()
    (['two', 'one'], [[3], [1, 2]])
    """

    def __init__(
        self, paths: filesystem.Paths, columns: Sequence[str] | None = None, *, text: str = "text",
        limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        if isinstance(columns, str):
            columns = [columns]
        self.text, self.limits, self.options = text, limits, dict(storage_options or {})
        self.paths = filesystem.expand(paths, storage_options, SUFFIXES)
        self.stamps = [filesystem.stamp(path, self.options, fresh=False) for path in self.paths]
        self.kinds: dict[str, str] = {}
        counts: list[NDArray[np.int64]] = []
        for path in self.paths:
            with self._open(path) as file, _naming(path):
                counts.append(self._inspect(file, path, columns))
        self._groups = np.concatenate([np.arange(len(c)) for c in counts])
        self._files = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
        self._firsts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
        file_rows = [int(c.sum()) for c in counts]
        self._file_firsts = np.concatenate([[0], np.cumsum(file_rows)]).astype(np.int64)
        if not len(self):
            raise DataError("at least one row", got="none", where=", ".join(self.paths[:3]), fix="pass files with rows")
        self._fresh()

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(8)]
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def _inspect(self, file: Any, path: str, columns: Sequence[str] | None) -> NDArray[np.int64]:
        """Checks one file's schema against the first file's; returns the rows of its row groups."""
        schema = file.schema_arrow
        names = list(columns) if columns is not None else list(self.kinds) or schema.names
        for name in names:
            if schema.names.count(name) != 1:
                raise DataError(
                    f"a column {name!r}" + ("" if name not in schema.names else " once"),
                    got=", ".join(schema.names[:20]),
                    where=path,
                    fix="name columns that every file has: columns=[...]",
                )
            kind = arrow.kind_of(schema.field(name), path)
            if self.kinds.setdefault(name, kind) != kind:
                raise DataError(
                    f"column {name!r} of type {self.kinds[name]}, as in {self.paths[0]}",
                    got=kind,
                    where=path,
                    fix="convert the files to one schema",
                )
        # Not `group.column(i)`: it ends the process where a column is encrypted or the footer is damaged.
        meta = file.metadata
        groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
        rows = [group.num_rows for group in groups]
        if any(group.num_columns != meta.num_columns for group in groups) or not 0 <= sum(rows) < 1 << 62:
            raise _damaged(path, ValueError(f"row groups of {rows[:8]} rows that do not fit its schema"))
        if min(rows, default=0) < 0:
            raise _damaged(path, ValueError(f"a row group of {min(rows)} rows"))
        if any(group.total_byte_size > self.limits.expansion_free_bytes for group in groups):
            self._check_expansion(self.paths.index(path), set(names))
        return np.array(rows, np.int64)

    def _check_expansion(self, file: int, names: set[str]) -> None:
        for number, sizes in enumerate(self._column_sizes(file)):
            read = [size for name, size in sizes.items() if name in names]
            packed, full = sum(stored for stored, _ in read), sum(decoded for _, decoded in read)
            if not self.limits.expansion_allowed(packed, full):
                raise LimitError(
                    f"at most {self.limits.expansion} bytes per stored byte",
                    got=f"{full} bytes from {packed}",
                    where=f"{self.paths[file]}, row group {number}",
                    fix="this looks like a decompression bomb; if it is honest, raise limits.expansion",
                )

    def _column_sizes(self, file: int) -> list[parquet_footer.Sizes]:
        return parquet_footer.column_sizes(self.paths[file], self.stamps[file].size, self.limits, self.options)

    def _group_rows(self, file: int) -> list[int]:
        """Rows of each row group of a file."""
        rows: list[int] = np.diff(self._firsts)[self._files == file].tolist()
        return rows

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        pq = need("pyarrow.parquet", extra="parquet", purpose="to read Parquet files")
        bound = self.limits.manifest_bytes
        source = filesystem.open_read(path, self.options)  # checks that it is a readable, regular file
        with source:
            # A local file is read by pyarrow itself, outside the GIL.
            place = (
                source
                if filesystem.scheme(path)
                else need("pyarrow", extra="parquet").OSFile(filesystem.local(path), "rb")
            )
            try:
                file = pq.ParquetFile(
                    place, thrift_string_size_limit=bound, thrift_container_size_limit=bound,
                    page_checksum_verification=True,
                )  # fmt: skip
            except Exception as error:
                place.close()
                raise _damaged(path, error) from error
            try:
                yield file
            finally:
                file.close(force=True)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def text_column(self) -> str:
        """The column that `iterate` reads."""
        return self.text

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.kinds)

    def _load(self, group: int) -> Any:
        """One row group as a table, kept for a while. Two threads never decode the same one at once."""
        with self._turns[group % len(self._turns)]:
            with self._lock:
                if group in self._kept:
                    self._kept.move_to_end(group)
                    return self._kept[group]
            file = int(self._files[group])
            path = self.paths[file]
            filesystem.check_unchanged(path, self.stamps[file], self.options)
            with self._open(path) as reader, _naming(path):
                table = reader.read_row_group(int(self._groups[group]), columns=self.columns, use_threads=False)
                table = arrow.without_views(table)
            if table.num_rows != self._firsts[group + 1] - self._firsts[group]:
                raise _damaged(path, ValueError(f"row group {self._groups[group]} has {table.num_rows} rows"))
            with self._lock:
                self._kept[group] = table
                while len(self._kept) > 1 and (
                    len(self._kept) > _KEPT_GROUPS or sum(t.nbytes for t in self._kept.values()) > _KEPT_BYTES
                ):
                    self._kept.popitem(last=False)
            return table

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The rows, one column per Parquet column."""
        indices = check_range(indices, len(self))
        groups = np.searchsorted(self._firsts, indices, side="right") - 1
        parts: list[tuple[NDArray[np.int64], Columns]] = []
        errors: list[RecordError] = []
        for group in np.unique(groups).tolist() or [0]:
            places = np.flatnonzero(groups == group)
            loaded = self._load(group)
            with _naming(self.paths[int(self._files[group])]):
                table = loaded.take(indices[places] - self._firsts[group])
                columns, bad = arrow.to_columns(table, self.kinds)
            for row, expected, got in bad:
                where = self.locate(int(indices[places[row]]))
                errors.append(
                    RecordError(
                        expected,
                        got=got,
                        where=f"{where['file']}, row {where['row']}",
                        fix="repair the file or read other columns",
                        row=int(places[row]),
                    )
                )
            parts.append((places, columns))
        if errors:
            raise BadRecords(sorted(errors, key=lambda e: e.row))
        return scatter(parts, len(indices))

    def iterate(self, start: Cursor | None = None) -> Iterator[Chunk]:
        """The `text` column in row order; a cursor's offset is a row of its file."""
        if self.kinds.get(self.text) != "str":
            raise UsageError(
                f"a text column {self.text!r}",
                got=", ".join(f"{name} ({kind})" for name, kind in self.kinds.items()),
                where=self.paths[0],
                fix="name it: ParquetFiles(..., text='...')",
            )
        file, row = self._place(start)
        for i in range(file, len(self.paths)):
            yield from self._iterate_file(i, row if i == file else 0)

    def _place(self, start: Cursor | None) -> tuple[int, int]:
        if start is None:
            return 0, 0
        file, row = start.get("file", -1), start.get("offset", -1)
        rows = np.diff(self._file_firsts)
        if not (0 <= file < len(rows) and 0 <= row <= rows[file]) and (file, row) != (len(rows), 0):
            raise StateError(
                "a cursor of this source", got=repr(start)[:200], where=self.paths[0], fix="start from the beginning"
            )
        return file, row

    def _iterate_file(self, file: int, row: int) -> Iterator[Chunk]:
        path, done = self.paths[file], 0
        filesystem.check_unchanged(path, self.stamps[file], self.options)
        sizes, counts = self._column_sizes(file), self._group_rows(file)
        total = sum(counts)
        if len(sizes) != len(counts):
            raise _damaged(path, ValueError(f"{len(sizes)} row groups in its footer, {len(counts)} when it was opened"))
        with self._open(path) as reader:
            for g, rows in enumerate(counts):
                if done + rows <= row:
                    done += rows
                    continue
                # Rows per chunk come from the row group alone, so chunks are cut the same whoever starts where.
                step = max(1, int(PIECE_BYTES * rows / max(1, sizes[g].get(self.text, (0, 0))[1])))
                end = done + rows
                for column in self._batches(reader, g, step, path):
                    first, done = max(row - done, 0), done + len(column)
                    if first < len(column):
                        chunk = self._chunk(column.slice(first), file, done - len(column) + first)
                        ended = done == total
                        at = 0 if ended else done
                        chunk.cursor = {"file": file + ended, "offset": at, "line": at}
                        chunk.file_bytes = int(self.stamps[file].size * (len(column) - first) / total)
                        yield chunk
                if done != end:
                    raise _damaged(path, ValueError(f"row group {g} of {rows} rows ends at row {done} of the file"))

    def _batches(self, reader: Any, group: int, step: int, path: str) -> Iterator[Any]:
        """The text column of a row group, `step` rows at a time."""
        with _naming(path):
            batches = reader.iter_batches(step, row_groups=[group], columns=[self.text], use_threads=False)
            for batch in batches:
                yield batch.column(0)

    def _chunk(self, column: Any, file: int, row: int) -> Chunk:
        chunk = Chunk([], [], {})
        for i, text in enumerate(arrow.texts(column)):
            position = (file, row + i + 1, row + i)
            if isinstance(text, str):
                chunk.add(text, position)
                continue
            where = f"{self.paths[file]}, row {row + i}"
            error = RecordError(
                f"text in column {self.text!r}", got=text.reason, where=where, fix="repair the file, or skip such rows"
            )
            chunk.add_error(error, position)
        return chunk

    def fingerprint(self) -> str:
        """Hash of the columns and of every file's bytes; reads all files once."""
        ids = [filesystem.file_id(path, self.options) for path in self.paths]
        return hashing.content_id(["parquet", *self.kinds, None, *ids])

    def describe(self) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        return {
            "kind": "parquet", "files": len(self.paths), "records": len(self), "bytes": total, "columns": self.columns,
            "row_groups": len(self._groups),
        }  # fmt: skip

    def locate(self, index: int) -> dict[str, Any]:
        file = int(np.searchsorted(self._file_firsts, index, side="right")) - 1
        group = int(np.searchsorted(self._firsts, index, side="right")) - 1
        row = int(index - self._file_firsts[file])
        return {"file": self.paths[file], "row": row, "row_group": int(self._groups[group])}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_turns", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __repr__(self) -> str:
        return f"ParquetFiles({len(self.paths)} files, {len(self)} rows: {', '.join(self.columns)})"


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Whatever pyarrow raises inside becomes an error that names the file."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # OSError, ArrowInvalid, UnicodeDecodeError of a name, OverflowError, MemoryError...
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    fix = "fetch or write the file again"
    if "crypt" in reason:
        fix = "columns that are encrypted cannot be read: decrypt the file, or read other columns with columns=[...]"
    return DataError("a readable Parquet file", got=reason, where=path, fix=fix)
