"""Fetches pages of remote objects into the page cache: few requests, many at once, every page verified first.

Pages that another thread or process is fetching are left to it: the caller looks again. Pages that lie between two
wanted ones in the same request are claimed with them, so that nobody else fetches them meanwhile, and are kept if there
is room: nothing is evicted for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import PenstockError, StoreError
from penstock.storage import filesystem
from penstock.storage.cache_metrics import PAGES
from penstock.storage.cached_object import I64, KEEP_SECONDS, CachedObject
from penstock.storage.coalesce import coalesce, distinct, parted
from penstock.storage.filesystem import Options
from penstock.storage.object_requests import MOST_WRONG, Check, Read, Take, given_up, read_many
from penstock.storage.page_cache import PageCache, runs
from penstock.storage.schemes import OBJECTS
from penstock.storage.sizes import FULL_GAP, GAP, LARGEST


class PagedObject(NamedTuple):
    """A remote object with a hash for each of its pages, and its place in the cache."""

    url: str
    options: Options
    cached: CachedObject
    hashes: NDArray[np.uint64]
    checked: NDArray[np.uint32]  # the generation at which this process verified each page


class _Request(NamedTuple):
    """Bytes [start, stop) of an object, and the claimed pages among them: wanted ones, and ones that lie between."""

    number: int
    found: PagedObject
    start: int
    stop: int
    pages: I64
    between: I64

    def content(self, first: int, last: int, answer: memoryview) -> memoryview:
        """The bytes of pages `first` to `last`."""
        return answer[self.found.cached.span(first)[0] - self.start : self.found.cached.span(last)[1] - self.start]

    def wrong(self, pages: I64, answer: memoryview) -> list[int]:
        """Those of these pages whose bytes are not what their hash says."""
        found, size = self.found, self.found.cached.shape.page_bytes
        body = found.cached.shape.size - found.cached.tail_bytes
        digest, start = xxhash.xxh3_64_intdigest, self.start
        return [
            page
            for page, expected in zip(pages.tolist(), found.hashes[pages].tolist(), strict=True)
            if digest(answer[page * size - start : min((page + 1) * size, body) - start]) != expected
        ]


def fetch(
    cache: PageCache,
    wanted: Sequence[tuple[PagedObject, I64]],
    *,
    keep: float = KEEP_SECONDS,
    gap: int | None = None,
    ahead: bool = False,
    claimed: Callable[[], None] = lambda: None,
) -> int:
    """Fetches those of these pages that are absent and that nobody else fetches. Returns the number of these pages.

    With `ahead` objects for whose pages there is no room are left out: nothing waits, and nothing else that was fetched
    ahead is evicted. `claimed` is called when other threads leave these pages to this call.

    The bytes of all pages are reserved before the first is claimed: who waits for room has nothing others wait for.
    """
    requests: list[_Request] = []
    open_claims: dict[int, _Request] = {}
    wanted, reserved = _reserve(cache, wanted, ahead)
    if not wanted:
        claimed()
        return 0
    full = cache.is_full
    try:
        for found, pages in wanted:
            for request in _requests(cache, found, pages, _gap(found, full) if gap is None else gap, len(requests)):
                open_claims[request.number] = request
                requests.append(request)
                reserved -= found.cached.entry_bytes(request.pages)
        cache.budget.unused(max(0, reserved))
        reserved = 0
        claimed()
        wrong: dict[int, list[int]] = {}

        def check(number: int, answer: memoryview) -> str:
            request = requests[number]
            bad = request.wrong(request.pages, answer)
            if not bad:
                return ""
            PAGES.add("pages_refetched")
            seen = wrong.setdefault(number, [])
            seen.append(xxhash.xxh3_64_intdigest(request.content(bad[0], bad[0], answer)))
            if given_up(seen):
                raise _damaged(request, bad[0], seen)
            return f"other bytes than the checksum of page {bad[0]} says"

        def take(came: Sequence[tuple[int, memoryview]]) -> None:
            by_object: dict[str, list[tuple[_Request, memoryview]]] = {}
            for number, answer in came:
                by_object.setdefault(requests[number].found.cached.key, []).append((requests[number], answer))
            for arrived in by_object.values():
                for request, _ in arrived:
                    del open_claims[request.number]  # `_keep` returns what was reserved for it
                try:
                    _keep(cache, arrived, seconds=keep)
                finally:
                    _release(cache, [request for request, _ in arrived])  # now: readers wait for them

        _read(requests, check, take)
        return sum(len(request.pages) for request in requests)
    finally:
        cache.budget.unused(
            max(0, reserved) + sum(each.found.cached.entry_bytes(each.pages) for each in open_claims.values())
        )
        for request in open_claims.values():
            _release(cache, [request])


def _reserve(
    cache: PageCache, wanted: Sequence[tuple[PagedObject, I64]], ahead: bool
) -> tuple[Sequence[tuple[PagedObject, I64]], int]:
    """Reserves room for the absent ones of these pages that no thread here fetches.

    Returns those for which there is room, and their bytes.
    """
    absent = []
    for found, pages in wanted:
        gone = pages[(found.cached.generations[pages] & 1) == 0]
        gone = gone[~cache.in_work(found.cached)[gone]]
        if len(gone):
            absent.append((found, gone))
    if not absent:
        return [], 0
    sizes = [found.cached.entry_bytes(pages) for found, pages in absent]
    if not ahead or cache.make_room(sum(sizes), ahead=True):
        if not ahead:
            cache.make_room(sum(sizes))
        return absent, sum(sizes)
    fits = [cache.make_room(size, ahead=True) for size in sizes]
    return [each for each, fit in zip(absent, fits, strict=True) if fit], sum(
        size for size, fit in zip(sizes, fits, strict=True) if fit
    )


def _gap(found: PagedObject, full: bool) -> int:
    """Unused bytes that a request may read over: pages that the cache has no room for are read in vain."""
    return min(GAP, FULL_GAP * found.cached.shape.page_bytes) if full else GAP


def _release(cache: PageCache, same: Sequence[_Request]) -> None:
    """Ends the claims of requests of one object."""
    cache.release(same[0].found.cached, np.concatenate([part for each in same for part in (each.pages, each.between)]))


def _read(requests: Sequence[_Request], check: Check, take: Take) -> None:
    """Calls `take` with right answers. Object stores answer many requests at once."""
    for options in _distinct([request.found.options for request in requests]):
        mine = [n for n, request in enumerate(requests) if request.found.options == options]
        if filesystem.scheme(requests[mine[0]].found.url) in OBJECTS:
            reads = [Read(requests[n].found.url, requests[n].start, requests[n].stop) for n in mine]
            read_many(
                reads, options,
                check=lambda i, answer, mine=mine: check(mine[i], answer),  # type: ignore[misc]
                take=lambda came, mine=mine: take([(mine[i], answer) for i, answer in came]),  # type: ignore[misc]
            )  # fmt: skip
            continue
        for number in mine:
            request = requests[number]
            for _ in range(MOST_WRONG):  # `check` raises in the end
                (answer,) = filesystem.read_ranges(request.found.url, [(request.start, request.stop)], options)
                if not check(number, memoryview(answer)):
                    take([(number, memoryview(answer))])
                    break


def _distinct(options: Sequence[Options]) -> list[Options]:
    found: list[Options] = []
    for one in options:
        if one not in found:
            found.append(one)
    return found


def _requests(cache: PageCache, found: PagedObject, pages: I64, gap: int, first: int) -> list[_Request]:
    """Claims the absent ones of these pages, and the absent ones between them; returns the requests for them.

    The requests are numbered from `first` on.
    """
    cached = found.cached
    mine = cache.claim(cached, distinct(pages))
    try:
        present = (cached.generations[mine] & 1) == 1
        cache.release(cached, mine[present])
        mine = mine[~present]
        return _merged(cache, found, mine, gap, first) if len(mine) else []
    except BaseException:
        cache.release(cached, mine)
        raise


def _merged(cache: PageCache, found: PagedObject, mine: I64, gap: int, first: int) -> list[_Request]:
    """The requests for claimed pages; claims the absent ones between them too."""
    cached = found.cached
    size = cached.shape.page_bytes
    stops = np.minimum((mine + 1) * size, cached.shape.size - cached.tail_bytes)
    coming = cache.in_work(cached)  # others fetch these pages: they are as good as present
    coming[mine] = False
    kept = ((cached.generations & 1) == 1) | coming
    made = coalesce(mine * size, stops, gap, LARGEST, parted(mine, kept, size, gap))
    inside = np.zeros(cached.pages, bool)
    for start, stop in zip((made.starts // size).tolist(), (-(-made.stops // size)).tolist(), strict=True):
        inside[start:stop] = True
    inside[mine] = False
    between = np.flatnonzero(inside & ((cached.generations[: cached.pages] & 1) == 0))
    if len(between):  # nobody else reads them a second time while they come
        between = cache.claim(cached, between)
    cuts = np.searchsorted(made.index, np.arange(1, len(made)))
    parts = np.split(mine, cuts), np.split(between, np.searchsorted(between * size, made.starts[1:]))
    each = zip(made.starts.tolist(), made.stops.tolist(), *parts, strict=True)
    return [_Request(number, found, *one) for number, one in enumerate(each, first)]


def _keep(cache: PageCache, arrived: Sequence[tuple[_Request, memoryview]], *, seconds: float) -> None:
    """Writes the pages of answers of one object, and publishes them together: room for wanted ones is reserved.

    Nothing is evicted for those that lie between them.
    """
    found = arrived[0][0].found
    cached = found.cached
    every = np.concatenate([request.pages for request, _ in arrived])
    published = False
    try:
        parts = []
        for request, answer in arrived:
            pages = request.pages
            between = request.between[(cached.generations[request.between] & 1) == 0]
            wrong = request.wrong(between, answer) if len(between) else []
            right = np.setdiff1d(between, wrong) if wrong else between
            if len(right) and cache.make_room(cached.entry_bytes(right), evict=False):
                every = np.concatenate([every, right])
                pages = np.sort(np.concatenate([pages, right]))  # in one write: most of them are neighbours
            parts += [(start, request.content(start, stop - 1, answer)) for start, stop in runs(pages)]
        cached.write(parts)
        cached.keep(every, seconds)
        cache.publish(cached, every)
        found.checked[every] = cached.generations[every]
        PAGES.add("pages_fetched", len(every))
        published = True
    finally:
        if not published:
            cache.give_up(cached, every, cached.entry_bytes(every))


def _damaged(request: _Request, page: int, seen: Sequence[int]) -> StoreError:
    found = request.found
    start, stop = found.cached.span(page)
    try:
        tag = filesystem.stamp(found.url, found.options).tag
    except PenstockError as error:
        tag = f"unknown ({error.got or error.expected})"
    came = ", ".join(f"{each:016x}" for each in dict.fromkeys(seen))
    return StoreError(
        f"page {page} with checksum {int(found.hashes[page]):016x}",
        got=f"{came}, after {len(seen)} requests: bytes {start} to {stop} of the object have changed",
        where=f"{found.url}, page {page}, ETag {tag}",
        fix="the object is damaged or was replaced: upload it again from an intact copy, or write the store again",
    )
