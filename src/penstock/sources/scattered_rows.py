"""Scattered rows of Parquet files: from rows that are stored contiguously, once decoding them again costs more.

A Parquet row cannot be decoded without its row group, so that a plain shuffle decodes thousands of rows for each that
it wants. When a quarter of all rows has been decoded that way, all row groups are decoded once more, one after another,
into contiguous arrays: in memory if they are small, else in a folder of the cache, which later runs find again. The
work is done in slices, between reads. It never changes what is read: a row that cannot be read from stored rows, and
every failure, is left to the row groups.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core import hashing, local_files
from penstock.core.errors import PenstockError, StoreError, UsageError
from penstock.core.limits import Limits
from penstock.core.progress import progress
from penstock.core.signals import surface
from penstock.core.sizes import size
from penstock.sources.arrow_buffers import NotStored
from penstock.sources.parquet_damage import DamagedGroup
from penstock.sources.stored_rows import MANIFEST, VERSION, Builder, StoredRows, Types, open_folder
from penstock.storage import cache_entries, filesystem
from penstock.storage.cache_folder import rows_folder

MEMORY_BYTES = 64 << 20  # of decoded rows that are kept in memory instead
SHARE, WASTE = 4, 4  # rows are stored after 1/SHARE of all were decoded, and WASTE decoded for each that was read
SLICE_SECONDS, SLICE = 1.0, 4.0  # of work between two reads: at least, and times the seconds of the read before
MOST_REPAIRS = 3
_WAIT = 0.05
_SETTLED = 2 * 10**9  # ns: a file that changed later than this before now may change again within the clock's tick
_OLD_SECONDS = 7 * 86_400
_PURPOSE = "storing rows"
TOGETHER = 16  # row groups of object stores that are asked for at a time
_BLOCK = 4 << 20
_count = itertools.count()

I64 = NDArray[np.int64]


class RowGroups(Protocol):
    """The files whose rows are stored."""

    paths: list[str]
    stamps: list[filesystem.Stamp]
    options: dict[str, Any]
    limits: Limits
    kinds: dict[str, str]

    def block_sizes(self) -> I64: ...

    def stored_types(self) -> Types: ...

    def column_sizes(self, file: int) -> Sequence[Mapping[str, tuple[int, int]]]:
        """For each row group of a file, the stored and the decoded bytes of its columns."""
        ...

    def tables(self, groups: list[int]) -> Iterator[tuple[int, Any]]:
        """Row groups, in this order: a table each, or its damage."""
        ...


class Taken(NamedTuple):
    """Rows from stored ones: which of the rows that were asked for, and their table."""

    places: I64
    table: Any


class ScatteredRows:
    """Decides when rows are stored, makes or finds them, and takes rows from them."""

    def __init__(self, files: RowGroups, file_of: I64) -> None:
        self._files, self._file_of = files, file_of  # and the file of each row group
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._rows: StoredRows | None = None
        self._shift: I64 | None = None  # rows of damaged groups before each group; negative: of a damaged one
        self._folder = ""
        self._use: cache_entries.Use | None = None  # entries in use are not evicted
        self._work: Generator[bool, None, None] | None = None
        self._looked = False
        self._wanted, self._decoded, self._seconds = 0, 0, 0.0
        self._done, self._repairs, self._reason = 0.0, 0, ""
        if not files.limits.row_cache_bytes:
            self._reason = "limits.row_cache_bytes is 0"

    def take(self, indices: I64, groups: I64) -> Taken | None:
        """Those of the rows that are stored; None if there are none."""
        rows = self._rows
        if rows is None:
            if self._reason or not self._due(groups):
                return None
            self._advance()
            rows = self._rows
        if rows is None:
            return None
        places = np.arange(len(indices))
        if self._shift is not None:
            shift = self._shift[groups]
            places = np.flatnonzero(shift >= 0)
            indices = (indices - shift)[places]
        try:
            return Taken(places, rows.take(indices)) if len(places) else None
        except StoreError as error:
            self._drop(rows, error)
            return None

    def read(self, rows: int, seconds: float, decoded: int) -> None:
        """Counts rows that were read from their row groups; `decoded` rows were decoded so far."""
        self._wanted += rows
        self._seconds, self._decoded = seconds, decoded

    def note(self) -> str:
        """What a user may want to know of it; empty most of the time."""
        if self._rows is not None or self._decoded < WASTE * max(1, self._wanted):
            return ""
        group = int(np.median(self._files.block_sizes()))
        ratio = self._decoded / max(1, self._wanted)
        cheaper = f".shuffle(block={group}, window=8) would read each row group once"
        if self._reason:
            return f"{ratio:.0f} rows of Parquet are decoded for each row read ({self._reason}): {cheaper}"
        if self._work is None:
            return ""
        return f"rows of Parquet are being stored for random access ({self._done:.0%}): {cheaper}"

    def _due(self, groups: I64) -> bool:
        sizes = self._files.block_sizes()
        if not self._looked:
            touched = np.unique(groups)
            if len(touched) > 1 and int(sizes[touched].sum()) >= WASTE * len(groups):
                self._looked = True
                with self._lock:
                    self._find()
                if self._rows is not None:
                    return True
        return stores_rows(self._decoded, self._wanted, int(sizes.sum()))

    def _advance(self) -> None:
        """Works for a while, unless another thread does."""
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):
            return
        try:
            if self._rows is not None or self._reason:
                return
            if self._work is None:
                self._work = self._steps()
            until = time.monotonic() + max(SLICE_SECONDS, SLICE * self._seconds)
            for working in self._work:
                if not working:
                    time.sleep(_WAIT)
                if time.monotonic() > until:
                    return
            self._work = None
        except NotStored as error:
            self._fail(f"they are not stored: {error}")
        except (PenstockError, OSError) as error:  # what is wrong with the files is said by who reads them
            surface(error)
            reason = error.got if isinstance(error, PenstockError) else error
            self._fail(f"they could not be stored: {reason}")
        finally:
            self._lock.release()

    def _fail(self, reason: str) -> None:
        self._work, self._reason = None, reason

    def _drop(self, rows: StoredRows, error: StoreError) -> None:
        """Stored rows that are damaged are deleted, and made again."""
        with self._lock:
            if self._rows is rows:
                self._rows = self._use = None
                self._repairs += 1
                with suppress(PenstockError, OSError):
                    cache_entries.discard(Path(self._folder), cache_entries.mark(Path(self._folder) / MANIFEST))
                if self._repairs > MOST_REPAIRS:
                    self._reason = f"stored rows were damaged {self._repairs} times: {error.got}"

    def _steps(self) -> Generator[bool, None, None]:
        """Makes the stored rows; yields after each piece of work, False if it waits for another process."""
        files = self._files
        types, expected = files.stored_types(), self._decoded_bytes()
        if expected <= MEMORY_BYTES:
            with suppress(NotStored):  # more than expected: on disk
                builder = Builder(types, None, 2 * MEMORY_BYTES)
                damaged = yield from self._fill(builder, "")
                self._open(builder.in_memory(), damaged)
                return
        root = Path(rows_folder())
        with local_files.writing(str(root)):
            root.mkdir(parents=True, exist_ok=True)
        most = min(files.limits.row_cache_bytes, cache_entries.limit_of(None))
        most = min(most, shutil.disk_usage(root).free // 2)
        if expected > most:
            raise NotStored(f"{size(expected)} are expected, {size(most)} are allowed on the disk of {root}")
        name, settled = self._memo(types), self._settled()
        key = yield from self._key(types)
        yield from self._make(root, key, types, most)
        if settled and name and name == self._memo(types):
            with suppress(PenstockError, OSError):
                (root / ".known").mkdir(exist_ok=True)
                local_files.atomic_write(str(root / ".known" / name), key.encode())
        self._enter(root, key, types)
        with suppress(PenstockError, OSError):
            cache_entries.sweep(root, cache_entries.limit_of(None))

    def _key(self, types: Types) -> Generator[bool, None, str]:
        """Hash of the columns and of every file's content; of an object's size and tag, which name its content."""
        files = self._files
        ids = []
        for path, stamp in zip(files.paths, files.stamps, strict=True):
            if filesystem.checked_by_reads(path, stamp):
                ids.append(f"{path} {stamp.size} {stamp.tag}")
            else:
                ids.append(_content_id(path, files.options))
                filesystem.check_unchanged(path, stamp, files.options)
            yield True
        return hashing.content_id(["rows", VERSION, *map(str, types.items()), None, *ids])

    def _make(self, root: Path, key: str, types: Types, most: int) -> Generator[bool, None, None]:
        lock = local_files.lock(str(root / f"{key}.lock"), _PURPOSE)
        while not (root / key / MANIFEST).exists():
            try:
                lock.__enter__()
            except UsageError:
                yield False  # another process stores the same rows
                lock = local_files.lock(str(root / f"{key}.lock"), _PURPOSE)
                continue
            try:
                if not (root / key / MANIFEST).exists():
                    yield from self._write(root, key, types, most)
            finally:
                if self._pid == os.getpid():
                    lock.__exit__(None, None, None)

    def _write(self, root: Path, key: str, types: Types, most: int) -> Generator[bool, None, None]:
        for left in root.glob(".making-*"):  # of processes that were killed: this one holds the lock of its key
            if left.name.startswith(f".making-{key}-") or time.time() - left.stat().st_mtime > _OLD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        making = root / f".making-{key}-{self._pid}-{next(_count)}"
        weakref.finalize(self, _remove, str(making), self._pid)  # also when the interpreter ends in the middle
        try:
            with local_files.writing(str(making)):
                making.mkdir()
            builder = Builder(types, str(making), most)
            damaged = yield from self._fill(builder, "storing rows of Parquet")
            for path, stamp in zip(self._files.paths, self._files.stamps, strict=True):
                filesystem.check_unchanged(path, stamp, self._files.options)
            builder.commit({"damaged": damaged})
            with local_files.writing(str(root / key)):
                shutil.rmtree(root / key, ignore_errors=True)
                os.rename(making, root / key)
                local_files.sync_folder(str(root))
        finally:
            _remove(str(making), self._pid)

    def _fill(self, builder: Builder, title: str) -> Generator[bool, None, list[int]]:
        sizes = self._files.block_sizes().tolist()
        total, done, damaged = sum(sizes), 0, []
        with progress(total, " rows", title, enabled=None if title else False) as bar:
            for run in self._group_runs():
                for group, table in self._files.tables(run):
                    if isinstance(table, DamagedGroup):
                        damaged.append(group)
                    else:
                        builder.add(table)
                    done += sizes[group]
                    bar.update(sizes[group])
                    self._done = done / total
                    yield True
        if not builder.rows:
            raise NotStored("no row group can be decoded")
        return damaged

    def _decoded_bytes(self) -> int:
        """About how many bytes all rows have, by the footers."""
        groups = (sizes for file in range(len(self._files.paths)) for sizes in self._files.column_sizes(file))
        return sum(decoded for sizes in groups for name, (_, decoded) in sizes.items() if name in self._files.kinds)

    def _group_runs(self) -> Iterator[list[int]]:
        """All row groups in order; those of object stores several at a time."""
        run: list[int] = []
        for group, file in enumerate(self._file_of.tolist()):
            run.append(group)
            if len(run) == TOGETHER or not filesystem.is_object(self._files.paths[file]):
                yield run
                run = []
        if run:
            yield run

    def _open(self, rows: StoredRows, damaged: Sequence[int]) -> None:
        shift = None
        if damaged:
            lost = np.zeros(len(self._files.block_sizes()), np.int64)
            lost[list(damaged)] = self._files.block_sizes()[list(damaged)]
            shift = np.cumsum(lost)
            shift[list(damaged)] = -1
        self._shift, self._rows = shift, rows

    def _enter(self, root: Path, key: str, types: Types) -> None:
        """Opens an entry of the cache; one that is damaged is deleted."""
        use = cache_entries.Use(root, key)
        folder = root / key
        seen = cache_entries.mark(folder / MANIFEST)
        try:
            rows, facts = open_folder(str(folder), types)
            sizes, damaged = self._files.block_sizes(), [int(g) for g in facts["damaged"]]
            good = len(set(damaged)) == len(damaged) and all(0 <= g < len(sizes) for g in damaged)
            if not good or rows.rows != int(sizes.sum()) - int(sizes[damaged].sum()):
                raise StoreError("the rows of the files", got="others", where=str(folder))
        except (StoreError, KeyError, TypeError, ValueError) as error:
            cache_entries.discard(folder, seen)
            raise NotStored(f"{folder} was damaged, and deleted") from error
        self._use, self._folder = use, str(folder)
        self._open(rows, damaged)

    def _find(self) -> None:
        """Opens rows that an earlier run stored, if the files are known by what the system says of them."""
        with suppress(NotStored, PenstockError, OSError, UnicodeDecodeError):
            types = self._files.stored_types()
            root = Path(rows_folder())
            name = self._memo(types)
            known = root / ".known" / name
            if name and known.is_file() and (root / (key := known.read_text()[:64]) / MANIFEST).is_file():
                self._enter(root, key, types)

    def _memo(self, types: Types) -> str:
        """A name for the files by inode, size and times, which change with their content; empty if they are changed."""
        marks: list[str] = []
        for path, stamp in zip(self._files.paths, self._files.stamps, strict=True):
            if filesystem.checked_by_reads(path, stamp):
                marks.append(f"{path} {stamp.size} {stamp.tag}")
                continue
            if filesystem.scheme(path):
                return ""
            found = os.stat(filesystem.local(path))
            if (found.st_size, str(found.st_mtime_ns)) != (stamp.size, stamp.tag):
                return ""
            times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
            marks.append(
                f"{os.path.realpath(filesystem.local(path))} {found.st_dev} {found.st_ino} {stamp.size} {times}"
            )
        return hashing.content_id(["known", VERSION, *map(str, types.items()), None, *marks])

    def _settled(self) -> bool:
        """Whether no file changed just now: a change within the clock's tick would not show."""
        local = [filesystem.local(path) for path in self._files.paths if not filesystem.scheme(path)]
        return all(time.time_ns() - os.stat(path).st_ctime_ns > _SETTLED for path in local)


def stores_rows(decoded: int, wanted: int, rows: int) -> bool:
    """Whether all rows are stored, after `decoded` of them were decoded for `wanted` ones that were read."""
    return decoded * SHARE >= rows and decoded >= WASTE * max(1, wanted)


def _content_id(path: str, options: dict[str, Any]) -> str:
    """Hash of a file's bytes as they are now; `filesystem.file_id` remembers files by size and time alone."""
    state = xxhash.xxh3_128()
    with filesystem.open_read(path, options) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def _remove(folder: str, process: int) -> None:
    if process == os.getpid():  # not in a forked copy of it
        shutil.rmtree(folder, ignore_errors=True)
