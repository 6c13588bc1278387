"""Tar shards in the WebDataset layout as a source with random access. Nothing is ever extracted.

Members that share a key (the path up to the first dot of the file name) are one record; what follows that dot names
the part: `0001.jpg` and `0001.cls` are the parts "jpg" and "cls" of record "0001". The first opening walks each shard
once and writes a side-car index; later openings read that. Each read is one range of the file, and every header and
payload in it is checked against the index's hashes.

What is noticed: any cut, any changed or erased header, keys that come apart or twice, missing parts, at opening; any
changed payload byte, at the read that meets it, once an index exists (tar itself holds no checksum of payloads).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, DataError, RecordError, StorageError, UsageError
from penstock.core.hashing import content_id
from penstock.core.limits import LIMITS, Limits
from penstock.core.read_budget import spend
from penstock.sources import splits
from penstock.sources.formats import FORMATS
from penstock.sources.names import Names
from penstock.sources.tar_index import TarIndex, indexes_of
from penstock.sources.tar_records import NO_RECORDS
from penstock.storage import filesystem
from penstock.storage.ranges_ahead import Ranges, RangesAhead, nothing
from penstock.storage.scattered import read_scattered


class TarShards:
    """Records of tar shards, in the order of shards and members.

    A record has `key` (str) and one bytes column per part. `parts` names the parts wanted; None means those of the
    first record. Every record must have all of them, or opening fails and names the shard and the key.
    `index` says where side-cars go: "beside" the shards (kept in memory if that place is read-only or remote), a
    folder, or None for memory only.

    >>> import io, tarfile, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.tar")
    >>> with tarfile.open(path, "w") as tar:
    ...     for name, data in [("0.txt", b"zero"), ("0.cls", b"7"), ("1.txt", b"one"), ("1.cls", b"8")]:
    ...         info = tarfile.TarInfo(name); info.size = len(data)
    ...         tar.addfile(info, io.BytesIO(data))
    >>> shards = TarShards(path)
    >>> len(shards), shards.parts, shards.read(np.array([1]))["txt"].tolist()
    (2, ('cls', 'txt'), [b'one'])
    """

    def __init__(
        self,
        paths: filesystem.Paths,
        *,
        parts: Sequence[str] | None = None,
        index: str | os.PathLike[str] | None = "beside",
        limits: Limits = LIMITS,
        storage_options: filesystem.Options = None,
    ) -> None:
        listed = filesystem.expand_stamped(paths, storage_options, FORMATS["tar"].suffixes)
        self.paths, self.stamps = list(listed), filesystem.stamps(listed, storage_options)
        splits.refuse_several(paths, self.paths)
        self.limits, self.options = limits, storage_options
        self.ahead = RangesAhead() if any(map(filesystem.is_object, self.paths)) else None
        place = None if index is None else filesystem.local_only(index, "index")
        self.skipped = 0
        self.indexed = True
        tables: list[NDArray[np.int64]] = []
        self._indexes: list[TarIndex] = []
        wanted = None if parts is None else tuple(sorted(set(parts)))
        if wanted == ():
            raise UsageError("at least one part", got="none")
        made = indexes_of(self.paths, self.stamps, place, limits, storage_options)
        for path, (index_, held) in zip(self.paths, made, strict=True):
            self.indexed &= held
            records = index_.records
            self.skipped += int((records.record < 0).sum())
            if wanted is None and len(records.keys):
                wanted = records.first_parts()
            if wanted is not None and "key" in wanted:
                others = ", ".join(repr(part) for part in wanted if part != "key") or "..."
                raise DataError(
                    "parts with other names than the column of keys", got="a part 'key'", where=path,
                    fix=f"leave it out: read_tar(..., parts=[{others}]), or write the archive again",
                )  # fmt: skip
            tables.append(records.table(wanted or (), exact=parts is None, path=path))
            self._indexes.append(index_)
        self.keys = Names.joined([index_.records.keys for index_ in self._indexes])
        if not len(self.keys) or wanted is None:
            raise UsageError("tar shards with records", got="no members with a key and a part", where=self.paths[0])
        self.parts = wanted
        self._shard = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        self._members = np.concatenate([table.reshape(-1, len(wanted)) for table in tables])  # a member of its shard
        for index_ in self._indexes:
            index_.records = NO_RECORDS  # keys and members say it all from here on

    def __len__(self) -> int:
        return len(self.keys)

    def record_names(self) -> Names:
        """The key of every record."""
        return self.keys

    def block_sizes(self) -> NDArray[np.int64]:
        """Records of each shard."""
        return np.bincount(self._shard, minlength=len(self.paths))

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Key and parts of these records; `BadRecords` names each one whose bytes are not those indexed."""
        indices = np.asarray(indices, np.int64)
        shards = self._shard[indices]
        values: list[list[bytes] | None] = [None] * len(indices)
        errors: list[RecordError] = []
        ahead = self._fetch(self._remote(indices))
        for shard in np.unique(shards):
            rows = np.flatnonzero(shards == shard)
            self._read_shard(int(shard), indices, rows, values, errors, ahead)
        if errors:
            raise BadRecords(sorted(errors, key=lambda error: error.row))
        columns: Columns = {"key": strings([self.keys[int(i)] for i in indices])}
        for at, part in enumerate(self.parts):
            columns[part] = strings([value[at] for value in values if value is not None])
        return columns

    def _too_far(self, start: Any, stop: Any) -> Any:
        """Whether the parts of a record are too far apart to be read together."""
        return stop - start > self.limits.record_bytes * len(self.parts)

    def _remote(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these records that are in object stores."""
        shards = self._shard[records]
        remote = [shard for shard in np.unique(shards).tolist() if filesystem.is_object(self.paths[shard])]
        return records[np.isin(shards, remote)]

    def _fetch(self, records: NDArray[np.int64]) -> dict[int, bytes]:
        """The bytes of records of object stores, read with one set of merged requests."""
        numbers, table = self._spans(records)
        found = read_scattered(
            self.paths,
            self.stamps,
            self._shard[numbers],
            table[:, 0],
            table[:, 1],
            self.options,
            ahead=self.ahead,
            compared=True,
        )
        return dict(zip(numbers.tolist(), found, strict=True))

    def _spans(self, records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """These records, each once, and where their bytes begin and end; without those that are too large."""
        records = np.unique(records)
        shards, table = self._shard[records], np.empty((len(records), 2), np.int64)
        for shard in np.unique(shards).tolist():
            here, index = np.flatnonzero(shards == shard), self._indexes[shard]
            members = self._members[records[here]]
            table[here, 0] = index.starts[members].min(axis=1)
            table[here, 1] = (index.offsets[members] + index.sizes[members]).max(axis=1)
        near = ~self._too_far(table[:, 0], table[:, 1])
        return records[near], table[near]

    range_unit = 1  # members have hashes of their own
    scanned, held = True, False

    def file_sizes(self) -> NDArray[np.int64]:
        """Bytes of each shard."""
        return np.array([stamp.size for stamp in self.stamps], np.int64)

    def record_ranges(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shard, first byte and end of each of these records, see `sources.base.RecordRanges`."""
        numbers, table = self._spans(np.asarray(indices, np.int64))
        return np.column_stack([self._shard[numbers], table])

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        return None

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """See `sources.base.SizedRows`."""
        _, table = self._spans(np.asarray(indices, np.int64))
        return int((table[:, 1] - table[:, 0]).sum())

    def claim_ahead(self, indices: NDArray[np.int64], step: int) -> Callable[[], int]:
        """Requests these records before they are read, see `sources.base.RowsAheadSource`."""
        indices = np.asarray(indices, np.int64)
        numbers, table = self._spans(self._remote(indices))

        def read(ranges: Ranges) -> list[bytes]:
            files, starts, stops = ranges.T
            return read_scattered(self.paths, self.stamps, files, starts, stops, self.options, compared=True)

        ranges = np.column_stack((self._shard[numbers], table))
        return nothing if self.ahead is None else self.ahead.claim(ranges, step, read)

    def _read_shard(
        self, shard: int, indices: NDArray[np.int64], rows: NDArray[np.int64], values: list[list[bytes] | None],
        errors: list[RecordError], ahead: dict[int, bytes],
    ) -> None:  # fmt: skip
        index, path = self._indexes[shard], self.paths[shard]
        remote = filesystem.is_object(path)
        members = self._members[indices[rows]]
        starts = index.starts[members].min(axis=1)
        stops = (index.offsets[members] + index.sizes[members]).max(axis=1)
        far = self._too_far(starts, stops)
        for row in rows[far].tolist():
            where = f"{path}, record {self.keys[int(indices[row])]!r}"
            errors.append(RecordError("parts of a record side by side", got="far apart", where=where, row=row))
        rows, members, starts, stops = rows[~far], members[~far], starts[~far], stops[~far]
        begins = starts[:, None]
        spend(int((stops - starts).sum()))
        heads, offsets = (index.starts[members] - begins).tolist(), (index.offsets[members] - begins).tolist()
        sizes, head_hashes = index.sizes[members].tolist(), index.head_hashes[members].tolist()
        hashes = index.hashes[members].tolist()
        found = zip(rows.tolist(), heads, offsets, sizes, head_hashes, hashes, strict=True)
        # A shard that cannot be read is no bad record: the error passes, also with on_error="skip".
        blobs = (
            [ahead[record] for record in indices[rows].tolist()]
            if remote
            else filesystem.read_ranges(path, list(zip(starts.tolist(), stops.tolist(), strict=True)), self.options)
        )
        for (row, *member), blob in zip(found, blobs, strict=True):
            payloads, wrong = _parts(member, blob)
            for _ in range(2 if wrong and remote else 0):
                record = int(indices[row])
                payloads, wrong = _parts(member, self._fetch(np.array([record]))[record])
                if not wrong:
                    break
            if wrong:
                error = self._changed(path, int(indices[row]), row, self.parts[len(payloads)], wrong)
                if remote:  # the object is the one that was indexed, says its ETag: the transfer is at fault
                    raise StorageError(error.expected, got=error.got, where=error.where, fix="open the shards again")
                errors.append(error)
            values[row] = payloads

    def _changed(self, path: str, index: int, row: int, part: str, what: str) -> RecordError:
        return RecordError(
            f"the bytes of part {part!r} that were indexed",
            got=f"another {what}: their hash differs",
            where=f"{path}, record {self.keys[index]!r}",
            fix="fetch the shard again; if you rewrote it on purpose, delete its .penstock-index.json",
            row=row,
        )

    def fingerprint(self) -> str:
        """Hash of keys, parts and every payload's hash, from the index; paths, dates and owners do not count."""
        edges = np.cumsum([0, *self.block_sizes()]).tolist()
        rows = [self._members[a:b] for a, b in itertools.pairwise(edges)]
        payloads = [index.hashes[mine].reshape(-1) for index, mine in zip(self._indexes, rows, strict=True)]
        return content_id(
            [
                "tar",
                *self.limits.changed("record_bytes"),
                *self.parts,
                self.keys.blob,
                self.keys.offsets,
                np.concatenate(payloads),
            ]
        )

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "tar shards",
            "records": len(self),
            "files": len(self.paths),
            "bytes": sum(index.total for index in self._indexes),
            "parts": list(self.parts),
            "skipped_members": self.skipped,
            "index": "side-car" if self.indexed else "in memory",
        }

    def locate(self, index: int) -> dict[str, Any]:
        shard = int(self._shard[index])
        table = self._indexes[shard]
        parts = {
            part: {"offset": int(table.offsets[m]), "bytes": int(table.sizes[m])}
            for part, m in zip(self.parts, self._members[index], strict=True)
        }
        return {"file": self.paths[shard], "key": self.keys[index], "parts": parts}

    def __repr__(self) -> str:
        return f"TarShards({len(self.paths)} shards, {len(self):,} records, parts {', '.join(self.parts)})"


def _parts(members: Sequence[list[int]], blob: bytes) -> tuple[list[bytes], str]:
    """The parts of a record up to the first whose hash differs, and what differs: "", "header" or "payload".

    `members` are, of each part: where its header begins, where it begins, its size, and the hashes of both.
    """
    payloads: list[bytes] = []
    for head, at, size, head_hash, payload_hash in zip(*members, strict=True):
        payload = blob[at : at + size]
        if xxhash.xxh3_64_intdigest(blob[head:at]) != head_hash:
            return payloads, "header"
        if xxhash.xxh3_64_intdigest(payload) != payload_hash:
            return payloads, "payload"
        payloads.append(payload)
    return payloads, ""
