"""Bytes that a shuffled epoch reads from an object store, over the size of the page cache, against the fewest possible.

The fewest possible is a simulation over the same order: a cache that holds as many pages and evicts the one whose next
use is furthest away, with all of the future known (Belady); beside it the one that evicts what was not used longest.
A SeaweedFS server on loopback; tokens in pages of 4 KiB, windows of 256, batches of 16.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.storage.remote_stores import make, upload
from tests.storage.servers import seaweedfs

import penstock as ps
from bench.common import judge, save, table
from penstock.engine.prefetch import page_needs
from penstock.storage import metrics
from penstock.storage.cache_budget import OWN_BYTES
from penstock.storage.cache_metrics import PAGES

PAGE, DOCUMENTS = 4096, 1800
SHARES = (0.25, 0.5, 0.75, 1.2)


def furthest(steps: Sequence[np.ndarray], room: int) -> int:
    """Pages fetched if the one whose next use is furthest away leaves first; a step's pages are there together."""
    uses: dict[int, list[int]] = {}
    for step, pages in enumerate(steps):
        for page in pages.tolist():
            uses.setdefault(page, []).append(step)
    for each in uses.values():
        each.reverse()
    held: set[int] = set()
    heap: list[tuple[int, int]] = []
    fetched = 0
    for step, pages in enumerate(steps):
        here = set(pages.tolist())
        fetched += len(here - held)
        held |= here
        for page in here:
            uses[page].pop()
            heapq.heappush(heap, (-(uses[page][-1] if uses[page] else len(steps) + 1), page))
        while len(held) > room:
            use, page = heapq.heappop(heap)
            if page in held and -use == (uses[page][-1] if uses[page] else len(steps) + 1) and -use > step:
                held.discard(page)
    return fetched


def longest_unused(steps: Sequence[np.ndarray], room: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    fetched = 0
    for pages in steps:
        for page in pages.tolist():
            fetched += page not in held
            held[page] = None
            held.move_to_end(page)
        while len(held) > room:
            held.popitem(last=False)
    return fetched


def measure() -> list[dict[str, Any]]:
    """One row for each size of the cache."""
    rows = []
    with tempfile.TemporaryDirectory() as name, seaweedfs(Path(name) / "server") as server:
        folder = make(Path(name) / "store", DOCUMENTS, page_bytes=PAGE)
        url = upload(folder, server.url("cache-sizes"), server.options)

        def loader(share: float, limit: int | None) -> Any:
            store = ps.open_store(
                url, storage_options=server.options, cache_dir=Path(name) / f"c{share}", cache_bytes=limit
            )
            return store.windows(256).shuffle(seed=1).batch(16).to_numpy(threads=1)

        planned = loader(0, None)
        work = planned._work()
        steps, opened = [], 0
        for step in range(len(planned)):
            (needs,) = page_needs(planned._plan.root, next(work.orders(step, step + 1)))
            steps.append(needs.ids)
            opened = sum(needs.opened.values())
        pages = len(np.unique(np.concatenate(steps)))
        for share in SHARES:
            limit = OWN_BYTES + opened + int(share * pages) * PAGE
            before, found, began, cpu = metrics.counters(), PAGES.snapshot(), time.perf_counter(), time.process_time()
            assert sum(1 for _ in loader(share, limit)) == len(steps)
            used = metrics.since(before)["s3"]
            rows.append({
                "pages in the cache": f"{share:.0%}",
                "read / store": used.bytes / (pages * PAGE),
                "fewest possible": furthest(steps, int(share * pages)) / pages,
                "longest unused": longest_unused(steps, int(share * pages)) / pages,
                "pages fetched": PAGES.since(found)["pages_fetched"] / pages,
                "requests": used.requests,
                "seconds": time.perf_counter() - began,
                "processor seconds": time.process_time() - cpu,
            })  # fmt: skip
    return rows


def run() -> dict[str, Any]:
    made = measure()
    shown = [tuple(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()) for row in made]
    table("an epoch, in sizes of the store", shown, tuple(made[0]))
    half = next(row for row in made if row["pages in the cache"] == "50%")
    ratio = half["pages fetched"] / half["fewest possible"]
    targets = [judge("cache of half the store: pages fetched / fewest possible", ratio, 1.5, most=True)]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"rows": made, "targets": targets}
    save("cache_sizes", facts)
    return facts


if __name__ == "__main__":
    run()
