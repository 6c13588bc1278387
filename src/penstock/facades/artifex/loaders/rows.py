"""`DatasetLoader`: the core's row-number loader (`engine.row_loader`) over the datasets of document 003."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.engine.loader import Loader, Run
from penstock.engine.row_loader import RowBatches, row_definition
from penstock.facades.artifex.datasets.access import as_dataset, batch_at
from penstock.facades.artifex.datasets.base import BaseDataset

Batch = dict[str, Any]
Finish = Callable[[Batch, U64], Batch]


class _Batches:
    """Makes the dataset's own batch of some records, and finishes it with a random key per record."""

    def __init__(self, dataset: BaseDataset, finish: Finish | None, seed: int) -> None:
        self.dataset, self.finish = dataset, finish
        self.base = np.uint64(randomness.key(seed, "finish"))

    def __call__(self, rows: NDArray[np.int64], keys: U64 | None) -> Batch:
        made = batch_at(self.dataset, rows)
        if self.finish is None or keys is None:
            return made
        return self.finish(made, randomness.mix64(keys ^ self.base))


def _nbytes(batch: Batch) -> int:
    return sum(int(getattr(value, "nbytes", 0)) for value in batch.values())


class DatasetLoader(Loader):
    """A loader over a dataset. Each `for` is one epoch, the next one reshuffled; leaving early keeps the place.

    Also `next(loader)`, `len(loader)`, `state_dict()`, `load_state_dict()`, `batch_at(step)`, `why(step, row)`.

    >>> loader = DatasetLoader([{"x": i} for i in range(5)], 2, shuffle=False)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        threads: int = 0,
        prefetch: int = 2,
        finish: Finish | None = None,
        recipe: str = "",
    ) -> None:
        data = as_dataset(dataset)
        if drop_last and len(data) < batch_size:
            raise UsageError(
                f"at least one batch of {batch_size} records",
                got=f"{len(data)} records and drop_last=True",
                where=type(data).__name__,
                fix="a smaller batch_size, or drop_last=False",
            )
        definition = row_definition(
            data,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            recipe=f" {recipe}",
            keys=finish is not None,
        )
        output = RowBatches(_Batches(data, finish, seed), _nbytes)
        super().__init__(definition, output, threads=threads, prefetch=max(1, prefetch))
        self.dataset, self.batch_size, self.shuffle, self.drop_last = data, batch_size, shuffle, drop_last
        self._run: Run | None = None

    def __next__(self) -> Batch:
        """The next batch of the epoch; StopIteration at its end, and then the next epoch."""
        if self._run is None:
            self._run = iter(self)
        try:
            batch: Batch = next(self._run)
        except StopIteration:
            self._run = None
            raise
        return batch

    def rewind(self) -> None:
        """Back to the first batch of the first epoch."""
        self._run, self._step = None, 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_run": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = None
        super().load_state_dict(state)
