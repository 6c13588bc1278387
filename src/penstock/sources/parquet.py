"""Parquet files: rows by number, through pyarrow, reading only the chosen columns.

Opening reads one footer per file. A read decodes the row groups it touches (a Parquet row cannot be decoded alone) and
keeps the last ones; scattered rows are stored once (`scattered_rows`), and then cost an Arrow `take`. Page
checksums are verified where the file has them. Strings, bytes, dates, structs, maps and lists of anything but numbers
are object columns; numbers are arrays; lists of numbers are ragged; fixed-size lists of numbers are 2-D. A missing
number or number list is a bad record; other nulls are None. The rows of a row group that cannot be decoded are bad
records too; a file that changed, is encrypted or cannot be read is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, scatter
from penstock.core.errors import BadRecords, DataError, RecordError, StateError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.core.os_errors import storage_errors
from penstock.core.signals import surface
from penstock.sources import arrow, arrow_views, parquet_footer, parquet_pages, parquet_reads, parquet_remote, splits
from penstock.sources.arrow_buffers import stored_type
from penstock.sources.block_reads import BlockFacts
from penstock.sources.cutting import PIECE_BYTES
from penstock.sources.formats import FORMATS, Options
from penstock.sources.hive import PartitionColumns, Partitions
from penstock.sources.kept_groups import KeptGroups
from penstock.sources.line_errors import bare
from penstock.sources.lines import Chunk
from penstock.sources.parquet_damage import BadRows, DamagedGroup, damaged, naming
from penstock.sources.ranges import Cursor, Range, file_ranges
from penstock.sources.scattered_rows import ScatteredRows
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.store.doctable import check_range

SUFFIXES = FORMATS["parquet"].suffixes
_MOST_BAD = 1 << 24  # rows of a damaged group that a one-pass read counts one by one; more is a lie of the footer
_BAD_STEP = 4096  # rows of it in a chunk


def open_path(paths: filesystem.Paths, options: Options) -> ParquetFiles:
    """The opener of the registry."""
    wanted, opened = None if options.every_field else [options.field], options.storage_options
    return ParquetFiles(paths, wanted, text=options.field, storage_options=opened)


class ParquetFiles(parquet_reads.SizedGroups):
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
        limits: Limits = LIMITS, storage_options: filesystem.Options = None, partitions: Partitions = "columns",
    ) -> None:  # fmt: skip
        columns = [columns] if isinstance(columns, str) else columns
        self.text, self.limits, self.options = text, limits, dict(storage_options or {})
        found = filesystem.expand_stamped(paths, storage_options, SUFFIXES)
        self.paths, self.stamps = list(found), filesystem.stamps(found, self.options)
        splits.refuse_several(paths, self.paths)
        self._partitions = PartitionColumns(paths, self.paths, partitions)
        self._footers = parquet_remote.Footers(self.paths, self.stamps, limits, self.options)
        self._footers.load()
        self._chunks = parquet_remote.ChunkTables(self._footers)
        with self._open(0) as file:
            columns = self._partitions.chosen(columns, file.schema_arrow.names)
        self.kinds: dict[str, str] = {}
        self._every_column = columns is None
        groups: list[NDArray[np.int64]] = []
        for number, path in enumerate(self.paths):
            with self._open(number) as file, naming(path):
                groups.append(self._inspect(file, path, columns))
        rows, self._decoded = np.concatenate(groups, axis=1)
        self._groups = np.concatenate([np.arange(each.shape[1]) for each in groups])
        self._files = np.repeat(np.arange(len(groups)), [each.shape[1] for each in groups])
        self._firsts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._file_firsts = np.concatenate([[0], np.cumsum([int(each[0].sum()) for each in groups])]).astype(np.int64)
        if not len(self):
            raise DataError("at least one row", got="none", where=", ".join(self.paths[:3]), fix="pass files with rows")
        self._fresh()

    def _fresh(self) -> None:
        self._kept = KeptGroups()
        self._scattered = ScatteredRows(self, self._files)

    def _inspect(self, file: Any, path: str, columns: Sequence[str] | None) -> NDArray[np.int64]:
        """Checks one file's schema against the first file's; returns the rows of its row groups, and their bytes."""
        schema = file.schema_arrow
        names = arrow.chosen_columns(schema, columns, self.kinds, path, self.paths[0])
        # Not `group.column(i)`: it ends the process where a column is encrypted or the footer is damaged.
        meta = file.metadata
        groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
        rows = [group.num_rows for group in groups]
        fit = all(group.num_columns == meta.num_columns for group in groups)
        if not fit or min(rows, default=0) < 0 or not sum(rows) < 1 << 62:
            raise damaged(path, ValueError(f"row groups of {rows[:8]} rows that do not fit its schema"))
        decoded = [group.total_byte_size for group in groups]
        if max(decoded, default=0) > self.limits.expansion_free_bytes:
            sizes = self.column_sizes(self.paths.index(path))
            parquet_footer.check_expansion(sizes, set(names), self.limits, path)
        return np.array([rows, decoded], np.int64)

    def column_sizes(self, file: int) -> list[parquet_footer.Sizes]:
        return self._footers.chunks(file).sizes()

    def _group_rows(self, file: int) -> list[int]:
        """Rows of each row group of a file."""
        rows: list[int] = np.diff(self._firsts)[self._files == file].tolist()
        return rows

    def _bytes(self, number: int, blocks: Sequence[parquet_remote.Block] = ()) -> Any:
        """A file's bytes; `blocks` of an object have been read already."""
        path = self.paths[number]
        if filesystem.is_object(path):
            return parquet_remote.SparseFile(path, self.stamps[number], self.options, blocks)
        return filesystem.open_read(path, self.options)  # checks that it is a readable, regular file

    @contextmanager
    def _open(
        self, number: int, blocks: Sequence[parquet_remote.Block] = (), dictionaries: Sequence[str] = ()
    ) -> Iterator[Any]:
        """A file as pyarrow reads it; columns in `dictionaries` stay what they are in the file."""
        pq = need("pyarrow.parquet", extra="parquet", purpose="to read Parquet files")
        bound, path = self.limits.manifest_bytes, self.paths[number]
        metadata = self._footers.get(number).metadata if filesystem.is_object(path) else None
        with self._bytes(number, blocks) as source:
            place = source
            if not filesystem.scheme(path):  # a local file is read by pyarrow itself, outside the GIL
                with storage_errors(path):
                    place = need("pyarrow", extra="parquet").OSFile(filesystem.local(path), "rb")
            # Without `pre_buffer` a read of pyarrow lies in one block; merged ones would be fetched again.
            try:
                file = pq.ParquetFile(
                    place, thrift_string_size_limit=bound, thrift_container_size_limit=bound, pre_buffer=not blocks,
                    page_checksum_verification=True, metadata=metadata, read_dictionary=list(dictionaries) or None,
                )  # fmt: skip
            except Exception as error:
                surface(error)
                place.close()
                raise damaged(path, error) from error
            file.bytes_of_file = source  # for `_check_pages`: a second open would cost a server more requests
            try:
                yield file
            finally:
                file.close(force=True)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def block_sizes(self) -> NDArray[np.int64]:
        """Rows of each row group."""
        return np.diff(self._firsts)

    def block_facts(self) -> BlockFacts:
        """What reads of these columns fetch, see `sources.block_reads`."""
        return parquet_reads.block_facts(self, self._footers)

    @property
    def text_column(self) -> str:
        return self.text

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, those of folder names last."""
        return [*self.kinds, *self._partitions.names]

    def _load(self, group: int) -> Any:
        """One row group as a table, or its damage, kept for a while."""
        with self._kept.turns([group]):
            table = self._kept.get(group)
            if table is None:
                file = int(self._files[group])
                filesystem.check_unchanged(self.paths[file], self.stamps[file], self.options)
                try:
                    table = self._kept.keep(group, self._decode(group))
                except DamagedGroup as error:
                    table = self._kept.remember(group, error)
            return table

    def _decode(self, group: int, blocks: Sequence[parquet_remote.Block] = ()) -> Any:
        file, number = int(self._files[group]), int(self._groups[group])
        path = self.paths[file]
        with self._open(file, blocks) as reader:
            repeated = self._check_pages(reader, file, number, list(self.kinds), blocks)
            if not repeated:
                table = self._table(reader, path, number)
        if repeated:
            with self._open(file, blocks, list(repeated)) as reader:
                table = self._table(reader, path, number)
        if table.num_rows != self._firsts[group + 1] - self._firsts[group]:
            raise damaged(path, ValueError(f"it has {table.num_rows} rows"), int(self._groups[group]))
        return table

    def _table(self, reader: Any, path: str, number: int) -> Any:
        with naming(path, number):
            return arrow_views.without_views(reader.read_row_group(number, columns=list(self.kinds), use_threads=False))

    def _check_pages(
        self, reader: Any, file: int, number: int, names: Sequence[str], blocks: Sequence[parquet_remote.Block]
    ) -> dict[str, int]:
        """Refuses a row group that would take too much memory; see `parquet_pages.repeated_columns`."""
        path, chunks = self.paths[file], self._chunks.get(file).of(number)
        again, where = lambda paths: self._open(file, blocks, paths), f"{path}, row group {number}"
        with naming(path, number):
            return parquet_pages.repeated_columns(
                reader.bytes_of_file, reader, again, chunks, names, number, self.limits, where
            )

    def tables(self, groups: list[int]) -> Iterator[tuple[int, Any]]:
        """Row groups as tables; those of object stores are fetched together, as many as fit into memory."""
        remote = [g for g in groups if filesystem.is_object(self.paths[int(self._files[g])])]
        yield from ((group, self._load(group)) for group in groups if group not in remote)
        places = [(int(self._files[g]), int(self._groups[g])) for g in remote]
        at = 0
        for count in self._footers.together(places, list(self.kinds)) if remote else ():
            yield from self._fetch(remote[at : at + count], places[at : at + count])
            at += count

    def _fetch(self, groups: list[int], places: list[tuple[int, int]]) -> list[tuple[int, Any]]:
        with self._kept.turns(groups):
            tables = {group: self._kept.get(group) for group in groups}
            missing = [n for n, group in enumerate(groups) if tables[group] is None]
            blocks = self._footers.blocks([places[n] for n in missing], list(self.kinds))
            for n, mine in zip(missing, blocks, strict=True):
                try:
                    tables[groups[n]] = self._kept.keep(groups[n], self._decode_twice(groups[n], places[n], mine))
                except DamagedGroup as error:
                    tables[groups[n]] = self._kept.remember(groups[n], error)
        return list(tables.items())

    def _decode_twice(self, group: int, place: tuple[int, int], blocks: list[parquet_remote.Block]) -> Any:
        """Decodes a row group; one that seems damaged is read again first: its transfer may be at fault."""
        try:
            return self._decode(group, blocks)
        except DataError:
            return self._decode(group, self._footers.blocks([place], list(self.kinds))[0])

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The rows, one column per Parquet column, and those in the names of folders."""
        indices = check_range(indices, len(self))
        return self._stored(indices) | self._partitions.of(
            np.searchsorted(self._file_firsts, indices, side="right") - 1
        )

    def _stored(self, indices: NDArray[np.int64]) -> Columns:
        if not len(indices):
            with self._open(0) as file:
                return arrow.to_columns(arrow_views.without_views(file.schema_arrow.empty_table()), self.kinds)[0]
        groups = np.searchsorted(self._firsts, indices, side="right") - 1
        parts: list[tuple[NDArray[np.int64], Columns]] = []
        errors: list[RecordError] = []
        rest = np.arange(len(indices))  # rows that come from their row groups
        taken = self._scattered.take(indices, groups)
        if taken is not None:
            self._kept.clear()
            columns, bad = arrow.to_columns(taken.table, self.kinds)
            parts.append((taken.places, columns))
            bad = [(int(taken.places[row]), expected, got) for row, expected, got in bad]
            odd = {row for row, expected, _ in bad if expected.startswith(arrow.VALUES)}  # they name the file's type
            errors += [self._bad_value(indices, *one) for one in bad if one[0] not in odd]
            rest = np.union1d(np.setdiff1d(rest, taken.places, assume_unique=True), sorted(odd)).astype(np.int64)
        if len(rest):
            began = time.monotonic()
            more, wrong = self._from_groups(indices, groups, rest)
            parts, errors = parts + more, errors + wrong
            self._scattered.read(len(rest), time.monotonic() - began, self._kept.decoded)
        if errors:
            raise BadRecords(sorted(errors, key=lambda e: e.row))
        return parts[0][1] if taken is not None and len(parts) == 1 else scatter(parts, len(indices))

    def _from_groups(
        self, indices: NDArray[np.int64], groups: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> tuple[list[tuple[NDArray[np.int64], Columns]], list[RecordError]]:
        """These rows of a read, decoded from their row groups, and the errors of those that are bad."""
        parts: list[tuple[NDArray[np.int64], Columns]] = []
        errors: list[RecordError] = []
        for group, loaded in self.tables(np.unique(groups[rows]).tolist()):
            places = rows[groups[rows] == group]
            if isinstance(loaded, DamagedGroup):
                errors += [self._bad_row(loaded, int(indices[place]), int(place)) for place in places]
                continue
            with naming(self.paths[int(self._files[group])]):
                table = parquet_reads.take_rows(loaded, indices[places] - self._firsts[group])
                columns, bad = arrow.to_columns(table, self.kinds)
            errors += [self._bad_value(indices, int(places[row]), expected, got) for row, expected, got in bad]
            parts.append((places, columns))
        return parts, errors

    def _bad_value(self, indices: NDArray[np.int64], row: int, expected: str, got: str) -> RecordError:
        at = self.locate(int(indices[row]))
        where = f"{at['file']}, row {at['row']}"
        return RecordError(expected, got=got, where=where, fix="repair the file or read other columns", row=row)

    def stored_types(self) -> dict[str, Any]:
        """The types in which scattered rows are stored; see `scattered_rows`."""
        with self._open(0) as file:
            schema = file.schema_arrow
        return {name: stored_type(arrow.column_type(schema.field(name))) for name in self.kinds}

    def note(self) -> str:
        """What reading its rows in this order costs, where that matters; for `Loader.stats`."""
        return self._scattered.note()

    def _bad_row(self, error: DamagedGroup, index: int, row: int = 0) -> RecordError:
        """The error of a group as that of one of its rows."""
        at = self.locate(index)
        where = f"{at['file']}, row {at['row']}, row group {at['row_group']}"
        return RecordError(error.expected, got=error.got, where=where, fix=error.fix, row=row)

    def ranges(self, most: int) -> list[Range]:
        """Parts of about `most` bytes that can be read independently: files, or row groups of a large file."""
        sizes = [stamp.size for stamp in self.stamps]
        return file_ranges(sizes, most, lambda file: self._cuts(file, most))

    def _cuts(self, file: int, most: int) -> list[int]:
        """Rows at which a file is cut, between row groups; the bytes of a row group are its share of the rows."""
        counts = self._group_rows(file)
        size, total = self.stamps[file].size, sum(counts)
        cuts: list[int] = []
        at = first = 0
        for rows in counts:
            if at > first and (at + rows - first) * size > most * total:
                cuts.append(at)
                first = at
            at += rows
        return cuts

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """The `text` column in row order; a cursor's offset is a row of its file."""
        if self.kinds.get(self.text) != "str":
            raise UsageError(
                f"a text column {self.text!r}",
                got=", ".join(f"{name} ({kind})" for name, kind in self.kinds.items()),
                where=self.paths[0],
                fix="name it: ParquetFiles(..., text='...')",
            )
        last, end = len(self.paths), 0
        if part is not None:
            last, end, start = part.stop["file"], part.stop["offset"], start or part.start
        file, row = self._place(start)
        for i in range(file, last + bool(end)):
            yield from self._iterate_file(i, row if i == file else 0, end if i == last else None)

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

    def _iterate_file(self, file: int, row: int, stop: int | None = None) -> Iterator[Chunk]:
        path, done = self.paths[file], 0
        if not filesystem.checked_by_reads(path, self.stamps[file]):
            filesystem.check_unchanged(path, self.stamps[file], self.options)
        sizes, counts = self.column_sizes(file), self._group_rows(file)
        total = sum(counts)
        if len(sizes) != len(counts):
            raise damaged(path, ValueError(f"{len(sizes)} row groups in its footer, {len(counts)} when it was opened"))
        with self._open(file) as reader:
            for g, rows in enumerate(counts):
                if done == stop:
                    break
                if done + rows <= row:
                    done += rows
                    continue
                # Rows per chunk come from the row group alone, so chunks are cut the same whoever starts where.
                step = max(1, int(PIECE_BYTES * rows / max(1, sizes[g].get(self.text, (0, 0))[1])))
                end = done + rows
                for column in self._texts(reader, file, g, step):
                    first, done = max(row - done, 0), done + len(column)
                    if first < len(column):
                        chunk = self._chunk(column.slice(first), file, done - len(column) + first)
                        ended = done == total
                        at = 0 if ended else done
                        chunk.cursor = {"file": file + ended, "offset": at, "line": at}
                        chunk.file_bytes = int(self.stamps[file].size * (len(column) - first) / total)
                        yield chunk
                if done != end:
                    raise damaged(path, ValueError(f"row group {g} of {rows} rows ends at row {done} of the file"))

    def _texts(self, reader: Any, file: int, group: int, step: int) -> Iterator[Any]:
        """The text column of a row group, `step` rows at a time; those of a damaged rest as `BadRows`."""
        remote, done = filesystem.is_object(self.paths[file]), 0
        damage = None
        for _ in range(2 if remote else 1):  # the transfer may be at fault
            at = 0
            try:
                for column in (self._remote_batches if remote else self._batches)(reader, file, group, step):
                    at += len(column)
                    if at > done:
                        done = at
                        yield column
                return
            except DamagedGroup as error:
                damage = bare(error)
        rows = self._group_rows(file)[group]
        assert damage is not None
        if rows > _MOST_BAD:
            raise damage
        step = min(step, _BAD_STEP)
        for first in range(done, rows, step):
            yield BadRows(damage, min(step, rows - first))

    def _batches(
        self, reader: Any, file: int, group: int, step: int, blocks: Sequence[parquet_remote.Block] = ()
    ) -> Iterator[Any]:
        with ExitStack() as opened:
            repeated = self._check_pages(reader, file, group, [self.text], blocks)
            if repeated:
                step = max(1, min(step, PIECE_BYTES // max(1, repeated[self.text])))
                reader = opened.enter_context(self._open(file, blocks, list(repeated)))
            with naming(self.paths[file], group):
                batches = reader.iter_batches(step, row_groups=[group], columns=[self.text], use_threads=False)
                for batch in batches:
                    yield batch.column(0)

    def _remote_batches(self, _reader: Any, file: int, group: int, step: int) -> Iterator[Any]:
        (blocks,) = self._footers.blocks([(file, group)], [self.text])
        with self._open(file, blocks) as reader:
            yield from self._batches(reader, file, group, step, blocks)

    def _chunk(self, column: Any, file: int, row: int) -> Chunk:
        chunk = Chunk([], [], {})
        if isinstance(column, BadRows):
            for i in range(row, row + len(column)):
                chunk.add_error(self._bad_row(column.error, int(self._file_firsts[file]) + i), (file, i + 1, i))
            return chunk
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
        return self._hashed(file_ids(self.paths, self.stamps, self.options))

    def stamp_id(self) -> str:
        """Hash of the columns and of every file's size and tag; reads nothing."""
        return self._hashed([f"{s.size} {s.tag}" for s in self.stamps])

    def _hashed(self, ids: Sequence[Any]) -> str:
        return hashing.content_id(["parquet", *self.kinds, None, *ids, *self._partitions.identity()])

    def describe(self) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        facts = {"kind": "parquet", "files": len(self.paths), "records": len(self), "bytes": total}
        return facts | {"columns": self.columns, "row_groups": len(self._groups)}

    def locate(self, index: int) -> dict[str, Any]:
        file = int(np.searchsorted(self._file_firsts, index, side="right")) - 1
        group = int(np.searchsorted(self._firsts, index, side="right")) - 1
        row = int(index - self._file_firsts[file])
        return {"file": self.paths[file], "row": row, "row_group": int(self._groups[group])}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_kept", "_scattered")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __repr__(self) -> str:
        return f"ParquetFiles({len(self.paths)} files, {len(self)} rows: {', '.join(self.columns)})"
