"""Batches out of samples that are remembered: the least recently used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.pickling import Portable
from penstock.facades.artifex.datasets.access import as_dataset
from penstock.facades.artifex.datasets.cursor import Cursor
from penstock.plan import state as states


class CachedLoader(Portable):
    """`get_batch(n)` goes through the dataset in shuffled passes, and asks it only for samples it does not hold.

    `hits` and `misses` count since the beginning. `cache_size` samples are held.

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
        self._cache: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._cursor = Cursor(randomness.key(seed, "cached loader"))
        self._lock = threading.Lock()

    def get_batch(self, batch_size: int | None = None, indices: Any = None) -> dict[str, Any]:
        """The records `indices`, or without them the next `batch_size`."""
        if indices is None:
            chosen = self._cursor.take(0 if batch_size is None else batch_size, len(self.dataset))
        else:
            chosen = self.dataset.check_indices(indices)
        return self.dataset.collate_fn(self._samples(chosen.tolist()))

    def _samples(self, wanted: list[int]) -> list[dict[str, Any]]:
        with self._lock:
            held = {i: self._cache[i] for i in wanted if i in self._cache}
            missing = list(dict.fromkeys(i for i in wanted if i not in held))
            self.hits += len(wanted) - len(missing)
            self.misses += len(missing)
            if missing:
                held.update(zip(missing, self.dataset.samples_at(missing), strict=True))
            for i in wanted:
                self._cache[i] = held[i]
                self._cache.move_to_end(i)
            while len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)
        return [dict(held[i]) for i in wanted]

    def __len__(self) -> int:
        return len(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """The position in the passes; what is cached does not change which records come next."""
        return states.write("dataset", {"position": self._cursor.position})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved position."""
        self._cursor.position = states.number(states.read(state, "dataset"), "position")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"} | {"_cache": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"CachedLoader({len(self._cache)} of {self.cache_size} held)"
