"""Cold windows from an S3 server against bare requests, over the size of the store, of the window, and the network.

Each row alternates cold epochs with bare requests of the bytes that the last one fetched: the same ranges, as many at
once. The processor time of this process and of the server are separate columns, because both share this machine: on a
busy one only these can be compared. A server on loopback answers faster than any network; the last rows, which are no
replacement for the others, add a proxy in a process of its own that delays each request and lets a stated number of
bytes a second pass, so that both sides wait for the network as they do in a data centre.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.storage.servers import Server, seaweedfs

from bench.common import save, table
from bench.remote_store import LANES, LENGTH, Remote, slow_proxy, upload, write_store

MILLION = 1_000_000
LATENCY, LINK = 0.02, 250e6  # seconds for each request, bytes a second: 2 Gbit/s
ORDERS: dict[str, dict[str, Any]] = {"global shuffle": {}, "lanes": {"lanes": LANES}}


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


def run(count: int = 5, largest: int = 200) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name, seaweedfs(Path(name, "server")) as server:
        folder, urls = Path(name), {}
        for millions in sorted({12, 50, largest}):
            write_store(folder / f"{millions}", millions * MILLION)
            urls[millions] = upload(folder / f"{millions}", server, f"{millions}")
        cases = [(millions, LENGTH) for millions in urls] + [(50, 256), (50, 4096)]
        for millions, length in cases:
            remote = Remote(urls[millions], server.options, folder / f"cache-{millions}-{length}", length)
            for named, order in ORDERS.items():
                where = f"loopback, {2 * millions} MB, windows of {length}, {named}"
                made[where] = compare(remote, server, order, count)
            remote.empty()
        with slow_proxy(server, LATENCY, LINK) as endpoint:
            options = server.options | {"endpoint": endpoint}
            for millions in (50, largest):
                remote = Remote(urls[millions], options, folder / f"far-{millions}")
                for named, order in ORDERS.items():
                    where = f"{LATENCY * 1e3:.0f} ms, {LINK / 1e6:.0f} MB/s, {2 * millions} MB, {named}"
                    made[where] = compare(remote, server, order, count)
                remote.empty()
    columns = ["requests", "ratio", *(f"{what} {name}" for what in ("cold", "bare") for name in Run._fields)]
    table(
        "Milliseconds of an epoch with an empty cache; ratio: rate of cold over rate of bare requests",
        [
            (case, *(f"{facts[c]:.2f}" if c == "ratio" else f"{facts[c]:.0f}" for c in columns))
            for case, facts in made.items()
        ],
        ("case", *columns),
    )
    facts = {"rows": made}
    save("remote_curve", facts)
    return facts


if __name__ == "__main__":
    run()
