"""Fetches the pages of the next steps while the trainer works: which ones is known from the plan.

Two threads for each running `for` whose sources are read through a page cache: while one waits for its answers, the
other plans and requests what comes next. They stay `AHEAD_STEPS` steps ahead of the trainer, or `AHEAD_SECONDS` if that
is more, as far as the cache has room: readers go first, and evict what was fetched ahead if they find no other room.
They change no batch: what they have not begun to fetch, the reader fetches itself. If they fail, the reader meets the
same error, with the row that needs it.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.core.errors import PenstockError, StorageError
from penstock.core.signals import NoMoreThreads, start_thread
from penstock.core.waits import Condition
from penstock.engine.batches import Batches
from penstock.engine.later_uses import LaterUses
from penstock.engine.stats import Stats
from penstock.plan.build import Plan
from penstock.sources.base import PagedTokens
from penstock.steps.node import Node
from penstock.steps.picks import Picks
from penstock.storage.cache_budget import OWN_BYTES

if TYPE_CHECKING:  # only remote stores are read through them
    from penstock.storage.page_cache import PageCache
    from penstock.storage.page_needs import PageNeeds

AHEAD_STEPS = 16
AHEAD_SECONDS = 10.0
FIRST_STEPS = 64  # before the pace of the trainer is known; steps that are fetched together share requests
END_SECONDS = 10.0  # how long the end of the interpreter waits for a thread
MOST_STEPS = 4096
FETCH_BYTES = 64 << 20  # about how much is fetched in one call
CHUNKS = 4  # the room for what is ahead is divided into at least this number of calls, so that it moves on
FETCHERS = 2
WAIT_SECONDS = 0.1  # how long a reader waits for pages to be requested, before it requests them itself


class Closing(Protocol):
    """Something that can be closed."""

    def close(self) -> None: ...


class _Chunk(NamedTuple):
    """Steps whose pages are fetched in one call."""

    start: int
    stop: int
    needs: list[PageNeeds]
    size: int


class Ahead(Protocol):
    """What fetches ahead for a `for`."""

    def start(self) -> None: ...

    def took_one(self) -> None: ...

    def serve(self, work: Batches) -> None: ...

    def close(self) -> None: ...

    def join(self, seconds: float) -> None: ...


_running: weakref.WeakSet[Ahead] = weakref.WeakSet()


def register(ahead: Ahead) -> None:
    """Its threads end before the interpreter does."""
    _running.add(ahead)


@atexit.register
def _end_all() -> None:
    """A thread that runs compiled code while the interpreter ends may abort the process: all end before."""
    ending = list(_running)
    for prefetcher in ending:
        prefetcher.close()
    for prefetcher in ending:
        prefetcher.join(END_SECONDS)


class Prefetcher:
    """Fetches ahead for one rank, from step `at` up to `stop`; `least` steps are read at once."""

    def __init__(self, work: Batches, at: int, stop: int | None, least: int) -> None:
        self._work, self._at, self._stop = work, at, stop
        work.stats = Stats()  # its time is not the trainer's
        self._next = at  # the first step that is not in the horizon
        self._requested = at  # the first step whose pages are not requested yet, unless somebody reads it
        self._horizon: deque[_Chunk] = deque()
        self._size = 0  # bytes of the steps in the horizon
        self._caches: set[PageCache] = set()  # that the steps so far are read through
        self._most = MOST_STEPS  # of the next chunk
        self._pace: deque[float] = deque(maxlen=32)
        self._moved, self._planning, self._looking = Condition(), threading.Lock(), threading.Lock()
        self._later = LaterUses(work.again(), stop)
        self._wake = at  # the step of the trainer at which waiting threads look again
        self._threads = [
            threading.Thread(target=self._run, name="penstock-prefetch", daemon=True) for _ in range(FETCHERS)
        ]
        self._started = self._closed = self._full = self._idle = False
        self._least = least

    def start(self) -> None:
        """Starts the threads, if they are not running. Raises if the cache cannot hold what is read at once."""
        if self._started or self._closed:
            return
        self._refuse_small_cache(self._least)
        self._started = True
        register(self)
        try:
            for thread in self._threads:
                start_thread(thread)
        except NoMoreThreads:  # then readers fetch all
            self.close()

    def serve(self, work: Batches) -> None:
        """Readers of this work wait for what is about to be requested, and need not compute the order again."""
        work.before_read, work.requested = self.wait_for, lambda: self._requested
        work.share_order(self._work)

    def took_one(self) -> None:
        """The trainer takes the next batch."""
        self._at += 1  # only the trainer's thread does this
        self._pace.append(time.monotonic())
        if self._at >= self._wake:
            with self._moved.lock:
                self._moved.notify_all()

    def wait_for(self, stop: int) -> None:
        """Waits until the pages of the steps before `stop` are requested: then no reader requests them again.

        Not longer than `WAIT_SECONDS`, and not if nobody is going to request them.
        """
        if self._requested >= stop:
            return
        until = time.monotonic() + WAIT_SECONDS
        with self._moved.lock:
            while self._requested < stop and not (self._closed or self._idle):
                if (left := until - time.monotonic()) <= 0:
                    return
                self._moved.wait(left)

    def close(self) -> None:
        """Ends the threads; what they are fetching is finished or thrown away."""
        with self._moved.lock:
            self._closed = True
            self._moved.notify_all()

    def join(self, seconds: float) -> None:
        """Waits for the end of the threads."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _refuse_small_cache(self, least: int) -> None:
        """Raises if the cache cannot hold the steps that all processes of this machine read at once."""
        last = self._next + least if self._stop is None else min(self._stop, self._next + least)
        try:
            sizes = self._sizes(self._next, last)
        except StorageError as error:
            with ExitStack() as stack:  # what the plan needs of the document tables may not fit either
                for cache in caches_of(self._work.plan):
                    stack.enter_context(cache.without_limit())
                sizes = self._sizes(self._next, last)
            self._refuse(sizes, least)
            raise error
        self._refuse(sizes, least)

    def _sizes(self, start: int, stop: int) -> dict[PageCache, tuple[int, int]]:
        """For each cache the bytes of the pages of these steps, and of what is open."""
        return {needs.cache: (needs.size, sum(needs.opened.values())) for needs in self._needs(start, stop)}

    def _refuse(self, sizes: dict[PageCache, tuple[int, int]], least: int) -> None:
        for cache, (size, opened) in sizes.items():
            users = max(1, cache.budget.users)
            needed = size * users + opened + OWN_BYTES
            if needed > cache.limit:
                raise StorageError(
                    f"a page cache of at least {needed:,} bytes for {least} steps of {users} processes: "
                    f"{size * users:,} for their pages, {opened + OWN_BYTES:,} for the page tables of all shards, "
                    "which stay open",
                    got=f"cache_bytes={cache.limit:,}", where=cache.folder,
                    fix=f"pass cache_bytes={needed:,} or more, or use a smaller batch or prefetch=",
                )  # fmt: skip

    def _needs(self, start: int, stop: int, before: Sequence[PageNeeds] = ()) -> list[PageNeeds]:
        """The pages of steps [start, stop) and those in `before`, one item for each cache."""
        every = [needs for picks in self._work.orders(start, stop) for needs in page_needs(self._work.plan.root, picks)]
        from penstock.storage.page_needs import PageNeeds

        return PageNeeds.joined([*before, *every])

    def _run(self) -> None:
        try:
            while self._fetch_next():
                pass
        finally:
            self.close()  # also if a thread failed: no reader waits for what it would have requested
            for cache in self._caches:
                with suppress(PenstockError):
                    cache.set_horizon(self, None)

    def _fetch_next(self) -> bool:
        """Plans the next steps and fetches their pages; False when closed.

        One thread at a time plans, until its pages are claimed. What comes then, others may do at the same time.
        """
        turn = _Turn(self._planning)
        try:
            if not self._wait():
                return False
            chunk = self._plan()
            if chunk is None:
                return True

            def claimed() -> None:
                self._tell(requested=chunk.stop)
                turn.end()

            for number, needs in enumerate(chunk.needs, 1):
                needs.fetch(claimed if number == len(chunk.needs) else _nothing)
            self._look_further(chunk)
        except PenstockError:
            time.sleep(0.2)  # the reader meets the same error when it needs the page
        finally:
            self._tell(requested=self._next if turn.held else 0)
            turn.end()
        return True

    def _tell(self, *, requested: int = 0) -> None:
        with self._moved.lock:
            self._requested = max(self._requested, requested)
            self._moved.notify_all()

    def _wait(self) -> bool:
        """Waits until there is something to fetch; False when closed."""
        with self._moved.lock:
            while not self._closed:
                while self._horizon and self._horizon[0].stop <= self._at:
                    self._size -= self._horizon.popleft().size
                self._next = max(self._next, self._at)
                self._requested = max(self._requested, self._at)
                target, room = self._target(), self._room() > 0
                if not self._full and self._next < target and room:
                    return True
                if self._full or not room:
                    self._wake = self._horizon[0].stop if self._horizon else self._at + 1
                else:
                    self._wake = self._at + max(1, (target - self._at) // 8)
                if self._at < self._wake:
                    self._idle = True
                    self._moved.notify_all()  # readers do not wait for what will not come
                    self._moved.wait(1.0)
                    self._idle = False
                self._full = False
        return False

    def _target(self) -> int:
        """The step up to which pages should be there."""
        ahead, pace = FIRST_STEPS, self._pace
        if len(pace) > 1:
            seconds = (pace[-1] - pace[0]) / (len(pace) - 1)
            ahead = max(AHEAD_STEPS, min(MOST_STEPS, int(AHEAD_SECONDS / max(seconds, 1e-6))))
        end = self._at + ahead
        return end if self._stop is None else min(end, self._stop)

    def _room(self) -> int:
        """Bytes for more steps in the cache: half of it, divided among the processes that use it."""
        room = self._share() - self._size
        return max(1, room) if self._next - self._at < 2 else room

    def _share(self) -> int:
        return min((cache.limit // 2 // max(1, cache.budget.users) for cache in self._caches), default=1)

    def _plan(self) -> _Chunk | None:
        """The next steps, enough for a good number of requests at once; None if the cache has no room for them."""
        first, stop = self._next, self._next + 1
        last = min(first + self._most, self._target()) if self._caches else stop  # the trainer waits for the first step
        needs = self._needs(first, stop)
        self._caches.update(n.cache for n in needs)
        size, missing = sum(n.size for n in needs), sum(n.find_absent() for n in needs)
        most = min(self._room(), self._share() // CHUNKS)
        while stop < last and missing < FETCH_BYTES:  # most pages of further steps are among them: one request for all
            further = min(last, 2 * stop - first)
            more = self._needs(stop, further, needs)
            if (larger := sum(n.size for n in more)) > most:
                break
            needs, stop, size, missing = more, further, larger, sum(n.find_absent() for n in more)
        chunk = _Chunk(first, stop, needs, size)
        with self._moved.lock:
            self._horizon.append(chunk)
            self._size, self._next = self._size + chunk.size, stop
        self._publish()
        if missing and not all(n.has_room() for n in needs):
            with self._moved.lock:
                self._horizon.remove(chunk)
                self._size, self._next, self._full = self._size - chunk.size, first, True
                self._moved.notify_all()
            self._most = max(1, (stop - first) // 4)
            self._publish()
            return None
        self._most = min(MOST_STEPS, 2 * self._most)
        return chunk

    def _look_further(self, chunk: _Chunk) -> None:
        """Says when pages are needed after the steps that are fetched ahead, where some may have to leave."""
        for needs in chunk.needs:
            if needs.wanted and needs.cache.may_evict(self._size) and self._looking.acquire(blocking=False):
                try:
                    self._later.advance(self._at, self, needs.cache, needs.wanted[0][0].page_bytes)
                finally:
                    self._looking.release()

    def _publish(self) -> None:
        """Says which pages must stay, where some may have to leave."""
        for cache in self._caches:
            if not cache.may_evict(self._size):
                continue
            with self._moved.lock:
                ids = [needs.ids for chunk in self._horizon for needs in chunk.needs if needs.cache is cache]
            cache.set_horizon(self, np.concatenate([np.empty(0, np.uint64), *ids]))


class _Turn:
    """A lock that is held from here until `end`."""

    def __init__(self, lock: threading.Lock) -> None:
        lock.acquire()
        self._lock, self.held = lock, True

    def end(self) -> None:
        if self.held:
            self.held = False
            self._lock.release()


class FetchingAhead:
    """The items of a `for`, with the threads that fetch ahead for them: they begin and end with the iteration."""

    def __init__(self, items: Closing, take: Iterator[Any], prefetcher: Ahead) -> None:
        self.items, self._take, self.prefetcher = items, take, prefetcher

    def __iter__(self) -> Iterator[Any]:
        self.prefetcher.start()
        for item in self._take:
            self.prefetcher.took_one()
            yield item

    def close(self) -> None:
        """Ends the threads and the items."""
        self.prefetcher.close()
        self.items.close()


def page_needs(root: Node, picks: Picks) -> list[PageNeeds]:
    """The pages that these rows read, of each source that has some."""
    found = []
    for leaf, starts, lengths, documents, columns in root.reads(picks):
        if isinstance(leaf.source, PagedTokens):
            found.append(leaf.source.needs(starts, lengths))
            if documents is not None:
                found.append(leaf.source.document_needs(documents(), columns))
    return found


def caches_of(plan: Plan) -> set[PageCache]:
    """The page caches that a plan's sources are read through."""
    nothing = np.empty(0, np.int64)
    sources = [leaf.source for leaf in plan.root.leaves()]
    return {source.needs(nothing, nothing).cache for source in sources if isinstance(source, PagedTokens)}


def is_paged(plan: Plan) -> bool:
    """Whether a source of the plan is read through a page cache."""
    return any(isinstance(leaf.source, PagedTokens) for leaf in plan.root.leaves())


def _nothing() -> None:
    pass
