"""Writes documents into one immutable shard file.

Tokens are written and hashed as they are added, so memory is bounded by one `add` call; offsets and columns are kept
in temporary files that spill to disk past 32 MiB. Costs about one pass over the ids to check them, one to convert them
and one to hash. The file has a temporary name until `finish()`; a crash leaves nothing under the final one. The same
documents produce the same bytes: there are no times, names or random numbers in the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core import local_files
from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.core.writeback import begin_writeback
from penstock.store import layout
from penstock.store.layout import ColumnSpec, Header

_SPILL_BYTES = 32 << 20
_CHUNK_ITEMS = 1 << 20
_BUFFER_BYTES = 1 << 20
_WRITEBACK_BYTES = 8 << 20  # after which the disk begins, so that the sync at the end has little to wait for


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A finished shard: its entry in the manifest."""

    name: str
    bytes: int
    documents: int
    tokens: int
    root: str
    dtype: str
    vocab_size: int | None
    columns: tuple[ColumnSpec, ...] = ()
    page_bytes: int = layout.PAGE_BYTES


class ShardWriter:
    """Writes documents to `path`; the file appears under that name with `finish()`.

    Pass `vocab_size` (it sets the dtype, and every id is checked), or `dtype`, or both. `sync_name=False` for a file
    that gets another name anyway, by someone who then syncs its folder: a power cut may lose the one it has.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "00000.tokens"
    >>> with ShardWriter(path, vocab_size=300) as shard:
    ...     shard.add(Ragged.of([[1, 2, 299], [], [7]]))
    >>> info = shard.finish()
    >>> info.documents, info.tokens, info.dtype
    (3, 4, '<u2')
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vocab_size: int | None = None,
        dtype: Any = None,
        metadata: dict[str, Any] | None = None,
        page_bytes: int = layout.PAGE_BYTES,
        overwrite: bool = False,
        sync_name: bool = True,
    ) -> None:
        self.path, self._sync_name = Path(path), sync_name
        self._temporary = self.path.with_name(f".{self.path.name}.partial")
        self._vocab = vocab_size
        self._dtype = _choose_dtype(vocab_size, dtype)
        self._metadata = dict(metadata or {})
        layout.canonical_json(self._metadata)
        if not layout.valid_page_size(page_bytes):
            raise UsageError(
                "page_bytes, a power of two in [4096, 2**30]",
                got=str(page_bytes),
                fix="leave it out",
            )
        if self.path.exists() and not overwrite:
            raise UsageError(
                "a path that does not exist: shards are immutable",
                got="a file that exists",
                where=str(self.path),
                fix="choose another name, delete the file, or pass overwrite=True",
            )
        self._limit = vocab_size if vocab_size is not None else int(np.iinfo(self._dtype).max) + 1
        self.documents = self.tokens = 0
        self._info: ShardInfo | None = None
        self._columns: list[_ColumnBuffer] | None = None
        self._offsets = _temporary(self.path.parent)
        self._file: IO[bytes] | None = open(self._temporary, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115 - lives as long as self
        self._pages = _PageHasher(self._file, page_bytes)
        self._pages.write(layout.superblock(page_bytes))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which tokens are stored."""
        return self._dtype

    def add(self, documents: Ragged | Sequence[Any], columns: Columns | None = None) -> None:
        """Appends documents, with one row of every column for each. All calls must pass the same columns."""
        if self._file is None:
            raise UsageError(
                "an open shard",
                got="one that is finished or aborted",
                where=str(self.path),
            )
        ragged = documents if isinstance(documents, Ragged) else Ragged.of(list(documents))
        offsets = np.asarray(ragged.offsets, np.int64)
        _check_offsets(offsets, len(ragged.values), self.path)
        ids = ragged.values[offsets[0] : offsets[-1]] if len(offsets) else ragged.values[:0]
        self._check_ids(ids, offsets)
        self._add_columns(columns or {}, len(ragged))
        self._pages.write(np.ascontiguousarray(ids, self._dtype).view(np.uint8).data)
        _append(self._offsets, (offsets[:-1] - offsets[:1] + self.tokens).astype("<u8"))
        self.documents += len(ragged)
        self.tokens += len(ids)

    def finish(self) -> ShardInfo:
        """Writes document table, columns, hashes and footer, syncs and renames. Later calls return the same result."""
        if self._info is not None:
            return self._info
        if self._file is None:
            raise UsageError("an open shard", got="one that was aborted", where=str(self.path))
        try:
            self._info = self._finish(self._file)
        except BaseException:
            self.abort()
            raise
        return self._info

    def abort(self) -> None:
        """Deletes everything written so far."""
        if self._file is not None:
            with suppress(OSError):  # a full disk: what is buffered cannot be written
                self._file.close()
            self._temporary.unlink(missing_ok=True)
            self._drop_buffers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._file is not None:
            self.finish()

    def _finish(self, file: IO[bytes]) -> ShardInfo:
        columns = self._columns or []
        specs = tuple(c.spec for c in columns)
        items = {c.spec.name: c.items for c in columns if c.spec.ragged}
        sections = layout.plan_sections(self.documents, self.tokens, self._dtype, specs, items)
        _append(self._offsets, np.array([self.tokens], "<u8"))
        sources: list[IO[bytes]] = [self._offsets]
        for column in columns:
            sources += column.close()
        self._pages.pad()
        for section, source in zip(sections[1:], sources, strict=True):
            is_offsets = section.name == "offsets" or section.name.endswith(":offsets")
            _copy(
                source,
                self._pages,
                "<u8" if is_offsets else section.dtype,
                section.dtype,
            )
            self._pages.pad()
        header = Header(
            self.documents,
            self.tokens,
            self._vocab,
            self._pages.size,
            specs,
            sections,
            self._metadata,
        )
        body = self._pages.total
        tail, root = layout.pack_tail(header, self._pages.close(), body)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(self._temporary, self.path)
        if self._sync_name:
            local_files.sync_folder(str(self.path.parent))
        self._drop_buffers()
        dtype = sections[0].dtype
        size = body + len(tail)
        return ShardInfo(
            self.path.name,
            size,
            self.documents,
            self.tokens,
            root.hex(),
            dtype,
            self._vocab,
            specs,
            self._pages.size,
        )

    def _drop_buffers(self) -> None:
        self._file = None
        self._offsets.close()
        for column in self._columns or []:
            column.drop()

    def _check_ids(self, ids: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        if ids.dtype.kind not in "iu":
            if len(ids) == 0:
                return
            raise UsageError(
                "integer token ids",
                got=ids.dtype.name,
                where=str(self.path),
                fix="pass an integer array",
            )
        if len(ids) == 0 or (ids.dtype.kind == "u" and np.iinfo(ids.dtype).max < self._limit):
            return
        # A negative id is huge as an unsigned number: one pass checks both sides.
        unsigned = ids.view(ids.dtype.str.replace("i", "u")) if ids.dtype.kind == "i" else ids
        if int(unsigned.max()) < self._limit:
            return
        at = int(np.argmax(unsigned >= self._limit))
        row = int(np.searchsorted(offsets - offsets[0], at, "right")) - 1
        raise DataError(
            f"token ids in [0, {self._limit})" + (", the vocabulary" if self._vocab else f" for {self._dtype.name}"),
            got=f"id {int(ids[at])} at token {at - int(offsets[row] - offsets[0])} of document {self.documents + row}",
            where=str(self.path),
            fix="pass the vocabulary size of the tokenizer that made these ids, special tokens included",
        )

    def _add_columns(self, columns: Columns, rows: int) -> None:
        if self._columns is None:
            self._columns = [_ColumnBuffer(name, column, self.path) for name, column in sorted(columns.items())]
        have, want = sorted(columns), [c.spec.name for c in self._columns]
        if have != want:
            raise UsageError(
                f"the columns of the first call: {want}",
                got=str(have),
                where=str(self.path),
                fix="pass the same columns in every add()",
            )
        for name, column in columns.items():
            if len(column) != rows:
                raise UsageError(
                    f"one row of column {name!r} for each of {rows} documents",
                    got=f"{len(column)} rows",
                )
        for buffer in self._columns:
            buffer.check(columns[buffer.spec.name])
        for buffer in self._columns:
            buffer.add(columns[buffer.spec.name])


class _PageHasher:
    """Writes to a file and computes the xxh3-64 of every page."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.size, self.total = file, size, 0
        self._hashes: list[int] = []
        self._current = xxhash.xxh3_64()
        self._filled = self._begun = 0

    def write(self, data: Any) -> None:
        view = memoryview(data)
        at, size = 0, len(view)
        if self._filled:
            at = min(size, self.size - self._filled)
            self._current.update(view[:at])
            self._filled += at
            if self._filled == self.size:
                self._hashes.append(self._current.intdigest())
                self._current.reset()
                self._filled = 0
        full = at + (size - at) // self.size * self.size  # end of the last complete page
        for start, stop in layout.page_spans(at, full, self.size):
            self._hashes.append(xxhash.xxh3_64_intdigest(view[start:stop]))
        if full < size:
            self._current.update(view[full:])
            self._filled = size - full
        self._file.write(view)
        self.total += size
        written = self.total - _BUFFER_BYTES  # what came later may still be in the buffer
        if written - self._begun >= _WRITEBACK_BYTES:
            begin_writeback(self._file.fileno(), self._begun, written)
            self._begun = written

    def pad(self) -> None:
        self.write(bytes(layout.align(self.total) - self.total))

    def close(self) -> NDArray[np.uint64]:
        if self._filled:
            self._hashes.append(self._current.intdigest())
        return np.array(self._hashes, np.uint64)


class _ColumnBuffer:
    """Holds one column in temporary files until `finish`, when it is written after the tokens."""

    def __init__(self, name: str, column: Column, path: Path) -> None:
        if name == "input_ids" or not name or len(name) > 200:
            raise UsageError(
                "a column name of 1 to 200 characters other than 'input_ids'",
                got=repr(name),
            )
        kind = layout.dtype_name(column.dtype, layout.COLUMN_DTYPES, f"column {name!r}")
        ragged = isinstance(column, Ragged)
        shape = () if isinstance(column, Ragged) else tuple(column.shape[1:])
        self.spec = ColumnSpec(name, kind, ragged, shape)
        self.items = 0
        self._values = _temporary(path.parent)
        self._offsets = _temporary(path.parent) if ragged else None

    def check(self, column: Column) -> None:
        shape = () if isinstance(column, Ragged) else tuple(column.shape[1:])
        kind = layout.dtype_name(column.dtype, layout.COLUMN_DTYPES, f"column {self.spec.name!r}")
        if (isinstance(column, Ragged), kind, shape) != (
            self.spec.ragged,
            self.spec.dtype,
            self.spec.shape,
        ):
            raise UsageError(
                f"column {self.spec.name!r} as in the first call: {self.spec}",
                got=f"{kind} {shape}",
            )

    def add(self, column: Column) -> None:
        if isinstance(column, Ragged):
            if self._offsets is None:
                raise UsageError(
                    f"column {self.spec.name!r} with rows of one shape",
                    got="ragged rows",
                )
            offsets = np.asarray(column.offsets, np.int64)
            values = column.values[offsets[0] : offsets[-1]]
            _append(self._offsets, (offsets[:-1] - offsets[0] + self.items).astype("<u8"))
        else:
            values = column
        _append(self._values, np.ascontiguousarray(values, np.dtype(self.spec.dtype)))
        self.items += values.size

    def close(self) -> list[IO[bytes]]:
        if self._offsets is None:
            return [self._values]
        _append(self._offsets, np.array([self.items], "<u8"))
        return [self._offsets, self._values]

    def drop(self) -> None:
        self._values.close()
        if self._offsets is not None:
            self._offsets.close()


def _choose_dtype(vocab_size: int | None, dtype: Any) -> np.dtype[Any]:
    if vocab_size is None and dtype is None:
        raise UsageError(
            "vocab_size or dtype",
            got="neither",
            where="ShardWriter",
            fix="pass the tokenizer's vocabulary size",
        )
    if dtype is None:
        return layout.token_dtype(vocab_size or 0)
    chosen = np.dtype(layout.dtype_name(dtype, layout.TOKEN_DTYPES, "tokens"))
    if vocab_size is not None and layout.token_dtype(vocab_size).itemsize > chosen.itemsize:
        raise UsageError(
            f"a dtype that holds every id below {vocab_size}",
            got=chosen.name,
            where="ShardWriter",
            fix="leave dtype out: it is chosen from vocab_size",
        )
    return chosen


def _check_offsets(offsets: NDArray[np.int64], values: int, path: Path) -> None:
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > values or bool((np.diff(offsets) < 0).any()):
        raise UsageError(
            "non-decreasing offsets inside the values",
            got=f"{values} values",
            where=str(path),
        )


def _temporary(folder: Path) -> IO[bytes]:
    return cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=_SPILL_BYTES, dir=str(folder)))


def _append(file: IO[bytes], array: NDArray[Any]) -> None:
    file.write(array.reshape(-1).view(np.uint8).data)


def _copy(source: IO[bytes], target: _PageHasher, kind: str, final: str) -> None:
    source.seek(0)
    step = _CHUNK_ITEMS * np.dtype(kind).itemsize
    while chunk := source.read(step):
        target.write(np.frombuffer(chunk, kind).astype(final, copy=False).view(np.uint8).data)
