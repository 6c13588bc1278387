"""A shard on an object store: its pages are fetched into the page cache and read through a map of the cached file.

The cached file has the size and the bytes of the shard, except that absent pages are holes. `need` makes pages present
and verified, and returns their generations; whoever copies from the map compares these again afterwards, because
another process may have evicted a page meanwhile.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import StorageError, StoreError
from penstock.core.mapped import MappedFile, map_file
from penstock.core.os_errors import storage_errors
from penstock.storage import filesystem, page_fetch, retry
from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import CachedObject, page_ids
from penstock.storage.filesystem import Options
from penstock.storage.page_cache import PageCache
from penstock.storage.page_fetch import PagedObject
from penstock.store import layout
from penstock.store.arrays import distinct, page_range
from penstock.store.layout import Section
from penstock.store.present_pages import PresentPages
from penstock.store.shard import Shard
from penstock.store.writer import ShardInfo

I64 = NDArray[np.int64]

_NEVER = 0xFFFF_FFFF  # odd, and no generation that a page reaches
_MOST_TRIES = 10_000
PATIENT_TRIES = 4  # after them a reader reads alone
_HEADER_GUESS = 64 << 10


class RemoteShard(Shard):
    """A shard by URL. `on_read(shard, pages, generations)` is called for what is about to be copied."""

    def __init__(
        self,
        url: str,
        expected: ShardInfo,
        *,
        cache: PageCache,
        options: Options = None,
        verify: bool = True,
        on_read: Callable[[RemoteShard, I64, NDArray[np.uint32]], None] | None = None,
        present: PresentPages | None = None,
        number: int = 0,
    ) -> None:
        super().__init__(url, expected, verify=verify)
        self._present, self._place = PresentPages(1) if present is None else present, number
        self.verified = self.tokens_verified = False  # a verified page may be evicted
        self._entry, self._options, self.cache, self._on_read = expected, options, cache, on_read
        self._paged: PagedObject | None = None
        self._checked: NDArray[np.uint32] = np.empty(0, np.uint32)  # the generation at which a page was verified here
        self._closing: Callable[[], object] = lambda: None

    def open(self) -> MappedFile:
        found = self._map
        if found is None:
            with self._lock:
                found = self._map
                if found is None:
                    found = self._open()
                    self._map = found
        return found

    @property
    def is_open(self) -> bool:
        return self._map is not None

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return self._entry.root

    @property
    def page_bytes(self) -> int:
        return self._entry.page_bytes

    def drop(self) -> None:
        """Drops the map; the cached object may then be deleted when room is needed."""
        with self._lock:
            self._map = None
            self._present.drop(self._place)
            self._closing()

    def _open(self) -> MappedFile:
        entry = self._entry
        cached = self.cache.open(entry.root, entry.bytes, entry.page_bytes)
        self._closing = weakref.finalize(self, self.cache.close_object, entry.root)
        try:
            self._find_tail(cached)
            if len(self._checked) != cached.shape.entries:
                self._checked = np.full(cached.shape.entries, _NEVER, np.uint32)
            else:
                self._checked[:] = _NEVER  # the files may have been made again
            self._paged = PagedObject(str(self.path), self._options, cached, self._hashes, self._checked)
            self._present.add(self._place, self.cache, cached, self._checked)
            with storage_errors(cached.data_path), open(cached.data_path, "rb") as file:
                return map_file(cached.data_path, file.fileno())
        except BaseException:
            self._closing()
            raise

    @property
    def paged(self) -> PagedObject:
        """The shard's object and its place in the cache."""
        self.open()
        return cast("PagedObject", self._paged)

    def _find_tail(self, cached: CachedObject) -> None:
        """Reads header and page hashes from the cache, or fetches them first."""
        for _ in range(_MOST_TRIES):
            generation = int(cached.generations[cached.tail])
            if not generation & 1:
                self._fetch_tail(cached)
                continue
            try:
                with storage_errors(cached.data_path), open(cached.data_path, "rb") as file:
                    self._read_header(file, self._entry.bytes)
                return
            except StoreError:  # of the cached copy
                self.cache.discard(cached, cached.tail, generation)
        raise busy(str(self.path))

    def _fetch_tail(self, cached: CachedObject) -> None:
        mine = self.cache.claim(cached, np.array([cached.tail]))
        if not len(mine):
            self.cache.wait()
            return
        try:
            if cached.generations[cached.tail] & 1:
                return
            content = retry.right_bytes(self._tail_bytes)
            cached.tail_bytes = len(content)
            size = cached.entry_bytes(mine)
            self.cache.make_room(size, opening=True)
            try:
                cached.write([(cached.tail, content)])
                self.cache.publish(cached, mine)
                size = 0
            finally:
                if size:
                    self.cache.give_up(cached, mine, size)
        finally:
            self.cache.release(cached, mine)

    def _tail_bytes(self) -> bytes:
        """Fetches page hashes, header and footer, and checks them."""
        entry = self._entry
        file = RemoteTail(str(self.path), entry.bytes, entry.page_bytes, self._options)
        self._read_header(cast("IO[bytes]", file), entry.bytes)
        return file.last(entry.bytes - self.body_bytes)

    def check(self, section: Section, starts: I64, lengths: I64 | int) -> None:
        """Makes the pages of these ranges of items present and verified."""
        pages = self.pages_of(section, starts, lengths)
        if len(pages):
            self.count(pages)
            self.need(pages)

    def count(self, pages: I64) -> I64:
        """Counts which of these pages a reader found in the cache; returns those that are absent."""
        absent: I64 = pages[(self.paged.cached.generations[pages] & 1) == 0]
        PAGES.add("pages_found", len(pages) - len(absent))
        PAGES.add("pages_missed", len(absent))
        return absent

    def pages_of(self, section: Section, starts: I64, lengths: I64 | int) -> I64:
        """The distinct pages of these ranges of items, in increasing order."""
        if not isinstance(lengths, int):
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        if not len(starts) or (isinstance(lengths, int) and lengths == 0):
            return np.empty(0, np.int64)
        bits = self.header.page_bytes.bit_length() - 1
        first, last = page_range(section.offset, starts, lengths, np.dtype(section.dtype).itemsize, bits)
        if int((last - first).max()) <= 1:
            return distinct(np.concatenate([first, last]))
        n = int(last.max()) + 2
        return np.flatnonzero(np.cumsum(np.bincount(first, minlength=n) - np.bincount(last + 1, minlength=n)))

    def need(self, pages: I64) -> None:
        """Fetches and verifies pages until all are present; they are then recorded as about to be read."""
        cached = self.paged.cached
        self.cache.refuse_beyond(cached.entry_bytes(pages))
        alone = self.cache.alone
        with alone.read():
            for tries in range(_MOST_TRIES):
                generations = cached.generations[pages]
                ready = generations == self._checked[pages]
                if ready.all():
                    cached.keep(pages)
                    self._present.verified(self._place, pages)
                    if self._on_read is not None:
                        self._on_read(self, pages, generations)
                    return
                if tries == PATIENT_TRIES:
                    alone.enter()
                if tries == 0:
                    alone.need(page_ids(self.key, pages), self.page_bytes)
                there = (generations & 1) == 1
                if not there.all():
                    began = time.perf_counter()
                    fetched = self.cache.wait_for(cached, pages) or page_fetch.fetch(
                        self.cache, [(self.paged, pages[~there])]
                    )
                    if not fetched:
                        self.cache.wait()
                    PAGES.add("wait_seconds", time.perf_counter() - began)
                self._verify(pages[there & ~ready])
        raise busy(str(self.path))

    def _verify(self, pages: I64) -> None:
        """Hashes cached pages; one with another hash is thrown away, to be fetched again."""
        paged, view = self.paged, memoryview(self.open().array.data)
        cached, size = paged.cached, paged.cached.shape.page_bytes
        before, body, digest = cached.generations[pages], cached.span(cached.tail)[0], xxhash.xxh3_64_intdigest
        right = (before & 1) == 1
        if self._check:
            wrong = [
                n
                for n, (page, expected) in enumerate(zip(pages.tolist(), self._hashes[pages].tolist(), strict=True))
                if digest(view[page * size : min((page + 1) * size, body)]) != expected
            ]
            for n in wrong:
                if right[n]:
                    self.cache.discard(cached, int(pages[n]), int(before[n]))
            right[wrong] = False
        right &= cached.generations[pages] == before  # else it was evicted meanwhile
        self._checked[pages[right]] = before[right]

    def verify_ahead(self, pages: I64) -> None:
        """Verifies those of these pages that are present, for a reader that comes later."""
        generations = self.paged.cached.generations[pages]
        self._verify(pages[((generations & 1) == 1) & (generations != self._checked[pages])])
        self._present.verified(self._place, pages)

    def check_pages(self, pages: I64) -> None:
        """Fetches and verifies these pages; for reading all of a shard, a part at a time."""
        most = max(1, self.cache.room // 4 // self.header.page_bytes)
        for at in range(0, len(pages), most):
            self.need(pages[at : at + most])

    def fetch_ahead(self, pages: I64) -> None:
        with suppress(StoreError):  # checking the pages one by one finds it again
            page_fetch.fetch(self.cache, [(self.paged, pages)])

    def unchanged(self, pages: I64, generations: NDArray[np.uint32]) -> bool:
        """Whether no page was evicted since `need` returned these generations."""
        return bool((self.paged.cached.generations[pages] == generations).all())


class RemoteTail:
    """The end of a remote shard as a file: one request for hashes, header and footer, if they have the usual size."""

    def __init__(self, url: str, size: int, page_bytes: int, options: Options) -> None:
        self._url, self._size, self._options = url, size, options
        guess = layout.FOOTER_BYTES + 8 * (size // page_bytes + 1) + _HEADER_GUESS
        self._first = max(0, size - guess)
        self._content = self._get(self._first, size)
        self._at = 0

    def _get(self, start: int, stop: int) -> bytes:
        (found,) = filesystem.read_ranges(self._url, [(start, stop)], self._options)
        return found

    def seek(self, position: int) -> int:
        self._at = position
        return position

    def read(self, size: int) -> bytes:
        if self._at < self._first:
            self._content = self._get(self._at, self._first) + self._content
            self._first = self._at
        start = self._at - self._first
        return self._content[start : start + size]

    def last(self, size: int) -> bytes:
        """The last bytes of the shard."""
        self.seek(self._size - size)
        return self.read(size)


def shard_info(url: str, options: Options) -> ShardInfo:
    """The manifest entry of a shard that is read without a manifest, from its own header."""
    size = filesystem.stamp(url, options).size
    file = cast("IO[bytes]", RemoteTail(url, size, 1 << 16, options))
    shard = Shard(url)
    shard._read_header(file, size)
    shard._file_id = (0, 0, size, 0)
    return shard.info()


def busy(where: str) -> StorageError:
    """The error of a reader whose pages are evicted each time."""
    return StorageError(
        "pages that stay in the cache while they are read", got="other processes evict them each time", where=where,
        fix="raise cache_bytes=: it must hold what all processes of this machine read at once",
    )  # fmt: skip
