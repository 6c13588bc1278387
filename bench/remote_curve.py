"""Cold windows from an S3 server against bare requests, over the size of the store, of the window, and the network.

Each row alternates cold epochs with bare requests of the bytes that the last one fetched: the same ranges, as many at
once. The processor time of this process and of the server are separate columns, because both share this machine: on a
busy one only these can be compared. A server on loopback answers faster than any network; the last rows, which are no
replacement for the others, add a proxy in a process of its own that delays each request and lets a stated number of
bytes a second pass, so that both sides wait for the network as they do in a data centre.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.storage.servers import seaweedfs

from bench._cold_epochs import BEHIND, LENGTH, NETWORK, ORDERS, Remote, Run, compare
from bench.common import save, table
from bench.remote_store import slow_proxy, upload, write_store

MILLION = 1_000_000


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
        with slow_proxy(server, **NETWORK) as endpoint:
            options = server.options | {"endpoint": endpoint}
            for millions in (50, largest):
                remote = Remote(urls[millions], options, folder / f"far-{millions}")
                for named, order in ORDERS.items():
                    where = f"{2 * millions} MB, {named}"
                    made[f"{BEHIND}, {where}"] = compare(remote, server, order, count)
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
