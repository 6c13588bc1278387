"""How a dataset meets the core: the core decides which records make a batch, the dataset makes it.

The core's pipeline runs over record numbers alone, so shuffling, epochs, exact resume, `batch_at`, `why` and ordered
threads are the core's own. The last stage asks the dataset for the batch of those numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.engine.loader import Loader, Run
from penstock.engine.output import Output
from penstock.facades.artifex.datasets.access import as_dataset, batch_at
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.pipeline import Pipeline

Batch = dict[str, Any]
Finish = Callable[[Batch, U64], Batch]


class Numbers:
    """The record numbers of a dataset, as a source with that dataset's identity; `recipe` is what loaders add to it."""

    def __init__(self, dataset: BaseDataset, recipe: str) -> None:
        self.dataset, self.recipe = dataset, recipe

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {"index": np.asarray(indices, np.int64)}

    def fingerprint(self) -> str:
        return f"{self.dataset.fingerprint()} {self.recipe}"

    def describe(self) -> dict[str, Any]:
        return self.dataset.describe()

    def locate(self, index: int) -> dict[str, Any]:
        return self.dataset.locate(index)


class FromDataset(Output):
    """The last stage: record numbers in, the dataset's own batch out."""

    name = "dataset"

    def __init__(self, dataset: BaseDataset, finish: Finish | None, seed: int) -> None:
        self.dataset, self.finish = dataset, finish
        self.base = np.uint64(randomness.key(seed, "finish"))

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> Batch:
        made = batch_at(self.dataset, np.asarray(columns["index"]))
        if self.finish is None:
            return made
        return self.finish(made, randomness.mix64(np.asarray(columns["key"]) ^ self.base))

    def nbytes(self, batch: Batch) -> int:
        return sum(int(getattr(value, "nbytes", 0)) for value in batch.values())


def _with_keys(columns: Columns, keys: U64) -> Columns:
    return {**columns, "key": keys}


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
        pipeline = Pipeline(Numbers(data, recipe))
        if shuffle:
            pipeline = pipeline.shuffle(seed)
        if finish is not None:
            pipeline = pipeline.map_batches(_with_keys, version="keys")
        pipeline = pipeline.batch(batch_size, remainder="drop" if drop_last else "short")
        super().__init__(
            pipeline.definition, FromDataset(data, finish, seed), threads=threads, prefetch=max(1, prefetch)
        )
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
