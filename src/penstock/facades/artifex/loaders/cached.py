"""Batches from cached samples; the least recently used are evicted first."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.core import randomness
from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.core.pickling import Portable
from penstock.facades.artifex.datasets.base import as_dataset
from penstock.facades.artifex.datasets.cursor import Cursor
from penstock.facades.artifex.datasets.passes import Passes
from penstock.order.lru_cache import LruCache
from penstock.plan import state as states


@explained_class
class CachedLoader(Portable):
    """`get_batch(n)` returns shuffled epochs of a dataset, and reads only samples that are not cached.

    It caches `cache_size` samples; `hits` and `misses` count the reads that found one and those that did not.

    >>> loader = CachedLoader([{"x": i} for i in range(4)], cache_size=4)
    >>> _ = loader.get_batch(4), loader.get_batch(4)
    >>> loader.hits, loader.misses
    (4, 4)
    """

    def __init__(self, dataset: Any, cache_size: int = 128, *, seed: int = 0) -> None:
        if isinstance(cache_size, bool) or not isinstance(cache_size, int) or cache_size < 1:
            raise UsageError("cache_size of at least 1", got=repr(cache_size), fix="cache_size=128")
        self.dataset = as_dataset(dataset)
        self.cache_size = cache_size
        self.hits = self.misses = 0
        self._cache = LruCache[dict[str, Any]](cache_size)
        self._cursor = Cursor(randomness.key(seed, "cached loader"))
        self._passes = self.dataset._new_passes() if self.dataset.access() == "pass" else None

    def get_batch(self, batch_size: int | None = None, indices: Any = None) -> dict[str, Any]:
        """Returns the records `indices`, or without them the next `batch_size` records."""
        if indices is None:
            count = 0 if batch_size is None else batch_size
            if self.dataset.access() == "batches":
                return self.dataset._next_batch(count)
            if self._passes is not None:
                return self._from_passes(count, self._passes)
            chosen = self._cursor.take(count, len(self.dataset))
        else:
            chosen = self.dataset.check_indices(indices)
        before = self.misses
        samples = [dict(self._cache.get(i, partial(self._sample, i))) for i in chosen.tolist()]
        self.hits += len(samples) - (self.misses - before)
        return self.dataset.collate_fn(samples)

    def _from_passes(self, count: int, passes: Passes) -> dict[str, Any]:
        """The next samples of a dataset that is iterated: those of a pass that are not cached are read from it."""
        turn, rows = self._cursor.take_turns(count, len(self.dataset), passes.window)
        before, samples = self.misses, []
        for one, row in zip(turn.tolist(), rows.tolist(), strict=True):
            samples.append(dict(self._cache.get(row, partial(self._passed, passes, one, row))))
        self.hits += len(samples) - (self.misses - before)
        return self.dataset._batch_of(samples)

    def _passed(self, passes: Passes, turn: int, row: int) -> dict[str, Any]:
        self.misses += 1
        return passes.take(turn, [row])[0]

    def _sample(self, index: int) -> dict[str, Any]:
        self.misses += 1
        return self.dataset.samples_at([index])[0]

    def __len__(self) -> int:
        return len(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position; the cache is not part of it."""
        return states.write("dataset", {"position": self._cursor.position})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved position."""
        self._cursor.position = states.number(states.read(state, "dataset"), "position")

    def __repr__(self) -> str:
        return f"CachedLoader({len(self._cache)} of {self.cache_size} held)"
