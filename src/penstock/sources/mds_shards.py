"""Bytes of MDS samples, by shard and number, from local files and URLs, verified.

A shard is `u32 n`, `u32 offsets[n + 1]`, the configuration in JSON, and the samples. A plain shard is read in ranges,
those of many objects at once; of a local one with hashes all bytes are hashed once, at its first use. A compressed
shard, and a remote one whose hashes are verified, is fetched and decompressed in memory once and then kept in a
temporary file without a name. That file is bounded by `limits.spool_bytes`: when it is half full a new one begins, and
old shards are fetched again when needed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import DataError, LimitError, StoreError, UsageError
from penstock.core.limits import Limits
from penstock.order.lru_cache import LruCache
from penstock.sources.block_reads import BlockFacts, ShardFetcher
from penstock.sources.compressed import read_up_to
from penstock.sources.mds_index import MDSFile, MDSShard
from penstock.sources.mds_packed import unpacked
from penstock.sources.spool import Spool
from penstock.storage import filesystem
from penstock.storage.object_reader import is_tag
from penstock.storage.object_requests import Read, read_many
from penstock.storage.scattered import read_scattered

_BLOCK = 4 << 20
_TABLES = 4096  # tables of offsets that are held: 4 bytes per sample
_CONFIG = 4096  # read with the table: it is smaller in all but odd datasets
_XXHASH = {"xxh32": xxhash.xxh32, "xxh64": xxhash.xxh64, "xxh128": xxhash.xxh128,
           "xxh3_64": xxhash.xxh3_64, "xxh3_128": xxhash.xxh3_128}  # fmt: skip
_OPENED_AT_ONCE = 16
Ranges = Sequence[tuple[int, int]]
I64 = NDArray[np.int64]


class _Kept:
    """A temporary file of shards, and where each is in it."""

    def __init__(self) -> None:
        self.spool, self.lock = Spool(), threading.Lock()
        self.places: LruCache[int] = LruCache(1 << 20)


class ShardFiles:
    """The shards of one or more datasets. `verify` as in `read_mds`. Pickles without what it fetched."""

    def __init__(self, shards: Sequence[MDSShard], verify: str, limits: Limits, options: filesystem.Options) -> None:
        self.shards, self.verify, self.limits, self.options = list(shards), verify, limits, options
        if verify != "off":
            for name in {name for s in shards for f in (s.raw, s.packed) if f is not None for name, _ in f.hashes}:
                _hasher(name)  # raises for one that is not known
        self._reset()

    def _reset(self) -> None:
        self._kept: _Kept | None = None
        self._lock = threading.Lock()
        self._tables: LruCache[NDArray[np.int64]] = LruCache(_TABLES)
        self._opened: set[int] = set()
        self._stamps: LruCache[filesystem.Stamp | None] = LruCache(1 << 20)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("shards", "verify", "limits", "options")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def offsets(self, number: int) -> NDArray[np.int64]:
        """Where each sample of a shard begins, and the end; checked."""
        return self._tables.get(number, lambda: self._table(number))

    def open(self, numbers: Sequence[int]) -> None:
        """Opens shards and reads their tables; of remote ones several at a time."""
        new = [number for number in numbers if number not in self._opened]
        if len(new) > 1 and any(filesystem.scheme(self.shards[number].raw.path) for number in new):
            with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(new)), "penstock-mds") as pool:
                list(pool.map(self.offsets, new))
        self._opened.update(new)

    def read(self, numbers: I64, starts: I64, stops: I64) -> list[bytes]:
        """Bytes [starts[i], stops[i]) of shard `numbers[i]` for each i; those of all objects in one set of requests."""
        out = [b""] * len(numbers)
        shards, place = np.unique(numbers, return_inverse=True)
        files = [self.shards[number].raw.path for number in shards.tolist()]
        direct = [not self._is_kept(self.shards[n]) and filesystem.is_object(self.shards[n].raw.path) for n in shards]
        stamps = [self._stamp(n) or filesystem.Stamp(0, "") for n in shards.tolist()] if any(direct) else []
        for number, one in enumerate(shards.tolist()):
            if not direct[number]:
                rows = np.flatnonzero(place == number)
                ranges = list(zip(starts[rows].tolist(), stops[rows].tolist(), strict=True))
                for row, data in zip(rows.tolist(), self.ranges(one, ranges), strict=True):
                    out[row] = data
        remote = np.flatnonzero(np.array(direct, bool)[place]) if len(numbers) else place
        if len(remote):
            found = read_scattered(files, stamps, place[remote], starts[remote], stops[remote], self.options)
            for row, data in zip(remote.tolist(), found, strict=True):
                out[row] = data
        return out

    def ranges(self, number: int, ranges: Ranges) -> list[bytes]:
        """Byte ranges of a decompressed shard."""
        shard = self.shards[number]
        if self._is_kept(shard):
            kept = self._file_of_shards()
            base = kept.places.get(number, lambda: self._keep(number, kept))
            if base < 0:  # this file is full, and another one was begun
                return self.ranges(number, ranges)
            return [filesystem.read_at(kept.spool.handle, base + a, base + b, shard.raw.path) for a, b in ranges]
        return filesystem.read_ranges(shard.raw.path, ranges, self.options, expected=self._stamp(number))

    def _stamp(self, number: int) -> filesystem.Stamp | None:
        return self._stamps.get(number, lambda: self._first_touch(self.shards[number]))

    def check_all(self) -> None:
        """Verifies every shard: `verify="open"`."""
        for number in range(len(self.shards)):
            self.offsets(number)

    def block_facts(self) -> BlockFacts | None:
        """What reads fetch if the shards are in an object store; None if they are read in ranges there."""
        if not all(shard.packed or (self.verify != "off" and shard.raw.hashes) for shard in self.shards):
            return None
        sizes, raw = (
            np.array(each, np.int64)
            for each in zip(*(((s.packed or s.raw).size, s.raw.size) for s in self.shards), strict=True)
        )
        number = np.arange(len(sizes))
        spans = np.column_stack([number, number, np.zeros_like(number), sizes])
        return BlockFacts(sizes, spans, 1, lambda: ShardFetcher(raw, self.limits.spool_bytes // 2), "")

    def _is_kept(self, shard: MDSShard) -> bool:
        remote = bool(filesystem.scheme(shard.raw.path))
        if shard.packed is not None and (remote or not os.path.isfile(shard.raw.path)):
            return True
        return remote and self.verify != "off" and bool(shard.raw.hashes)

    def _first_touch(self, shard: MDSShard) -> filesystem.Stamp | None:
        """Verifies a plain local file. Returns what a file was then: later reads compare it; None where none can."""
        if filesystem.scheme(shard.raw.path) and not filesystem.is_object(shard.raw.path):
            return None
        found = filesystem.stamp(shard.raw.path, self.options)
        if found.size != shard.raw.size:
            raise _damaged(shard.raw, f"{shard.raw.size} bytes", f"{found.size} bytes")
        if self.verify != "off" and shard.raw.hashes and not filesystem.scheme(shard.raw.path):
            states = [(name, text, _hasher(name)) for name, text in shard.raw.hashes]
            with filesystem.open_read(shard.raw.path) as file:
                while block := file.read(_BLOCK):
                    for _, _, state in states:
                        state.update(block)
            _compare(shard.raw, states)
        return found

    def _file_of_shards(self) -> _Kept:
        with self._lock:
            if self._kept is None or self._kept.spool.process != os.getpid():
                self._kept = _Kept()
            return self._kept

    def _keep(self, number: int, kept: _Kept) -> int:
        """Fetches a shard into a temporary file and returns where it begins there; -1 if that file is full."""
        shard, half = self.shards[number], self.limits.spool_bytes // 2
        if shard.raw.size > half:
            raise LimitError(
                f"shards of at most {half} bytes, half of limits.spool_bytes", got=f"{shard.raw.size} bytes",
                where=shard.raw.path, fix="raise limits.spool_bytes, or decompress the dataset on a local disk",
            )  # fmt: skip
        data = self._fetch(shard)
        with kept.lock:
            if kept.spool.size + len(data) <= half:
                at = kept.spool.size
                kept.spool.write(data)
                return at
        with self._lock:
            if self._kept is kept:
                self._kept = _Kept()
        return -1

    def _fetch(self, shard: MDSShard) -> bytes:
        if shard.packed is None:
            return self._download(shard.raw)
        packed = self._download(shard.packed)
        data = unpacked(packed, shard.compression, shard.raw.size, shard.packed.path, self.limits)
        if len(data) != shard.raw.size:
            got = "more" if len(data) > shard.raw.size else str(len(data))
            raise _damaged(shard.packed, f"{shard.raw.size} bytes when decompressed", got)
        self._check(shard.raw, data)
        return data

    def _download(self, file: MDSFile) -> bytes:
        """All bytes of a file, verified; of an object, bytes that a network changed are read again."""
        if filesystem.is_object(file.path):
            found = filesystem.stamp(file.path, self.options)
            if found.size != file.size:
                raise _damaged(file, f"{file.size} bytes", f"{found.size} bytes")
            entire = Read(file.path, 0, file.size, found.tag if is_tag(found.tag) else "")
            return read_many([entire], self.options, check=lambda _, data: self._wrong(file, data))[0]
        with filesystem.open_read(file.path, self.options) as opened:
            data = read_up_to(opened, file.size + 1)
        if len(data) != file.size:
            raise _damaged(file, f"{file.size} bytes", "more" if len(data) > file.size else f"{len(data)} bytes")
        self._check(file, data)
        return data

    def _wrong(self, file: MDSFile, data: bytes | memoryview) -> str:
        try:
            self._check(file, data)
        except StoreError as error:
            return f"bytes without {error.expected}"
        return ""

    def _check(self, file: MDSFile, data: bytes | memoryview) -> None:
        if self.verify != "off":
            states = [(name, text, _hasher(name)) for name, text in file.hashes]
            for _, _, state in states:
                state.update(data)
            _compare(file, states)

    def _table(self, number: int) -> NDArray[np.int64]:
        shard = self.shards[number]
        size, head = shard.raw.size, 4 * (shard.samples + 2)
        if head > size:
            raise _damaged(shard.raw, f"a table of {shard.samples} samples", f"a shard of {size} bytes")
        (data,) = self.ranges(number, [(0, min(size, head + _CONFIG))])
        table = np.frombuffer(data, "<u4", shard.samples + 2).astype(np.int64)
        offsets = table[1:]
        if int(table[0]) != shard.samples:
            raise _damaged(shard.raw, f"{shard.samples} samples, as the index says", f"{int(table[0])} samples")
        if int(offsets[0]) < head or int(offsets[-1]) != size or bool((np.diff(offsets) < 0).any()):
            got = f"offsets from {int(offsets[0])} to {int(offsets[-1])}"
            raise _damaged(shard.raw, f"rising offsets from {head} or later to {size}, the end", got)
        if int(offsets[0]) - head > self.limits.manifest_bytes:
            raise _damaged(shard.raw, "a small configuration", f"{int(offsets[0]) - head} bytes")
        config = data[head : int(offsets[0])]
        if len(config) < int(offsets[0]) - head:
            (config,) = self.ranges(number, [(head, int(offsets[0]))])
        self._check_config(shard, config)
        return offsets

    def _check_config(self, shard: MDSShard, config: bytes) -> None:
        """The shard's own configuration must name the columns of the index: else their bytes would be misread."""
        try:
            own = orjson.loads(config)
            found = [tuple(own[key]) for key in ("column_names", "column_encodings", "column_sizes")]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise _damaged(shard.raw, "the shard's configuration in JSON", f"{config[:60]!r}") from error
        if found != [shard.names, shard.encodings, shard.sizes]:
            raise _damaged(shard.raw, f"columns {', '.join(shard.names)} as the index says", str(found)[:200])


def _hasher(name: str) -> Any:
    if name in _XXHASH:
        return _XXHASH[name]()
    if name in hashlib.algorithms_guaranteed and not name.startswith("shake_"):
        return hashlib.new(name, usedforsecurity=False)
    known = sorted((hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}) | set(_XXHASH))
    raise UsageError(
        f"hashes of a known kind: {', '.join(known)}", got=repr(name)[:80], where="index.json",
        fix='verify="off" reads the shards without comparing their hashes',
    )  # fmt: skip


def _compare(file: MDSFile, states: list[tuple[str, str, Any]]) -> None:
    for name, text, state in states:
        if state.hexdigest() != text:
            raise _damaged(file, f"the {name} hash of the index, {text[:80]}", state.hexdigest())


def _damaged(file: MDSFile, expected: str, got: str) -> DataError:
    return StoreError(expected, got=got, where=file.path, fix="copy the shard again, or write the dataset again")
