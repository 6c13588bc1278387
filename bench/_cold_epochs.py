"""Cold epochs of a token store on a server, bare requests of the same bytes, and what no reader of them can leave out.

Both sides of a comparison run alternately, and their processor time is taken apart from the server's, because all of
them share this machine: on a busy one only processor times can be compared.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import obstore
import xxhash
from tests.storage.servers import Server

import penstock as ps
from bench.common import least_cpu
from penstock.storage import object_client, page_fetch

LENGTH, BATCH, LANES = 1024, 128, 32
NETWORK = {"latency": 0.02, "link": 250e6}  # seconds for each request, bytes a second: 2 Gbit/s
BEHIND = f"{1e3 * NETWORK['latency']:.0f} ms, {NETWORK['link'] / 1e6:.0f} MB/s"
ORDERS: dict[str, dict[str, Any]] = {"global shuffle": {}, "lanes": {"lanes": LANES}}
PAGE = 1 << 16


class Remote:
    """A store on the server, with a cache folder that can be made empty; keeps the ranges that were requested."""

    def __init__(self, url: str, options: dict[str, Any], folder: Path, length: int = LENGTH) -> None:
        self.url, self.options, self.folder, self.length = url, options, folder, length
        self.number = 0
        self.reads: list[page_fetch.Read] = []

    def empty(self) -> None:
        """The next pipeline has an empty cache."""
        if self.number:
            shutil.rmtree(self.cache, ignore_errors=True)
        self.number += 1

    @property
    def cache(self) -> Path:
        return self.folder / f"cache-{self.number}"

    def pipeline(self, **order: Any) -> ps.Pipeline:
        store = ps.open_store(self.url, storage_options=self.options, cache_dir=self.cache)
        return store.windows(self.length).shuffle(seed=1, **order).batch(BATCH)

    def cold(self, **order: Any) -> float:
        """Rows a second of an epoch with an empty cache, opening included."""
        self.empty()
        self.reads, real = [], page_fetch.read_many

        def keep(reads: Any, *arguments: Any, **more: Any) -> list[bytes]:
            self.reads += reads
            return real(reads, *arguments, **more)

        page_fetch.read_many = keep
        try:
            return epoch(lambda: self.pipeline(**order))
        finally:
            page_fetch.read_many = real

    def bare(self) -> float:
        """Rows a second if an epoch were only the requests of the last cold one, as many of them at once."""
        bucket, _ = object_client.find(self.reads[0].url, self.options)
        keys = [(object_client.split(read.url)[2], read.start, read.stop) for read in self.reads]
        with ThreadPoolExecutor(bucket.settings.in_flight) as pool:
            began = time.perf_counter()
            sizes = pool.map(lambda r: len(obstore.get_range(bucket.client(), r[0], start=r[1], end=r[2])), keys)
            assert sum(sizes) == sum(stop - start for _, start, stop in keys)
            return self.rows / (time.perf_counter() - began)

    @property
    def rows(self) -> int:
        return BATCH * len(self.pipeline().to_numpy())


def epoch(make: Callable[[], ps.Pipeline]) -> float:
    began, rows = time.perf_counter(), 0
    for batch in make().to_torch():
        rows += len(batch["input_ids"])
    return rows / (time.perf_counter() - began)


class Run(NamedTuple):
    """Seconds of an epoch: on the clock, and of processor time, here and in the server."""

    clock: float
    ours: float
    server: float


def processor_seconds(pid: int) -> float:
    """Processor time of all threads of another process, finer than the clock ticks of its sum."""
    tasks = Path("/proc", str(pid), "task")
    return sum(int((tasks / name / "schedstat").read_text().split()[0]) for name in os.listdir(tasks)) / 1e9


def timed(rows_a_second: Callable[[], float], rows: int, server: Server) -> Run:
    gc.collect()
    ours, theirs = time.process_time(), processor_seconds(server.pid)
    clock = rows / rows_a_second()
    return Run(clock, time.process_time() - ours, processor_seconds(server.pid) - theirs)


def compare(remote: Remote, server: Server, order: dict[str, Any], count: int) -> dict[str, Any]:
    """Medians of `count` rounds; the ratio is the median of the rounds' own."""
    rows = remote.rows
    remote.cold(**order)  # connections and imports
    rounds = []
    for _ in range(count):
        remote.empty()  # not a part of the epoch
        cold = timed(lambda: remote.cold(**order), rows, server)
        rounds.append((cold, timed(remote.bare, rows, server)))
    fetched = sum((read.stop or 0) - read.start for read in remote.reads)
    facts: dict[str, Any] = {
        "requests": len(remote.reads),
        "MB": fetched / 1e6,
        "ratio": statistics.median(bare.clock / cold.clock for cold, bare in rounds),
    }
    for number, what in enumerate(("cold", "bare")):
        for name in Run._fields:
            facts[f"{what} {name}"] = 1e3 * statistics.median(getattr(each[number], name) for each in rounds)
    return facts


def necessary(tokens: np.ndarray, folder: Path) -> dict[str, float]:
    """Milliseconds of processor time for what a verified, cached epoch does besides requests, in few calls.

    The answers' pages are hashed and written into a file; rows are copied out of its map, in random order, and widened
    into two columns of int64, in memory that is reused. No plan, no locks, no threads.
    """
    content, width = memoryview(tokens).cast("B"), (LENGTH + 1) * tokens.itemsize
    rows = len(tokens) // (LENGTH + 1)
    starts = np.random.default_rng(0).permutation(rows)[: rows // BATCH * BATCH].reshape(-1, BATCH) * width
    made = np.empty((2, BATCH, LENGTH), np.int64)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name, "pages")

        def write() -> None:
            path.unlink(missing_ok=True)
            with open(path, "wb", buffering=0) as file:
                file.truncate(len(content))
                for at in range(0, len(content), 2 << 20):
                    file.write(content[at : at + (2 << 20)])

        def hashed() -> None:
            for at in range(0, len(content), PAGE):
                xxhash.xxh3_64_intdigest(content[at : at + PAGE])

        def read() -> None:
            mapped = np.memmap(path, np.uint8, "r")
            rows_of = np.ndarray(len(mapped) - width + 1, np.dtype((np.void, width)), mapped, strides=(1,))
            for batch in starts:
                found = rows_of[batch].view(tokens.dtype).reshape(BATCH, LENGTH + 1)
                np.copyto(made[0], found[:, :-1])
                np.copyto(made[1], found[:, 1:])

        took = {"hash": least_cpu(hashed), "write": least_cpu(write), "copy and widen": least_cpu(read)}
    return {what: 1e3 * seconds for what, seconds in took.items()}
