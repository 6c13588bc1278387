"""What remote storage cost a loader, for `Loader.stats()`: requests, bytes, waits, and what the page cache had.

The counters are those of the process: what other loaders in it did meanwhile is part of them, and what child processes
fetched is not (with `workers=`, the parent fetches ahead for them).
"""

from __future__ import annotations

from typing import Any

from penstock.engine.prefetch import is_paged
from penstock.plan.build import Plan
from penstock.sources.base import FileSource, NotedSource, Source
from penstock.storage import metrics
from penstock.storage.cache_metrics import PAGES
from penstock.storage.filesystem import scheme

_MUCH = 0.5  # of the trainer's waiting, above which storage is named as the reason


def _is_remote(source: Source) -> bool:
    """Whether a source reads files behind URLs."""
    if isinstance(source, FileSource):
        return any(map(scheme, source.paths[:1]))
    return len(source) > 0 and bool(scheme(str(source.locate(0).get("file", ""))))


class StorageStats:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._requests, self._pages = metrics.counters(), PAGES.snapshot()

    def add_to(self, facts: dict[str, Any], plan: Plan) -> None:
        """Adds `storage` to the facts of `Stats.summary`, and to the verdict what storage and sources cost."""
        if is_paged(plan):
            self._add_pages(facts)
        elif any(_is_remote(leaf.source) for leaf in plan.root.leaves()):
            facts["storage"] = self._requested()
        notes = {leaf.source.note(): None for leaf in plan.root.leaves() if isinstance(leaf.source, NotedSource)}
        facts["verdict"] = "; ".join(filter(None, [facts["verdict"], *notes]))

    def _requested(self) -> dict[str, Any]:
        every = metrics.Counters()
        for counted in metrics.since(self._requests).values():
            every = every + counted
        return {
            "requests": every.requests,
            "bytes": every.bytes,
            "retries": every.retries,
            "hedges": every.hedges,
            "answers_seconds": round(every.wait_seconds, 6),
        }

    def _add_pages(self, facts: dict[str, Any]) -> None:
        pages = PAGES.since(self._pages)
        looked = pages["pages_found"] + pages["pages_missed"]
        facts["storage"] = self._requested() | {
            "read_waits_seconds": round(pages["wait_seconds"], 6),
            "hit_rate": round(pages["pages_found"] / looked, 4) if looked else None,
            "pages_fetched": int(pages["pages_fetched"]),
            "pages_evicted": int(pages["pages_evicted"]),
            "pages_refetched": int(pages["pages_refetched"]),
        }
        if facts["waited_share"] >= 0.02 and pages["wait_seconds"] > _MUCH * facts["waited_seconds"]:
            facts["verdict"] += "; most of the reading is waiting for storage: see stats()['storage']"
