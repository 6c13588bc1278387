"""Files of which each is one record, read on demand; empty files are not records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, RecordError
from penstock.core.limits import Limits
from penstock.sources import compressed
from penstock.sources.cutting import BOM, PIECE_BYTES, Piece
from penstock.sources.lines import Chunk, Cursor, Parse, bare, checked_cursor, no_records, too_long
from penstock.storage import filesystem
from penstock.store.doctable import check_range


class WholeFiles:
    """Some files as records, with the interface of `LineFiles`."""

    what = "file"

    def __init__(
        self, paths: filesystem.Paths, limits: Limits, options: filesystem.Options, suffixes: Sequence[str]
    ) -> None:
        self.options = dict(options or {})
        found = filesystem.expand(paths, options, suffixes)
        stamps = [filesystem.stamp(path, self.options, fresh=False) for path in found]
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
        for row, file in enumerate(check_range(indices, len(self)).tolist()):
            try:
                out.append(self._load(file))
            except RecordError as error:
                error.row = row
                errors.append(bare(error))
                out.append(b"")
        return out, errors

    def _load(self, file: int) -> bytes:
        path = self.paths[file]
        if self.stamps[file].size > self.limit:
            raise too_long(path, 1, 0, self.limit, "file")
        try:
            kind = compressed.kind_of(path, self.options)
            stream = compressed.open_stream(path, kind, self.limits, self.options)
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

    def chunks(self, parse: Parse, start: Cursor | None = None, size: int = PIECE_BYTES) -> Iterator[Chunk]:
        file, _, _ = checked_cursor(start, self.stamps, lambda _: "plain")
        chunk, held = Chunk([], [], {}), 0
        for i in range(file, len(self.paths)):
            data, errors = self.fetch(np.array([i]))
            if not errors:
                whole, one = np.array([0]), np.array([1])
                texts, bad = parse(Piece(data[0], 0, whole, np.array([len(data[0])]), one, 1, 0, 0), self.paths[i])
                errors = [error for _, error in bad]
                chunk.texts += texts
            (chunk.error_positions if errors else chunk.positions).append((i, 1, 0))
            chunk.errors += errors
            held += len(data[0])
            chunk.file_bytes += self.stamps[i].size
            if held >= size or i + 1 == len(self.paths):
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
