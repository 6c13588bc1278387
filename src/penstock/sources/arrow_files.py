"""Arrow IPC files, of the file and of the stream format, memory-mapped: Feather 2, and what `datasets` keeps on disk.

Opening looks at every record batch once, for its rows; values are validated when a batch is first read, so that
offsets of a damaged file cannot point anywhere. Uncompressed batches are read in place and cost no memory; the last few
compressed ones are kept. A remote file is read into memory, up to `limits.spool_bytes`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, scatter
from penstock.core.errors import BadRecords, DataError, LimitError, PenstockError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.mapped import MappedFile, map_file
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.order.lru_cache import LruCache
from penstock.sources import arrow, arrow_views, splits
from penstock.sources.block_bytes import BlockBytes, SizedByBlocks, take_rows
from penstock.sources.formats import FORMATS, Options
from penstock.sources.row_texts import RowTexts
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.store.doctable import check_range

_MAGIC = b"ARROW1"
_KEPT = 16
_REMOTE_BYTES = 4 << 30


def open_path(paths: filesystem.Paths, options: Options) -> ArrowFiles:
    """The opener of the registry."""
    wanted = None if options.every_field else [options.field]
    return ArrowFiles(paths, wanted, storage_options=options.storage_options)


class ArrowFiles(SizedByBlocks, RowTexts):
    """The rows of Arrow IPC files with one schema.

    >>> import tempfile, pyarrow as pa, pyarrow.feather
    >>> path = tempfile.mkdtemp() + "/a.arrow"
    >>> pa.feather.write_feather(pa.table({"text": ["one", "two"]}), path)
    >>> ArrowFiles(path).read(np.array([1]))["text"].tolist()
    ['two']
    """

    scanned = held = True  # a remote file is copied when it is opened

    def __init__(
        self, paths: filesystem.Paths, columns: Sequence[str] | None = None, *, limits: Limits = LIMITS,
        storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        if isinstance(columns, str):
            columns = [columns]
        self.text = columns[0] if columns is not None and len(columns) == 1 else "text"
        self.limits, self.options = limits, dict(storage_options or {})
        found = filesystem.expand_stamped(paths, storage_options, FORMATS["arrow"].suffixes)
        self.paths, self.stamps = list(found), filesystem.stamps(found, self.options)
        splits.refuse_several(paths, self.paths)
        self.kinds: dict[str, str] = {}
        self._fresh()
        counts: list[list[int]] = []
        sizes: list[int] = []
        for file, path in enumerate(self.paths):
            with _naming(path):
                self._inspect(self._file(file).schema, path, columns)
                batches = [(batch.num_rows, _stored_bytes(batch, self.kinds)) for batch in self._file(file).batches()]
            counts.append([rows for rows, _ in batches])
            sizes += [size for _, size in batches]
        self._files = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
        self._numbers = np.concatenate([np.arange(len(c)) for c in counts]).astype(np.int64)
        self._firsts = np.concatenate([[0], np.cumsum([n for c in counts for n in c])]).astype(np.int64)
        self._file_firsts = np.concatenate([[0], np.cumsum([sum(c) for c in counts])]).astype(np.int64)
        self._stored = np.array(sizes)
        if not len(self):
            raise DataError("at least one row", got="none", where=", ".join(self.paths[:3]), fix="pass files with rows")

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, _IpcFile] = {}
        self._kept: LruCache[Any] = LruCache(_KEPT)

    def _inspect(self, schema: Any, path: str, columns: Sequence[str] | None) -> None:
        names = arrow.chosen_columns(schema, columns, self.kinds, path, self.paths[0])
        if not names:
            raise UsageError("at least one column", got="none", where=path, fix="columns=[...]")

    def _file(self, file: int) -> _IpcFile:
        with self._lock:
            if file not in self._opened:
                filesystem.check_unchanged(self.paths[file], self.stamps[file], self.options)
                self._opened[file] = _IpcFile(self.paths[file], self.stamps[file], self.options)
            return self._opened[file]

    def _batch(self, number: int) -> Any:
        """One record batch as a table of the chosen columns, validated."""
        return self._kept.get(number, lambda: self._read_batch(number))

    def _read_batch(self, number: int) -> Any:
        file, pa = int(self._files[number]), need("pyarrow", extra="parquet")
        with _naming(self.paths[file], int(self._numbers[number])):
            batch = self._file(file).batch(int(self._numbers[number]))
            table = pa.Table.from_batches([batch]).select(list(self.kinds))
            _validate(table)
            table = arrow_views.without_views(table)
        if table.num_rows != self._firsts[number + 1] - self._firsts[number]:
            where, fix = self.paths[file], "make the source again"
            raise DataError("the record batch as it was", got="another number of rows", where=where, fix=fix)
        return table

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.kinds)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def _measure(self) -> BlockBytes:
        return BlockBytes(self._firsts, self._stored)

    def block_sizes(self) -> NDArray[np.int64]:
        """Rows of each record batch that has any."""
        sizes = np.diff(self._firsts)
        return sizes[sizes > 0]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The rows, one column per Arrow column."""
        indices = check_range(indices, len(self))
        batches = np.searchsorted(self._firsts, indices, side="right") - 1
        parts: list[tuple[NDArray[np.int64], Columns]] = []
        errors: list[RecordError] = []
        for number in np.unique(batches).tolist() or [int(np.flatnonzero(np.diff(self._firsts))[0])]:
            places = np.flatnonzero(batches == number)
            with _naming(self.paths[int(self._files[number])]):  # a file that was cut is no bad record
                self._file(int(self._files[number])).check()
            try:
                table = self._batch(number)
            except DataError as error:
                errors += [self._bad(int(indices[p]), int(p), error.expected, error.got) for p in places]
                continue
            with _naming(self.paths[int(self._files[number])]):
                rows = take_rows(table, indices[places] - self._firsts[number])
                columns, bad = arrow.to_columns(rows, self.kinds)
            errors += [self._bad(int(indices[places[r]]), int(places[r]), expected, got) for r, expected, got in bad]
            parts.append((places, columns))
        if errors:
            raise BadRecords(sorted(errors, key=lambda e: e.row))
        return scatter(parts, len(indices))

    def _bad(self, index: int, row: int, expected: str, got: str) -> RecordError:
        at = self.locate(index)
        where = f"{at['file']}, row {at['row']}"
        return RecordError(expected, got=got, where=where, fix="repair the file or read other columns", row=row)

    def fingerprint(self) -> str:
        """Hash of the columns and of every file's bytes; reads all files once."""
        ids = file_ids(self.paths, self.stamps, self.options)
        return hashing.content_id(["arrow", *self.kinds, None, *ids])

    def describe(self) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        return {
            "kind": "arrow", "files": len(self.paths), "records": len(self), "bytes": total, "columns": self.columns,
            "record_batches": len(self._numbers),
        }  # fmt: skip

    def place(self, number: int) -> tuple[int, int]:
        """The file of a row, and its number in the file."""
        file = int(np.searchsorted(self._file_firsts, number, side="right")) - 1
        return file, number - int(self._file_firsts[file])

    def locate(self, index: int) -> dict[str, Any]:
        file, row = self.place(int(index))
        return {"file": self.paths[file], "row": row}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_opened", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __repr__(self) -> str:
        return f"ArrowFiles({len(self.paths)} files, {len(self)} rows: {', '.join(self.columns)})"


class _IpcFile:
    """One open file, of either format. Batches of a stream are found when it is opened; both are safe for threads."""

    def __init__(self, path: str, stamp: filesystem.Stamp, options: filesystem.Options) -> None:
        pa = need("pyarrow", extra="parquet", purpose="to read Arrow files")
        self.path, self._map = path, None
        data = self._mapped(path) if not filesystem.scheme(path) else _fetched(path, stamp, options)
        self._data = pa.py_buffer(data)
        self._stream: list[Any] = []
        self._lock = threading.Lock()
        if bytes(memoryview(self._data)[: len(_MAGIC)]) == _MAGIC:
            self._reader = pa.ipc.open_file(self._data)
            self.schema = self._reader.schema
        else:
            self._reader = None
            reader = pa.ipc.open_stream(self._data)
            self.schema = reader.schema
            self._stream = list(reader)

    _map: MappedFile | None

    def _mapped(self, path: str) -> Any:
        with filesystem.open_read(path) as file:
            self._map = map_file(filesystem.local(path), file.fileno())
        return self._map.array

    def check(self) -> None:
        """Raises if the mapped file has been cut: reading it would end the process."""
        if self._map is not None:
            self._map.check()

    def batch(self, number: int) -> Any:
        if self._reader is None:
            return self._stream[number]
        with self._lock:
            return self._reader.get_batch(number)

    def batches(self) -> Iterator[Any]:
        count = len(self._stream) if self._reader is None else self._reader.num_record_batches
        return (self.batch(number) for number in range(count))


def _fetched(path: str, stamp: filesystem.Stamp, options: filesystem.Options) -> bytes:
    if stamp.size > _REMOTE_BYTES:
        raise LimitError(
            f"a remote Arrow file of at most {_REMOTE_BYTES:,} bytes", got=f"{stamp.size:,}", where=path,
            fix="copy it to a local disk, or write Parquet, which is read in parts",
        )  # fmt: skip
    with filesystem.open_read(path, options, expected=stamp) as file:
        return file.read()


def _stored_bytes(batch: Any, names: Iterable[str]) -> int:
    """The bytes of the buffers of these columns; values are not looked at, which may be damaged."""
    return sum(batch.column(name).get_total_buffer_size() for name in names)


def _validate(table: Any) -> None:
    """Checks offsets and lengths, so that nothing points outside of its buffers; text is checked when it is decoded."""
    for column in table.columns:
        for chunk in column.chunks:
            try:
                chunk.validate(full=True)
            except Exception as error:
                surface(error)
                if "UTF8" not in str(error):
                    raise


@contextmanager
def _naming(path: str, batch: int | None = None) -> Iterator[None]:
    """What pyarrow raises is a DataError of this file."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        surface(error)
        where = path if batch is None else f"{path}, record batch {batch}"
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DataError(
            "an Arrow IPC file that can be read", got=got, where=where, fix="fetch or write it again"
        ) from error
