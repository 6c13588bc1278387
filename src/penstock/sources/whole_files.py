"""Files of which each is one record, read on demand; empty files are not records."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, RecordError
from penstock.core.limits import Limits
from penstock.sources import compressed
from penstock.sources.cutting import BOM, PIECE_BYTES, Piece
from penstock.sources.line_errors import bare, no_records, too_long
from penstock.sources.line_ranges import checked_cursor
from penstock.sources.lines import Chunk, Parse
from penstock.sources.ranges import Cursor, Range, file_ranges
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.storage.ranges_ahead import RangesAhead, nothing
from penstock.storage.scattered import read_objects
from penstock.store.doctable import check_range


class WholeFiles:
    """Some files as records, with the interface of `LineFiles`."""

    what = "file"
    ahead: RangesAhead | None = None

    def __init__(
        self, paths: filesystem.Paths, limits: Limits, options: filesystem.Options, suffixes: Sequence[str]
    ) -> None:
        self.options = dict(options or {})
        listed = filesystem.expand_stamped(paths, options, suffixes)
        found, stamps = list(listed), filesystem.stamps(listed, self.options)
        # A compressed file is never without bytes: such a one is damaged, not empty.
        kept = [bool(stamp.size or compressed.promised(path)) for path, stamp in zip(found, stamps, strict=True)]
        self.empty = [path for path, keep in zip(found, kept, strict=True) if not keep]
        self.paths = [path for path, keep in zip(found, kept, strict=True) if keep]
        self.stamps = [stamp for stamp, keep in zip(stamps, kept, strict=True) if keep]
        self.limits, self.limit = limits, limits.record_bytes
        if not self.paths:
            raise no_records(found)

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, indices: NDArray[np.int64]) -> tuple[list[bytes], list[RecordError]]:
        out, errors = [], []
        files = check_range(indices, len(self)).tolist()
        ahead = self._objects(files)
        for row, file in enumerate(files):
            try:
                out.append(self._load(file, ahead.get(file)))
            except RecordError as error:
                error.row = row
                errors.append(bare(error))
                out.append(b"")
        return out, errors

    range_unit = 1  # each record is an object

    def record_ranges(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """File, first byte and end of each of these records."""
        files = np.asarray(indices, np.int64)
        sizes = np.array([stamp.size for stamp in self.stamps], np.int64)
        return np.stack([files, np.zeros_like(files), sizes[files]], axis=1)

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        return None

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """See `sources.base.SizedRows`."""
        return sum(self.stamps[file].size for file in indices.tolist())

    def claim_ahead(self, indices: NDArray[np.int64], step: int) -> Callable[[], int]:
        """Nothing is requested ahead: each record is a request of its own, and they are made together."""
        return nothing

    def _objects(self, files: list[int]) -> dict[int, bytes]:
        """The bytes of those files that are objects of an object store, read all at once."""
        wanted = [
            file
            for file in dict.fromkeys(files)
            if self.stamps[file].size <= self.limit and filesystem.is_object(self.paths[file])
        ]
        found = read_objects([self.paths[f] for f in wanted], [self.stamps[f] for f in wanted], self.options)
        return dict(zip(wanted, found, strict=True))

    def file_ids(self) -> list[str]:
        """The id of each file's bytes."""
        return file_ids(self.paths, self.stamps, self.options)

    def _load(self, file: int, full: bytes | None = None) -> bytes:
        path = self.paths[file]
        if self.stamps[file].size > self.limit:
            raise too_long(path, 1, 0, self.limit, "file")
        try:
            kind = compressed.kind_of(path, self.options, full=full)
            opened = filesystem.open_read(path, self.options) if full is None else cast(BinaryIO, io.BytesIO(full))
            stream = compressed.expanding(opened, kind, path, self.limits)
            try:
                data = compressed.read_up_to(stream, self.limit + 1)
            finally:
                stream.close()
        except DataError as error:
            raise RecordError(error.expected, got=error.got, where=error.where, fix=error.fix) from error
        if len(data) > self.limit:
            raise too_long(path, 1, 0, self.limit, "file")
        if kind == "plain":
            before = self.stamps[file]
            filesystem.check_unchanged(path, before, now=filesystem.Stamp(len(data), before.tag))
        return data.removeprefix(BOM)

    def ranges(self, most: int) -> list[Range]:
        """Ranges of about `most` bytes; a file is never cut."""
        return file_ranges([stamp.size for stamp in self.stamps], most, lambda _: [])

    def chunks(
        self, parse: Parse, start: Cursor | None = None, size: int = PIECE_BYTES, part: Range | None = None
    ) -> Iterator[Chunk]:
        start, stop = (start, len(self.paths)) if part is None else (start or part.start, part.stop["file"])
        file, _, _ = checked_cursor(start, self.stamps, lambda _: "plain")
        chunk, held = Chunk([], [], {}), 0
        for i in range(file, stop):
            data, errors = self.fetch(np.array([i]))
            if not errors:
                beginning, one = np.array([0]), np.array([1])
                texts, bad = parse(Piece(data[0], 0, beginning, np.array([len(data[0])]), one, 1, 0, 0), self.paths[i])
                errors = [error for _, error in bad]
                chunk.texts += texts
            (chunk.error_positions if errors else chunk.positions).append((i, 1, 0))
            chunk.errors += errors
            held += len(data[0])
            chunk.file_bytes += self.stamps[i].size
            if held >= size or i + 1 == stop:
                chunk.cursor = {"file": i + 1, "offset": 0, "line": 0}
                yield chunk
                chunk, held = Chunk([], [], {}), 0

    def locate(self, index: int) -> dict[str, Any]:
        return {"file": self.paths[index], "line": 1, "offset": 0}

    def describe(self, kind: str) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        return {
            "kind": kind, "files": len(self.paths), "records": len(self.paths), "bytes": total,
            "files_without_records": len(self.empty),
        }  # fmt: skip

    def close(self) -> None:
        """Nothing is held open."""
