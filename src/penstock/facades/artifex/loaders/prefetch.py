"""Batches made ahead of time on threads, in the same order as without.

At most `prefetch_size` finished batches wait; the last, shorter batch is kept. Leaving the loop, Ctrl-C or an error
ends the threads. An error in a thread is raised where the batch would have come.
"""

from __future__ import annotations

from typing import Any

from penstock.core.errors import UsageError
from penstock.facades.artifex.loaders.rows import DatasetLoader


class PrefetchDataLoader(DatasetLoader):
    """A loader whose batches are prepared on `num_workers` threads; 0 prepares them when asked.

    >>> loader = PrefetchDataLoader([{"x": i} for i in range(5)], batch_size=2, shuffle=False)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = True,
        num_workers: int = 2,
        prefetch_size: int = 2,
        *,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("num_workers", num_workers, 0), ("prefetch_size", prefetch_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} of at least {least}", got=repr(value), fix=f"{name}=2")
        super().__init__(
            dataset,
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            threads=num_workers,
            prefetch=prefetch_size,
        )
        self.num_workers, self.prefetch_size = num_workers, prefetch_size
