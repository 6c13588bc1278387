"""Reads many byte ranges of many objects at once: concurrent, retried, hedged, each answer complete or an error.

Requests run in threads of this module, shared by the process; the thread that calls decides about each answer: done,
tried again after a pause, or a second request beside a slow one (`hedge`). At most `in_flight` requests and
`IN_FLIGHT_BYTES` of a call are under way at a time.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import xxhash

from penstock.core.errors import DataError, StorageError
from penstock.core.optional import need
from penstock.storage import fsspec_files, metrics, object_client, retry
from penstock.storage.retry import BadAnswer
from penstock.storage.schemes import OBJECTS
from penstock.storage.sizes import LARGEST

IN_FLIGHT_BYTES = 64 << 20
_THREADS = 64
_TOGETHER = 8 << 20  # bytes of answers that are taken in one call, if they came while others were taken
SAME_WRONG = 3  # answers with the same wrong bytes, after which the object itself is wrong...
MOST_WRONG = 6  # ...and with any, after which something on the way is: then it is an error

_pool: tuple[int, ThreadPoolExecutor] | None = None  # of the process of this number: a fork does not copy threads
_lock = threading.Lock()


class Read(NamedTuple):
    """Bytes [start, stop) of an object; `stop=None` for all of it, which may have at most `limit` bytes.

    `tag` is the ETag that it must have; "" for any.
    """

    url: str
    start: int = 0
    stop: int | None = None
    tag: str = ""
    limit: int | None = None


Check = Callable[[int, memoryview], str | None]
"""Says what is wrong with the bytes of read i; "" if nothing, None if there is nothing to compare them with."""
Take = Callable[[Sequence[tuple[int, memoryview]]], None]
"""Gets the bytes of reads that are complete."""


@dataclass(slots=True)
class _Job:
    number: int
    read: Read
    bucket: object_client.Bucket | fsspec_files.Place
    key: str
    began: float = 0.0
    retries: int = 0
    running: int = 0
    tries: int = 0  # first requests and retries, without those beside a slow one
    wrong: list[int] = field(default_factory=list)  # a hash of each answer that failed its check
    seen: list[int] = field(default_factory=list)  # the same of answers without one, where two must agree
    done: bool = False
    full: bool = False  # the server answered a range with all of the object: it is asked for that
    size: int = 0


def read_many(
    reads: Sequence[Read], options: object_client.Options = None, *, check: Check | None = None,
    take: Take | None = None,
) -> list[bytes]:  # fmt: skip
    """Reads ranges of objects, concurrently; returns their bytes in the order of `reads`.

    `take([(i, data), ...])` is called with the answers that have come, in this thread, instead of keeping them: the
    result is then empty. An answer for which `check` says what is wrong is asked for again. It is an error once the
    same wrong bytes came three times, or any six times. With the option `read_twice` an answer for which there is no
    check is asked for until two agree.
    """
    if not reads:
        return []
    jobs = []
    places: dict[str, tuple[object_client.Bucket | fsspec_files.Place, str]] = {}
    for number, read in enumerate(reads):
        if read.url not in places:
            places[read.url] = _find(read.url, options)
        size = IN_FLIGHT_BYTES >> 5 if read.stop is None else read.stop - read.start
        jobs.append(_Job(number, read, *places[read.url], size=size))
    out: list[bytes] = [] if take else [b""] * len(reads)

    def copy(came: Sequence[tuple[int, memoryview]]) -> None:
        for number, data in came:
            out[number] = bytes(data)

    run = _Run(jobs, check, take or copy)
    try:
        run.all()
    finally:
        metrics.add(jobs[0].bucket.kind, run.counted())
    return out


def _find(url: str, options: object_client.Options) -> tuple[object_client.Bucket | fsspec_files.Place, str]:
    if url.partition("://")[0].lower() in OBJECTS:
        return object_client.find(url, options)
    return fsspec_files.find(url, options), url


class _Run:
    """One call of `read_many`."""

    def __init__(self, jobs: list[_Job], check: Check | None, take: Take) -> None:
        self.jobs, self.check, self.take = jobs, check, take
        self.answers: SimpleQueue[tuple[_Job, bool, memoryview | BaseException, float]] = SimpleQueue()
        # When something is due, for which job, and which of its tries is slow then; 0: it is tried again.
        self.timers: list[tuple[float, int, _Job, int]] = []
        self.order = 0
        self.counts = metrics.Counters()
        self.began = time.monotonic()

    def counted(self) -> metrics.Counters:
        self.counts.wait_seconds = time.monotonic() - self.began
        return self.counts

    def all(self) -> None:
        waiting, left = deque(self.jobs), len(self.jobs)
        active, size = 0, 0
        most = self.jobs[0].bucket.settings.in_flight
        came: list[tuple[_Job, memoryview]] = []  # answered and right, not taken yet
        while left:
            while waiting and active < most and (not active or size + waiting[0].size <= IN_FLIGHT_BYTES):
                job = waiting.popleft()
                active, size = active + 1, size + job.size
                job.began = time.monotonic()
                self.start(job)
            if came:  # after new requests were made for them
                self.take([(job.number, answer) for job, answer in came])
                came = []
            self.due()
            held = 0
            while not held or (held < _TOGETHER and not self.answers.empty()):
                try:
                    got = self.right(*self.answers.get(timeout=self.until()))
                except Empty:
                    break
                if got is None:
                    break
                came.append(got)
                held += got[0].size + 1
                left, active, size = left - 1, active - 1, size - got[0].size
        self.take([(job.number, answer) for job, answer in came])

    def right(
        self, job: _Job, hedged: bool, answer: memoryview | BaseException, seconds: float
    ) -> tuple[_Job, memoryview] | None:
        """The job and its bytes if they are complete and right; otherwise None: it is tried again, or is an error."""
        job.running -= 1
        if job.done:
            return None  # the other of two requests was faster
        if isinstance(answer, BaseException):
            self.failed(job, answer)
            return None
        job.bucket.hedger.answered(len(answer), seconds)
        self.counts.bytes += len(answer)
        self.counts.hedges_won += hedged
        wrong = self.check(job.number, answer) if self.check else None
        if wrong is None and job.bucket.settings.read_twice:
            found = xxhash.xxh3_64_intdigest(answer)
            agree, job.seen = found in job.seen, [*job.seen, found]
            if len(job.seen) >= MOST_WRONG and not agree:
                self.failed(job, BadAnswer(f"{MOST_WRONG} answers that all differ"), last=True)
                return None
            if not agree:
                self.start(job)
                return None
        elif wrong:
            job.wrong.append(xxhash.xxh3_64_intdigest(answer))
            self.failed(job, BadAnswer(wrong), last=given_up(job.wrong))
            return None
        job.done = True
        return job, answer

    def start(self, job: _Job, *, hedged: bool = False) -> None:
        job.running += 1
        self.counts.requests += 1
        _submit(self._attempt, job, hedged)
        if hedged:
            return
        job.bucket.hedger.started()
        job.tries += 1
        if job.bucket.settings.hedge:
            self.later(job.bucket.hedger.delay(job.size), job, job.tries)

    def later(self, seconds: float, job: _Job, slow: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.order, job, slow))

    def until(self) -> float | None:
        """Seconds until the next timer that still matters."""
        while self.timers and self.timers[0][2].done:
            heapq.heappop(self.timers)
        return max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None

    def due(self) -> None:
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            *_, job, slow = heapq.heappop(self.timers)
            if job.done:
                continue
            if not slow:
                self.counts.retries += 1
                self.start(job)
            elif slow == job.tries and job.running == 1 and job.bucket.hedger.allow():
                self.counts.hedges += 1
                self.start(job, hedged=True)

    def failed(self, job: _Job, error: BaseException, *, last: bool = False) -> None:
        job.full = job.full or "non-partial response" in str(error)
        policy, age = job.bucket.policy, time.monotonic() - job.began
        last = last or policy.ended(job.retries, age)
        if job.running and retry.transient(error) and last:
            return  # the other of two requests may still succeed
        if not retry.transient(error) or last:
            self.counts.failures += 1
            for other in self.jobs:
                other.done = True
            made = self.failure(job, error, age)
            raise made from (None if made is error else retry.cause(error))
        # Also beside the other of two requests: a slow one whose second request failed may not be answered at all.
        self.later(policy.pause(job.retries), job)
        job.retries += 1

    def failure(self, job: _Job, error: BaseException, age: float) -> BaseException:
        read = job.read
        part = "" if read.stop is None else f", bytes {read.start} to {read.stop}"
        made = retry.failure(read.url + part, error, "read", job.retries, age)
        if isinstance(error, BadAnswer) and isinstance(made, StorageError):
            made.fix = "the object was replaced, or what is between here and the storage changes bytes: open it again"
        return made if isinstance(error, Exception) else error

    def _attempt(self, job: _Job, hedged: bool) -> None:
        began = time.monotonic()
        answer: memoryview | BaseException
        try:
            answer = _get(job)
        except BaseException as error:
            answer = error
        self.answers.put((job, hedged, answer, time.monotonic() - began))


def _get(job: _Job) -> memoryview:
    read, bucket = job.read, job.bucket
    if isinstance(bucket, fsspec_files.Place):
        return fsspec_files.get(bucket, read.url, read.start, read.stop)
    obstore = need("obstore", extra="s3")
    if read.stop is None or read.tag or read.limit is not None or job.retries:
        return _get_described(obstore, bucket.client(), job)
    data = memoryview(obstore.get_range(bucket.client(), job.key, start=read.start, end=read.stop))
    if len(data) != read.stop - read.start:
        raise BadAnswer(f"{len(data)} of {read.stop - read.start} bytes")  # the next try finds out why
    return data


def _get_described(obstore: Any, client: Any, job: _Job) -> memoryview:
    """A request whose answer says how large the object is, and which version of it."""
    read = job.read
    wanted: dict[str, Any] = {}
    part = read.stop is not None and not job.full
    if part:
        wanted["range"] = (read.start, read.stop)
    if read.tag:
        wanted["if_match"] = f'"{read.tag}"'
    answer = obstore.get(client, job.key, options=wanted)
    size = int(answer.meta["size"])
    if read.limit is not None and size > read.limit:
        raise DataError(f"a file of at most {read.limit:,} bytes", got=f"{size:,} bytes", where=read.url)
    if job.full and size > LARGEST:
        raise StorageError(
            "a server that answers requests for byte ranges", got=f"all {size:,} bytes for some of them",
            where=read.url,
            fix=f"objects of more than {LARGEST:,} bytes are read in parts: use another server, or a copy on disk",
        )  # fmt: skip
    data = memoryview(answer.bytes())  # the client's own memory: 8 MiB are not copied to look at them
    if read.tag and bare_tag(answer.meta["e_tag"]) != read.tag:  # a store that ignores If-Match
        raise StorageError(
            "the object as it was when it was opened", got="it was replaced: its ETag differs", where=read.url,
            fix="make the source again, and let nothing write to its objects",
        )  # fmt: skip
    if read.stop is not None and size < read.stop:
        raise retry.shorter(read.url)
    begin, stop = (0, size) if read.stop is None else (read.start, read.stop)
    if job.full:
        data = data[begin:stop]
    if len(data) != stop - begin or (part and tuple(answer.range) != (begin, stop)):
        raise BadAnswer(f"{len(data)} of {stop - begin} bytes")
    return data


def given_up(wrong: Sequence[int]) -> bool:
    """Whether answers with these hashes, all of them wrong, are an error: the bytes will not become right.

    >>> given_up([5, 5]), given_up([5, 5, 5]), given_up([1, 2, 3, 4, 5]), given_up([1, 2, 3, 4, 5, 6])
    (False, True, False, True)
    """
    return len(wrong) >= MOST_WRONG or wrong.count(wrong[-1]) >= SAME_WRONG


def bare_tag(tag: str | None) -> str:
    """An ETag without quotes, which some listings leave out. A weak one is none.

    >>> bare_tag('"abc"'), bare_tag("abc"), bare_tag('W/"abc"'), bare_tag(None)
    ('abc', 'abc', '', '')
    """
    return "" if tag is None or tag.startswith("W/") else tag.strip('"')


def _submit(work: Callable[..., None], *arguments: Any) -> None:
    global _pool  # noqa: PLW0603 - one pool of the process
    pid = os.getpid()
    if _pool is None or _pool[0] != pid:
        with _lock:
            if _pool is None or _pool[0] != pid:
                _pool = pid, ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-storage")
    try:
        _pool[1].submit(work, *arguments)
    except RuntimeError as error:  # the threads of the pool have ended
        raise StorageError(
            "a request before the interpreter ends", got=str(error), fix="read before the main thread has ended"
        ) from error
