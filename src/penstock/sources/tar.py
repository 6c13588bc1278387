"""Tar shards in the WebDataset layout as a source with random access. Nothing is ever extracted.

Members that share a key (the path up to the first dot of the file name) are one record; what follows that dot names
the part: `0001.jpg` and `0001.cls` are the parts "jpg" and "cls" of record "0001". The first opening walks each shard
once and writes a side-car index; later openings read that. Each read is one range of the file, and every header and
payload in it is checked against the index's hashes.

What is noticed: any cut, any changed or erased header, keys that come apart or twice, missing parts, at opening; any
changed payload byte, at the read that meets it, once an index exists (tar itself holds no checksum of payloads).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError
from penstock.core.hashing import content_id
from penstock.core.limits import LIMITS, Limits
from penstock.sources.formats import FORMATS
from penstock.sources.names import Names
from penstock.sources.tar_index import TarIndex, index_of
from penstock.storage import filesystem


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
        self.paths = filesystem.expand(paths, storage_options, FORMATS["tar"].suffixes)
        self.limits, self.options = limits, storage_options
        place = None if index is None else os.fspath(index)
        self.skipped = 0
        self.indexed = True
        keys: list[str] = []
        shard_of: list[NDArray[np.int64]] = []
        tables: list[NDArray[np.int64]] = []
        self._indexes: list[TarIndex] = []
        wanted = None if parts is None else tuple(sorted(set(parts)))
        if wanted == ():
            raise UsageError("at least one part", got="none")
        for number, path in enumerate(self.paths):
            members, held = index_of(path, place, limits, storage_options)
            self.indexed &= held
            groups, skipped = _group(members.names, path)
            self.skipped += skipped
            if wanted is None and groups:
                wanted = tuple(sorted(groups[0][1]))
            tables.append(_table(groups, wanted or (), exact=parts is None, path=path))
            keys.extend(key for key, _ in groups)
            shard_of.append(np.full(len(groups), number, np.int64))
            members.names = []  # keys and parts say it all from here on
            self._indexes.append(members)
        if not keys or wanted is None:
            raise UsageError("tar shards with records", got="no members with a key and a part", where=self.paths[0])
        self.parts = wanted
        self.keys = Names(keys)
        self._shard = np.concatenate(shard_of)
        self._members = np.concatenate(tables)  # (records, parts): which member of its shard

    def __len__(self) -> int:
        return len(self.keys)

    def record_names(self) -> Names:
        """The key of every record."""
        return self.keys

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Key and parts of these records; `BadRecords` names each one whose bytes are not those indexed."""
        indices = np.asarray(indices, np.int64)
        shards = self._shard[indices]
        values: list[list[bytes] | None] = [None] * len(indices)
        errors: list[RecordError] = []
        for shard in np.unique(shards):
            rows = np.flatnonzero(shards == shard)
            self._read_shard(int(shard), indices, rows, values, errors)
        if errors:
            raise BadRecords(sorted(errors, key=lambda error: error.row))
        columns: Columns = {"key": strings([self.keys[int(i)] for i in indices])}
        for at, part in enumerate(self.parts):
            columns[part] = strings([value[at] for value in values if value is not None])
        return columns

    def _read_shard(
        self, shard: int, indices: NDArray[np.int64], rows: NDArray[np.int64], values: list[list[bytes] | None],
        errors: list[RecordError],
    ) -> None:  # fmt: skip
        index, path = self._indexes[shard], self.paths[shard]
        found = []
        for row in rows.tolist():
            member = self._members[int(indices[row])]
            start = int(index.starts[member].min())
            stop = int((index.offsets[member] + index.sizes[member]).max())
            if stop - start > self.limits.record_bytes * len(self.parts):
                where = f"{path}, record {self.keys[int(indices[row])]!r}"
                errors.append(RecordError("parts of a record side by side", got="far apart", where=where, row=row))
            else:
                found.append((row, member, start, stop))
        # A shard that cannot be read is no bad record: the error passes, also with on_error="skip".
        blobs = filesystem.read_ranges(path, [(start, stop) for *_, start, stop in found], self.options)
        for (row, member, start, _), blob in zip(found, blobs, strict=True):
            payloads = []
            for part, m in zip(self.parts, member, strict=True):
                head, at = int(index.starts[m]) - start, int(index.offsets[m]) - start
                payload = blob[at : at + int(index.sizes[m])]
                whole = xxhash.xxh3_64_intdigest(blob[head:at]) == int(index.head_hashes[m])
                if not whole or xxhash.xxh3_64_intdigest(payload) != int(index.hashes[m]):
                    errors.append(self._changed(path, int(indices[row]), row, part, "payload" if whole else "header"))
                    break
                payloads.append(payload)
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
        payloads = [self._indexes[int(s)].hashes[m] for s, m in zip(self._shard, self._members, strict=True)]
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


def _group(names: Sequence[str], path: str) -> tuple[list[tuple[str, dict[str, int]]], int]:
    """Neighbours with one key, in order, and how many members have no key or no part (README, ._x) and are left out."""
    groups: list[tuple[str, dict[str, int]]] = []
    seen: set[str] = set()
    skipped = 0
    for number, name in enumerate(names):
        folder, slash, base = name.removeprefix("./").rpartition("/")
        stem, _, part = base.partition(".")
        if not stem or not part:
            skipped += 1
            continue
        key, part = folder + slash + stem, part.lower()
        if not groups or groups[-1][0] != key:
            if key in seen:
                raise DataError(
                    "the members of each record side by side, every key once", got=f"key {key!r} again at {name!r}",
                    where=path, fix="sort the names before writing the archive, and use each key once",
                )  # fmt: skip
            seen.add(key)
            groups.append((key, {}))
        if part in groups[-1][1]:
            raise DataError(
                "one member per key and part", got=f"{part!r} of key {key!r} twice", where=path,
                fix="write the archive again without the double",
            )  # fmt: skip
        groups[-1][1][part] = number
    return groups, skipped


def _table(
    groups: Sequence[tuple[str, dict[str, int]]], wanted: tuple[str, ...], *, exact: bool, path: str
) -> NDArray[np.int64]:
    out = np.empty((len(groups), len(wanted)), np.int64)
    for row, (key, parts) in enumerate(groups):
        odd = set(parts) ^ set(wanted) if exact else set(wanted) - set(parts)
        if odd:
            raise DataError(
                f"the parts {', '.join(wanted)} in every record", got=f"key {key!r} with {', '.join(sorted(parts))}",
                where=path, fix="name the parts all records have: TarShards(..., parts=[...])",
            )  # fmt: skip
        out[row] = [parts[part] for part in wanted]
    return out
