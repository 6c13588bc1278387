"""The pages that some reads will need: to fetch ahead, and to keep until they were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.storage import page_fetch
from penstock.storage.cached_object import I64, page_ids
from penstock.storage.coalesce import distinct
from penstock.storage.page_cache import PageCache
from penstock.storage.page_fetch import PagedObject

OPENING = 32  # objects that are opened at once


class PagedFile(Protocol):
    """A remote file that is read through the page cache; `paged` opens it, which may take a request."""

    @property
    def key(self) -> str: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def paged(self) -> PagedObject: ...

    def verify_ahead(self, pages: I64) -> None: ...


class PageNeeds:
    """Pages of some files in one cache."""

    def __init__(
        self, cache: PageCache, wanted: Sequence[tuple[PagedFile, I64]], opened: Mapping[str, int] | None = None
    ) -> None:
        every: dict[str, tuple[PagedFile, list[I64]]] = {}
        for file, pages in wanted:
            every.setdefault(file.key, (file, []))[1].append(pages)
        self.cache = cache
        self.opened = opened or {}  # for each store, what its files occupy while they are open, besides pages
        self.wanted = [
            (file, pages[0] if len(pages) == 1 else distinct(np.concatenate(pages))) for file, pages in every.values()
        ]
        self._known: list[tuple[PagedObject, I64]] | None = None  # the absent ones
        self.size = sum(file.page_bytes * len(pages) for file, pages in self.wanted)

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """One number for each page, as the cache knows it."""
        parts = [page_ids(file.key, pages) for file, pages in self.wanted]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    @classmethod
    def joined(cls, every: Iterable[PageNeeds]) -> list[PageNeeds]:
        """The pages of several reads, one item for each cache."""
        found: dict[PageCache, list[PageNeeds]] = {}
        for needs in every:
            found.setdefault(needs.cache, []).append(needs)
        return [
            same[0] if len(same) == 1 else cls(
                cache, [each for needs in same for each in needs.wanted],
                {name: size for needs in same for name, size in needs.opened.items()},
            )
            for cache, same in found.items()
        ]  # fmt: skip

    def find_absent(self) -> int:
        """Looks which pages are absent, opening their files; returns the bytes of these."""
        self._known = self._absent()
        return sum(paged.cached.entry_bytes(pages) for paged, pages in self._known)

    def fetch(self, claimed: Callable[[], None] = lambda: None) -> int:
        """Fetches those pages that are absent and that nobody else fetches, as far as there is room.

        `claimed` is called as soon as other threads leave them to this call.
        """
        absent = self._absent() if self._known is None else self._known
        self._known = None
        count = page_fetch.fetch(self.cache, absent, keep=0.0, ahead=True, claimed=claimed)
        for file, pages in self.wanted:
            file.verify_ahead(pages)
        return count

    def has_room(self) -> bool:
        """Whether the absent pages fit into the cache beside what the next steps need."""
        absent = self._absent() if self._known is None else self._known
        return self.cache.has_room(sum(paged.cached.entry_bytes(pages) for paged, pages in absent))

    def _absent(self) -> list[tuple[PagedObject, I64]]:
        open_files([file for file, _ in self.wanted])
        absent = []
        for file, pages in self.wanted:
            paged = file.paged
            gone = pages[(paged.cached.generations[pages] & 1) == 0]
            gone = gone[~self.cache.in_work(paged.cached)[gone]]
            if len(gone):
                absent.append((paged, gone))
        return absent


def open_files(files: Sequence[PagedFile]) -> None:
    """Opens those that are not open, several at once: each may need a request."""
    closed = [file for file in files if not file.is_open]
    if len(closed) == 1:
        _ = closed[0].paged
    elif closed:
        with ThreadPoolExecutor(min(OPENING, len(closed)), "penstock-open") as pool:
            list(pool.map(lambda file: file.paged, closed))
