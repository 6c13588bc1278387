"""A read-only view of MosaicML MDS datasets with random access; nothing is converted.

Opening reads `index.json`, and a shard's table of offsets (4 bytes per sample) when the shard is first used. A read is
one range per sample. See `mds_encodings` for what columns become, and `mds_shards` for compression and hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.hashing import content_id
from penstock.core.limits import LIMITS, Limits
from penstock.core.read_budget import spend
from penstock.sources.block_reads import BlockFacts
from penstock.sources.formats import Options
from penstock.sources.mds_encodings import Encoding, encoding_of
from penstock.sources.mds_index import NAME, MDSShard, find_indexes, read_index
from penstock.sources.mds_shards import ShardFiles
from penstock.storage import filesystem, objects
from penstock.store.doctable import check_range

Verify = Literal["first-touch", "open", "off"]
_SAMPLED, _SAMPLE_BYTES = 64, 1 << 16


class MDSDataset:
    """Records of MDS shards, in the order of datasets and shards; `columns` says which to read, default all.

    Several datasets (streams) are read one after another and must have the same columns.
    """

    def __init__(
        self,
        paths: filesystem.Paths,
        *,
        columns: Sequence[str] | None = None,
        split: str | None = None,
        verify: Verify = "first-touch",
        limits: Limits = LIMITS,
        storage_options: filesystem.Options = None,
    ) -> None:
        if verify not in ("first-touch", "open", "off"):
            raise UsageError('verify="first-touch", "open" or "off"', got=repr(verify), fix='verify="first-touch"')
        self.indexes = find_indexes(paths, split, storage_options)
        shards = [shard for index in self.indexes for shard in read_index(index, limits, storage_options)]
        shards = [shard for shard in shards if shard.samples]
        if not shards:
            raise UsageError("an MDS dataset with samples", got="none", where=self.indexes[0], fix="check the path")
        self.limits = limits
        self._columns = _chosen(shards, columns)
        self.files = ShardFiles(shards, verify, limits, storage_options)
        self._bounds = np.cumsum([0, *(shard.samples for shard in shards)], dtype=np.int64)
        self._example: dict[str, NDArray[Any]] | None = None
        self._print = ""
        if verify == "open":
            self.files.check_all()

    def __len__(self) -> int:
        return int(self._bounds[-1])

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    @property
    def encodings(self) -> dict[str, Encoding]:
        """How each column is stored."""
        return dict(self._columns)

    @property
    def paths(self) -> list[str]:
        """The shards, in order."""
        return [shard.raw.path for shard in self.files.shards]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """These records; `BadRecords` names each one whose bytes are not what its encoding says."""
        return self.read_columns(self.columns, indices)

    def column(self, name: str, indices: NDArray[np.int64]) -> Any:
        """One column of these records."""
        return self.read_columns([name], indices)[name]

    def read_columns(self, names: Sequence[str], indices: NDArray[np.int64]) -> Columns:
        """Some columns of these records."""
        indices = check_range(indices, len(self))
        found, errors = self.stored(names, indices)
        like = self._examples() if any(self._columns[name].needs_example for name in names) else {}
        columns: Columns = {}
        for name, values in zip(names, found, strict=True):

            def fail(row: int, expected: str, got: str, name: str = name) -> None:
                where = f"{self._where(int(indices[row]))}, column {name!r}"
                fix = "leave the record out, leave out the column (columns=), or write the dataset again"
                errors.append(RecordError(expected, got=got, where=where, fix=fix, row=row))

            if not errors:
                columns[name] = self._columns[name].decode(values, fail, self.limits, like.get(name))
        if errors:
            unique = {error.row: error for error in reversed(errors)}
            raise BadRecords([unique[row] for row in sorted(unique)])
        return columns

    def stored(self, names: Sequence[str], indices: NDArray[np.int64]) -> tuple[list[list[bytes]], list[RecordError]]:
        """The stored bytes of some columns of records, by column, and what is wrong with samples."""
        found: list[list[bytes]] = [[b""] * len(indices) for _ in names]
        errors: list[RecordError] = []
        shards = np.searchsorted(self._bounds, indices, "right") - 1
        used = np.unique(shards).tolist()
        self.files.open(used)
        starts, stops = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        for shard in used:
            rows = shards == shard
            local, table = indices[rows] - self._bounds[shard], self.files.offsets(shard)
            starts[rows], stops[rows] = table[local], table[local + 1]
        small = np.flatnonzero(stops - starts <= self.limits.record_bytes)
        for row in np.flatnonzero(stops - starts > self.limits.record_bytes).tolist():
            expected = f"a sample of at most {self.limits.record_bytes:,} bytes"
            where, fix = self._where(int(indices[row])), "pass limits=Limits(record_bytes=...)"
            got = f"{int(stops[row] - starts[row]):,} bytes"
            errors.append(RecordError(expected, got=got, where=where, fix=fix, row=row))
        places = {shard: [self.files.shards[shard].names.index(name) for name in names] for shard in used}
        spend(int((stops - starts)[small].sum()))
        blobs = self.files.read(shards[small], starts[small], stops[small])
        for row, blob in zip(small.tolist(), blobs, strict=True):
            shard = int(shards[row])
            ends = value_ends(self.files.shards[shard], blob)
            if ends is None:
                where, got = self._where(int(indices[row])), f"{len(blob)} bytes whose sizes do not add up"
                fix = "leave the record out, or write the dataset again"
                errors.append(RecordError("a value for each column", got=got, where=where, fix=fix, row=row))
                continue
            for column, place in enumerate(places[shard]):
                found[column][row] = blob[ends[place] : ends[place + 1]]
        return found, errors

    def _examples(self) -> dict[str, NDArray[Any]]:
        """Arrays of record 0, which say the type of columns whose encoding does not."""
        if self._example is None:
            names = [name for name, encoding in self._columns.items() if encoding.needs_example]
            found, errors = self.stored(names, np.zeros(1, np.int64))
            try:
                if errors:
                    raise ValueError(errors[0].got)
                self._example = {n: self._columns[n].array(v[0]) for n, v in zip(names, found, strict=True)}
            except ValueError as error:
                raise UsageError(
                    f"arrays in record 0, which say the type of {', '.join(names)}", got=str(error),
                    where=self._where(0), fix="leave the columns out: columns=[...]",
                ) from error  # fmt: skip
        return self._example

    def block_sizes(self) -> NDArray[np.int64]:
        """Samples of each shard."""
        return np.diff(self._bounds)

    def block_facts(self) -> BlockFacts | None:
        """What reads fetch of shards in an object store, see `sources.block_reads`."""
        return self.files.block_facts()

    def fingerprint(self) -> str:
        """Content: what the index says, with the hashes of shards where it has them.

        Where it has none, also the first 64 KiB of up to 64 spread shards, which hold their tables: a later change
        that keeps all sizes is NOT noticed. Write datasets with hashes=["xxh64"] where that matters. No path goes in.
        """
        if not self._print:
            shards = self.files.shards
            parts: list[Any] = ["mds", *self.limits.changed("record_bytes", "json_depth"), *self._columns]
            for shard in shards:
                parts += [*shard.encodings, shard.samples, shard.raw.size]
                parts += [text for pair in shard.raw.hashes for text in pair]
            if not all(shard.raw.hashes for shard in shards):
                for number in np.unique(np.linspace(0, len(shards) - 1, _SAMPLED).astype(np.int64)).tolist():
                    parts += self.files.ranges(number, [(0, min(_SAMPLE_BYTES, shards[number].raw.size))])
            self._print = f"mds:{content_id(parts)}"
        return self._print

    def describe(self) -> dict[str, Any]:
        shards = self.files.shards
        return {
            "kind": "MosaicML MDS", "records": len(self), "files": len(shards),
            "bytes": sum((shard.packed or shard.raw).size for shard in shards), "datasets": len(self.indexes),
            "columns": {name: shards[0].encodings[shards[0].names.index(name)] for name in self._columns},
            "compression": ", ".join(sorted({shard.compression for shard in shards} - {""})) or None,
            "hashes": sorted({name for shard in shards for name, _ in shard.raw.hashes}),
        }  # fmt: skip

    def locate(self, index: int) -> dict[str, Any]:
        number = int(check_range([index], len(self))[0])
        shard = int(np.searchsorted(self._bounds, number, "right")) - 1
        sample = number - int(self._bounds[shard])
        table = self.files.offsets(shard)
        start, end = int(table[sample]), int(table[sample + 1])
        return {"file": self.paths[shard], "record": number, "sample": sample, "offset": start, "bytes": end - start}

    def _where(self, index: int) -> str:
        shard = int(np.searchsorted(self._bounds, index, "right")) - 1
        return f"{self.files.shards[shard].raw.path}, sample {index - int(self._bounds[shard])}"

    def __repr__(self) -> str:
        return f"MDSDataset({len(self.files.shards)} shards, {len(self):,} records, columns {', '.join(self._columns)})"


def value_ends(shard: MDSShard, blob: bytes) -> list[int] | None:
    """Where the values of a sample begin and end; None if its sizes do not add up to its bytes."""
    varying = sum(not size for size in shard.sizes)
    at = 4 * varying
    if len(blob) < at:
        return None
    own = iter(np.frombuffer(blob, "<u4", varying).tolist())
    ends = [at]
    for size in shard.sizes:
        at += size or next(own)
        ends.append(at)
    return ends if at == len(blob) else None


def open_path(path: str, options: Options) -> MDSDataset:
    """The opener of the registry; `options.split` is used where the dataset is a folder of splits."""
    more = options.storage_options
    top, part = objects.join(path, NAME), objects.join(path, options.split, NAME)
    split = None if objects.exists(top, more) or not objects.exists(part, more) else options.split
    return MDSDataset(path, split=split, storage_options=more)


def readable_columns(
    paths: filesystem.Paths, split: str | None = None, options: filesystem.Options = None
) -> tuple[list[str], dict[str, str]]:
    """The columns that can be read, and the encodings of those that cannot: pickles, and unknown ones."""
    shards = [shard for index in find_indexes(paths, split, options) for shard in read_index(index, LIMITS, options)]
    good: list[str] = []
    bad: dict[str, str] = {}
    for name, encoding in zip(shards[0].names, shards[0].encodings, strict=True) if shards else ():
        try:
            encoding_of(encoding, name, "")
            good.append(name)
        except UsageError:
            bad[name] = encoding
    return good, bad


def _chosen(shards: Sequence[MDSShard], columns: Sequence[str] | None) -> dict[str, Encoding]:
    first = shards[0]
    names = list(first.names) if columns is None else list(columns)
    if not names or isinstance(columns, str) or len(set(names)) != len(names):
        raise UsageError("a list of different columns", got=repr(columns), fix=f"columns=[{first.names[0]!r}]")
    missing = [name for name in names if name not in first.names]
    if missing:
        raise UsageError(
            f"columns of the dataset: {', '.join(first.names)}", got=", ".join(map(repr, missing)),
            where=first.raw.path, fix="correct the name",
        )  # fmt: skip
    found = {name: encoding_of(first.encodings[first.names.index(name)], name, first.raw.path) for name in names}
    checked: set[tuple[Any, ...]] = set()
    for shard in shards:
        layout = shard.names, shard.encodings, shard.sizes
        if layout in checked:
            continue
        checked.add(layout)
        for name, encoding in found.items():
            place = shard.names.index(name) if name in shard.names else -1
            if place < 0 or shard.encodings[place] != first.encodings[first.names.index(name)]:
                got = "none" if place < 0 else repr(shard.encodings[place])
                raise UsageError(
                    f"column {name!r} in the encoding {first.encodings[first.names.index(name)]!r} in every shard",
                    got=got[:120], where=shard.raw.path,
                    fix="name the columns that all shards have: columns=[...]; or open the datasets apart and mix them",
                )  # fmt: skip
            if (shard.sizes[place] or None) != encoding.size:
                raise UsageError(
                    f"column {name!r} of {encoding.size or 'any number of'} bytes, as its encoding says",
                    got=f"{shard.sizes[place]} bytes", where=shard.raw.path, fix="write the dataset again",
                )  # fmt: skip
    return found
