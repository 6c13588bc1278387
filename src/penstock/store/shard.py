"""One open shard: its header, its sections as arrays over a memory map, and which pages are verified.

Opening reads footer and tail. A page is hashed at its first use; once all are, the check is one flag. The map can be
dropped and opened again (a store of many shards keeps few open): pages stay verified as long as the file is the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import StoreError
from penstock.core.mapped import MappedFile, map_file
from penstock.store import layout
from penstock.store.arrays import page_range
from penstock.store.layout import Header, Section
from penstock.store.page_marks import PageMarks
from penstock.store.writer import ShardInfo

_MAX_ADVISED = 4096  # pages per call for which the system is asked to read ahead


class Shard:
    """A shard file, opened at its first use. `expected` is its entry in the manifest."""

    def __init__(
        self,
        path: Path | str,
        expected: ShardInfo | None = None,
        *,
        verify: bool = True,
        marks: PageMarks | None = None,
        number: int = 0,
        on_verified: Callable[[], None] | None = None,
    ) -> None:
        self.path, self.name = path, os.path.basename(path)
        self._expected = expected
        self._check = verify
        self._on_verified = on_verified
        self._lock = threading.Lock()
        self._map: MappedFile | None = None
        self._file_id: tuple[int, ...] = ()  # device, inode, size and modification time
        self._header: Header | None = None
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._marks = PageMarks(1) if marks is None else marks  # a store has one for all its shards
        self._number = number  # of this shard among them
        self.root = ""
        self.verified = self.tokens_verified = not self._check  # all pages; all pages of tokens

    @property
    def header(self) -> Header:
        if self._header is None:
            self.open()
        if self._header is None:
            raise StoreError("a shard with a header", where=str(self.path))
        return self._header

    def open(self) -> MappedFile:
        """Returns the memory map of the file, opening it if necessary."""
        found = self._map
        if found is not None:
            return found
        with self._lock:
            found = self._map
            if found is None:
                found = self._map = self._open()
        if self._check and not self._page_verified()[0]:  # the page of the file's first block, which nothing else reads
            try:
                self.check_pages(np.zeros(1, np.int64))
            except StoreError:
                self._map = None  # so that the next use raises again
                raise
        return found

    def drop(self) -> None:
        """Drops the map; arrays that are still in use keep it."""
        self._map = None

    def _open(self) -> MappedFile:
        where = str(self.path)
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below, before the map is handed out
        except OSError as error:
            raise StoreError(
                "every shard the manifest lists",
                got=f"{type(error).__name__}: {error.strerror}",
                where=where,
                fix="copy the missing shard next to the manifest, or write the store again",
            ) from error
        with file:
            stat = os.fstat(file.fileno())
            want = self._expected
            if want is not None and stat.st_size != want.bytes:
                raise layout.damaged(
                    f"{want.bytes} bytes, as the manifest says",
                    f"{stat.st_size} bytes",
                    where,
                )
            file_id = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._header is None or file_id != self._file_id:
                self._read_header(file, stat.st_size)
                self._file_id = file_id
                self._marks.add(self._number, len(self._hashes), hash(file_id))
                self.verified = self.tokens_verified = not self._check
                self._count_verified()
            return map_file(where, file.fileno())

    def _read_header(self, file: IO[bytes], size: int) -> None:
        header, hashes, root = layout.read_tail(file, size, str(self.path))
        self._match(header, root.hex(), str(self.path))
        self._header, self._hashes, self.root = header, hashes, root.hex()

    def _match(self, header: Header, root: str, where: str) -> None:
        want = self._expected
        if want is None:
            return
        if root != want.root:
            raise StoreError(
                f"the shard with root hash {want.root}, as the manifest says",
                got=f"an intact shard with root hash {root}: another one under this name",
                where=where,
                fix="put back the shard this manifest was written for; shards may not be swapped or renamed",
            )
        said = replace(_info(self.name, want.bytes, root, header), name=want.name)
        if said != want:
            raise layout.damaged("the counts and columns of the manifest", str(said), where)

    def section(self, name: str) -> NDArray[Any]:
        """Returns a section as an array over the map, without reading or verifying it."""
        found = self.open()
        part = self.header.section(name)
        return np.frombuffer(found.array, part.dtype, part.items, part.offset)

    def check_all(self, name: str) -> None:
        """Verifies every page of a section."""
        part = self.header.section(name)
        self.check(part, np.zeros(1, np.int64), part.items)

    def check(
        self,
        section: Section,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64] | int,
    ) -> None:
        """Verifies the pages of these ranges of items; verified pages cost a lookup."""
        if self.verified:
            return
        size = np.dtype(section.dtype).itemsize
        bits = self.header.page_bytes.bit_length() - 1
        if not isinstance(lengths, int):
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]  # an empty range has no page
        longest = (lengths if isinstance(lengths, int) else int(lengths.max(initial=0))) * size
        if longest == 0 or len(starts) == 0:
            return
        first, last = page_range(section.offset, starts, lengths, size, bits)
        verified = self._page_verified()
        if longest <= self.header.page_bytes:  # then a range has at most two pages, its first and its last
            if bool(verified[first].all()) and bool(verified[last].all()):
                return
            pages = np.union1d(first, last)
        else:
            n = len(verified) + 1
            pages = np.flatnonzero(np.cumsum(np.bincount(first, minlength=n) - np.bincount(last + 1, minlength=n)))
        self.check_pages(pages[~verified[pages]])

    def check_pages(self, pages: NDArray[np.int64]) -> None:
        """Hashes these pages; raises at the first whose checksum differs."""
        opened = self.open()
        opened.check()
        view = memoryview(opened.array.data)
        size, stop = self.header.page_bytes, self.body_bytes
        if 1 < len(pages) <= _MAX_ADVISED:
            for page in pages.tolist():  # the storage then reads them in parallel
                opened.will_need(page * size, min(size, stop - page * size))
        for page in pages.tolist():
            found = xxhash.xxh3_64_intdigest(view[page * size : min((page + 1) * size, stop)])
            if found != int(self._hashes[page]):
                raise layout.damaged(
                    f"page {page} with checksum {int(self._hashes[page]):016x}",
                    f"{found:016x}: bytes {page * size} to {min((page + 1) * size, stop)} have changed",
                    f"{self.path}, page {page} of {len(self._hashes)} ({self._holds(page)})",
                )
            self._marks.set(self._number, page)
        verified = self.tokens_verified
        self._count_verified()
        if self.tokens_verified and not verified and self._on_verified is not None:
            self._on_verified()

    def _count_verified(self) -> None:
        marked, size, tokens = self._page_verified(), self.header.page_bytes, self.header.sections[0]
        self.verified = self.verified or bool(marked.all())
        first, end = tokens.offset // size, -(-(tokens.offset + tokens.bytes) // size)
        self.tokens_verified = self.verified or bool(marked[first:end].all())

    def _page_verified(self) -> NDArray[np.bool_]:
        return self._marks.of(self._number)

    def fetch_ahead(self, pages: NDArray[np.int64]) -> None:
        """Fetches pages that will be checked, where that takes requests."""

    @property
    def pages(self) -> int:
        """Number of pages of the body."""
        return -(-self.body_bytes // self.header.page_bytes)

    @property
    def body_bytes(self) -> int:
        """Number of bytes covered by page hashes."""
        last = self.header.sections[-1]
        return layout.align(last.offset + last.bytes)

    def _holds(self, page: int) -> str:
        size = self.header.page_bytes
        a, b = page * size, (page + 1) * size
        names = [s.name for s in self.header.sections if s.offset < b and a < max(s.offset + s.bytes, s.offset + 1)]
        return ", ".join(names) or "padding"

    def info(self) -> ShardInfo:
        """Returns the manifest entry of this shard, from its own header."""
        header = self.header  # opens the file, which sets size and root
        return _info(self.name, self._file_id[2], self.root, header)


def _info(name: str, size: int, root: str, header: Header) -> ShardInfo:
    kind = header.section("tokens").dtype
    return ShardInfo(
        name, size, header.documents, header.tokens, root, kind, header.vocab_size, header.columns, header.page_bytes
    )
