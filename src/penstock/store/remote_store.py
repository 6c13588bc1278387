"""A token store on an object store: the manifest is read when it is opened, pages when they are needed.

Everything is read as from a local store, through maps of the files in the page cache (see `storage.page_cache`). One
thing is added: other processes may evict pages while this one copies from them. Each public method therefore runs
inside `stable`, which notes when the pages were found present, compares afterwards whether anything was evicted since,
and runs the method again if so, then with the generations of just the pages that it uses.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged, concat
from penstock.core.errors import FileMissing, StoreError, UsageError
from penstock.order.ragged_index import ranges
from penstock.storage import cache_folder, filesystem, objects, page_fetch, retry
from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import opened_bytes, page_ids
from penstock.storage.page_cache import CacheTooSmall, PageCache, open_cache
from penstock.storage.page_needs import PageNeeds, open_files
from penstock.store import gather, layout
from penstock.store import manifest as manifests
from penstock.store.arrays import ArrayTable, Part, distinct, page_range
from penstock.store.manifest import Manifest
from penstock.store.present_pages import Moment, PresentPages
from penstock.store.reader import TokenStore, expect_id, one_shard
from penstock.store.remote_shard import PATIENT_TRIES, RemoteShard, busy, shard_info
from penstock.store.shard import Shard
from penstock.store.writer import ShardInfo

I64 = NDArray[np.int64]
T = TypeVar("T")

_MOST_TRIES = 1000
_SAMPLE = 1000  # shards whose sizes are looked at
_PAGE_FIELD = 32  # bits of a page in the number of a page of the store


class _Reads(threading.local):
    """What a thread reads now: pages with their generations, and when others were found present."""

    noted: list[tuple[RemoteShard, I64, NDArray[np.uint32]]] | None = None
    moment: Moment | None = None
    careful = False  # something was evicted during the last try


class RemoteStore(TokenStore):
    """A token store by URL, or one shard of it."""

    def __init__(
        self,
        url: str,
        *,
        verify: str = "first-touch",
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.url = url.removesuffix("/" + manifests.NAME).rstrip("/")
        self.storage_options = None if storage_options is None else dict(storage_options)
        self._cache_dir, self._cache_bytes = cache_dir, cache_bytes
        self._page_cache: PageCache | None = None
        self._reads = _Reads()
        cache_folder.page_limit(cache_bytes)  # raises if it is not a number
        super().__init__(self.url, verify=verify)

    @cached_property
    def _present(self) -> PresentPages:
        return PresentPages(len(self.manifest.shards))

    @property
    def cache(self) -> PageCache:
        """The page cache, opened at the first read: describing a store needs none."""
        if self._page_cache is None:
            folder = cache_folder.page_folder(self._cache_dir)
            found = self._page_cache = open_cache(folder, cache_folder.page_limit(self._cache_bytes))
            found.opened = max(found.opened, self._opened_bytes)
        return self._page_cache

    def _find(self, path: str | os.PathLike[str]) -> Manifest:
        self.where = self._folder_url = self.url
        if self.url.endswith(".tokens"):
            self._folder_url = self.url.rpartition("/")[0]
            return one_shard(retry.right_bytes(partial(shard_info, self.url, self.storage_options)))
        return retry.right_bytes(self._read_manifest)

    def _read_manifest(self) -> Manifest:
        name = objects.join(self.url, manifests.NAME)
        try:
            data = objects.read_all(name, self.storage_options, limit=manifests.MAX_BYTES)
        except FileMissing as error:
            raise StoreError(
                f"a token store: a folder with {manifests.NAME}", got=error.got, where=name,
                fix="pass the folder that `penstock prepare` wrote; a run that has not finished has no manifest",
            ) from error  # fmt: skip
        return manifests.decode_manifest(data, name, self._read_ranges)

    def _read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return filesystem.read_ranges(objects.join(self.url, name), ranges, self.storage_options)

    def _new_shard(self, number: int) -> Shard:
        return self._make(self.manifest.shards[number], self._present, number)

    def shard_of(self, entry: ShardInfo) -> RemoteShard:
        return self._make(entry)

    def _make(self, entry: ShardInfo, present: PresentPages | None = None, number: int = 0) -> RemoteShard:
        return RemoteShard(
            objects.join(self._folder_url, entry.name), entry, cache=self.cache, options=self.storage_options,
            verify=self.verify != "off", on_read=self._read_soon, present=present, number=number,
        )  # fmt: skip

    def reading_all(self, shard: Shard, read: Callable[[Shard], None]) -> None:
        def run() -> None:
            shard.check_pages(np.arange(shard.pages))
            read(shard)

        self.stable(run)

    def files(self) -> list[str] | None:
        if self._folder_url != self.url:
            return None
        found = objects.list_files(self.url, self.storage_options)
        return [each.url.removeprefix(self.url).lstrip("/") for each in found]

    def _read_soon(self, shard: RemoteShard, pages: I64, generations: NDArray[np.uint32]) -> None:
        if self._reads.noted is not None:
            self._reads.noted.append((shard, pages, generations))

    def stable(self, read: Callable[[], T]) -> T:
        """Runs `read` until no page that it used was evicted meanwhile; what it returns must be copies."""
        if self._reads.noted is not None:
            return read()  # the outermost call compares
        with self.cache.alone.read():
            for tries in range(_MOST_TRIES):
                if tries == PATIENT_TRIES:
                    self.cache.alone.enter()
                noted = self._reads.noted = []
                self._reads.moment, self._reads.careful = None, tries > 0
                try:
                    found = read()
                finally:
                    self._reads.noted = None
                moment = self._reads.moment
                if (moment is None or moment == self._present.moment(self.cache)) and all(
                    shard.unchanged(pages, generations) for shard, pages, generations in noted
                ):
                    for shard, pages, _ in noted:
                        shard.paged.cached.was_read(pages)
                    return found
        raise busy(self.url)

    def in_parts(self, count: int, read: Callable[[int, int], T]) -> list[T]:
        """Runs `read(start, stop)`, stable, for rows [0, count): in one call, or in several if the cache is small."""
        found: list[T] = []
        left = [(0, count)]
        while left:
            start, stop = left.pop()
            try:
                found.append(self.stable(partial(read, start, stop)))
            except CacheTooSmall:
                if stop - start < 2 or self._reads.noted is not None:  # the outermost call divides
                    raise
                middle = (start + stop) // 2
                left += [(middle, stop), (start, middle)]
        return found

    @property
    def sound(self) -> bool:
        return False  # a verified page may be evicted

    def ready(self, part: Part, starts: I64, lengths: I64 | int, /) -> ArrayTable:
        """Opens these shards, and makes the pages of these ranges of tokens present and verified."""
        if self._closed:
            raise UsageError("an open store", got="one that was closed", where=self.where, fix="open it again")
        if not isinstance(part, int) and not self._open.has(part):
            open_files([self._remote(number) for number in distinct(part).tolist()])
        table = self._open.need(part)
        table.check(part)
        left = self._not_ready(part, starts, lengths)
        if not left.any():
            return table
        if isinstance(part, int):
            self._remote(part).check(self._shards[part].header.sections[0], starts, lengths)
            return table
        part, starts = part[left], starts[left]
        lengths = lengths if isinstance(lengths, int) else lengths[left]
        numbers = distinct(part)
        opened = [self._remote(number) for number in numbers.tolist()]
        wanted: list[tuple[RemoteShard, I64]] = []
        for number, shard in zip(numbers.tolist(), opened, strict=True):
            here = part == number
            count = lengths if isinstance(lengths, int) else lengths[here]
            wanted.append((shard, shard.pages_of(shard.header.sections[0], starts[here], count)))
        self.cache.refuse_beyond(sum(shard.paged.cached.entry_bytes(pages) for shard, pages in wanted))
        self._fetch(wanted)
        for shard, pages in wanted:
            if len(pages):
                shard.need(pages)
        return table

    def _not_ready(self, part: Part, starts: I64, lengths: I64 | int) -> NDArray[np.bool_]:
        """Which of these ranges have pages that are not known to be present and verified; notes when that was."""
        present, reads = self._present, self._reads
        if reads.noted is None or reads.careful:
            return np.ones(len(starts), bool)
        moment = present.moment(self.cache)
        if reads.moment is not None and reads.moment != moment:
            return np.ones(len(starts), bool)
        first, last = page_range(layout.ALIGN, starts, lengths, self._dtype.itemsize, self._page_bits)
        long = last - first > 1  # a page between the first and the last is not looked up
        known: NDArray[np.bool_] = np.full(len(starts), present.as_of[part] == moment.evictions)
        first += present.first[part]
        last += present.first[part]
        flags = present.flags  # after `as_of`
        known &= flags[first]
        known &= flags[last]
        known &= ~long
        found = first if known.all() else first[known]
        if len(found):
            reads.moment = moment
            present.used[found] = True
            PAGES.add("pages_found", len(distinct(found)))
            present.tell()
        return ~known

    def _fetch(self, wanted: Sequence[tuple[RemoteShard, I64]]) -> None:
        """Fetches the absent ones of these pages, of many shards at once."""
        absent = [(shard.paged, gone) for shard, pages in wanted if len(gone := shard.count(pages))]
        if absent:
            for shard, pages in wanted:
                self.cache.alone.need(page_ids(shard.key, pages), shard.page_bytes)
            began = time.perf_counter()
            page_fetch.fetch(self.cache, absent)
            PAGES.add("wait_seconds", time.perf_counter() - began)

    def _spans(self, indices: I64) -> tuple[I64, I64]:
        self._fetch_rows("offsets", indices, 2)
        return super()._spans(indices)

    def _read_column(self, spec: layout.ColumnSpec, indices: I64) -> Ragged | NDArray[Any]:
        name = f"column:{spec.name}"
        self._fetch_rows(*((f"{name}:offsets", indices, 2) if spec.ragged else (name, indices, 1)))
        return super()._read_column(spec, indices)

    def _fetch_rows(self, section: str, indices: I64, count: int) -> None:
        """Fetches what a section has for these documents, in all shards at once."""
        parts = list(gather.by_part(self.manifest.shards.of_document(indices)))
        shards = [self._remote(part) for part, _ in parts]
        open_files(shards)
        wanted = []
        for shard, (part, places) in zip(shards, parts, strict=True):
            known = shard.header.section(section)
            local = indices[places] - self._documents[part]
            width = max(1, known.items // max(1, shard.header.documents)) if count == 1 else 1
            wanted.append((shard, shard.pages_of(known, local * width, count if count > 1 else width)))
        self._fetch(wanted)

    def needs(self, starts: I64, lengths: I64) -> PageNeeds:
        """The pages of these ranges of tokens, to be fetched ahead. Opens nothing."""
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        found: list[I64] = []
        while len(starts):
            part = self.part_of(starts)
            local = starts - self._bounds[part]
            here = np.minimum(lengths, self._bounds[part + 1] - starts)
            first, last = page_range(layout.ALIGN, local, here, self._dtype.itemsize, self._page_bits)
            counts = last - first + 1
            found.append((np.repeat(part, counts) << _PAGE_FIELD) | ranges(first, counts))
            more = lengths > here  # the range continues in the next shard
            starts, lengths = (starts + here)[more], (lengths - here)[more]
        return self._needs(found)

    def document_needs(self, documents: I64, columns: Sequence[str]) -> PageNeeds:
        """The pages of what is known of these documents besides tokens; opens shards, and reads where rows begin."""
        known = [each for each in self.manifest.columns if each.name in columns and not each.name.startswith("_")]
        parts = list(gather.by_part(self.manifest.shards.of_document(documents)))
        open_files([self._remote(part) for part, _ in parts])
        found: list[I64] = []
        for part, places in parts:
            shard, local = self._remote(part), documents[places] - self._documents[part]
            section = shard.header.section
            found.append(shard.pages_of(section("offsets"), local, 2) | part << _PAGE_FIELD)
            for each in known:
                values = section(f"column:{each.name}")
                if each.ragged:
                    offsets = f"column:{each.name}:offsets"
                    found.append(shard.pages_of(section(offsets), local, 2) | part << _PAGE_FIELD)
                    begins, ends = self.stable(partial(self._pairs, part, offsets, local, values.items))
                    found.append(shard.pages_of(values, begins, ends - begins) | part << _PAGE_FIELD)
                else:
                    width = math.prod(each.shape)
                    found.append(shard.pages_of(values, local * width, width) | part << _PAGE_FIELD)
        return self._needs(found)

    def _needs(self, found: Sequence[I64]) -> PageNeeds:
        every = distinct(np.concatenate([np.empty(0, np.int64), *found]))
        shard, pages = every >> _PAGE_FIELD, every & ((1 << _PAGE_FIELD) - 1)
        edges = [*np.flatnonzero(np.diff(shard, prepend=-1)).tolist(), len(shard)]
        wanted = [(self._remote(int(shard[a])), pages[a:b]) for a, b in pairwise(edges)]
        return PageNeeds(self.cache, wanted, {self.url: self._opened_bytes})

    @cached_property
    def _opened_bytes(self) -> int:
        """What the shards occupy in the cache when all are open, besides pages."""
        shards = self.manifest.shards
        known = [shards[number] for number in range(min(len(shards), _SAMPLE))]
        return sum(opened_bytes(each.bytes, each.page_bytes) for each in known) * len(shards) // max(1, len(known))

    def _remote(self, number: int) -> RemoteShard:
        shard = self._shards[number]
        assert isinstance(shard, RemoteShard)
        return shard

    def read(self, indices: I64) -> Columns:
        read, indices = super().read, np.asarray(indices)
        return concat(self.in_parts(len(indices), lambda a, b: read(indices[a:b])))

    def column(self, name: str, indices: I64) -> Ragged | NDArray[Any]:
        column, indices = super().column, np.asarray(indices)
        return concat(self.in_parts(len(indices), lambda a, b: {name: column(name, indices[a:b])}))[name]

    def starts(self, indices: I64) -> I64:
        starts, indices = super().starts, np.asarray(indices)
        return _joined(self.in_parts(len(indices), lambda a, b: starts(indices[a:b])))

    def lengths(self, indices: I64) -> I64:
        lengths, indices = super().lengths, np.asarray(indices)
        return _joined(self.in_parts(len(indices), lambda a, b: lengths(indices[a:b])))

    def documents_at(self, positions: I64) -> I64:
        documents_at, positions = super().documents_at, np.asarray(positions)
        return _joined(self.in_parts(len(positions), lambda a, b: documents_at(positions[a:b])))

    def gather(self, starts: I64, length: int) -> NDArray[Any]:
        most = self._rows_at_once(length)
        if len(starts) <= most:
            return self.stable(partial(super().gather, starts, length))
        parts = (starts[at : at + most] for at in range(0, len(starts), most))
        return np.concatenate([self.stable(partial(super(RemoteStore, self).gather, part, length)) for part in parts])

    def _rows_at_once(self, length: int) -> int:
        """How many rows are read at once: a quarter of the cache holds them, wherever they are."""
        each = (length * self._dtype.itemsize >> self._page_bits) + 2
        return max(1, self.cache.room // 4 // (each << self._page_bits))

    def reader(self, starts: I64, length: int) -> Callable[[int, int], NDArray[Any]]:
        return lambda a, b: self.gather(starts[a:b], length)

    def locate(self, index: int) -> dict[str, Any]:
        return self.stable(partial(super().locate, index))

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "verify": self.verify, "storage_options": self.storage_options, "cache_dir": self._cache_dir,
            "cache_bytes": self._cache_bytes,
        }  # fmt: skip
        return _reopen, (self.url, options, self.manifest.id)


def _joined(parts: list[I64]) -> I64:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _reopen(url: str, options: dict[str, Any], ident: str) -> RemoteStore:
    return expect_id(RemoteStore(url, **options), ident)
