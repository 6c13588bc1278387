"""The loaders of document 003: the core's row-number loader (`engine.row_loader`) over a dataset.

A dataset with random access is read by record number. One that can only be iterated is iterated once per epoch, and one
that only makes batches is called once per batch: see `datasets.passes`.

Batches are the same with and without threads. At most `prefetch` finished batches wait; leaving the loop, Ctrl-C or an
error ends the threads, and an error in a thread is raised in place of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.engine.loader import Loader, Run
from penstock.engine.loop import Loop
from penstock.engine.output import Output
from penstock.engine.row_loader import RowBatches, row_definition
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.passes import BatchCalls, Passes
from penstock.facades.artifex.datasets.rngs import draws_of, set_draws
from penstock.facades.artifex.loaders.pass_order import PassBatches, Passed, PassOrder
from penstock.plan import state as states
from penstock.steps.base import Step
from penstock.steps.filter import Filter
from penstock.steps.shuffle import Shuffle

Batch = dict[str, Any]
Finish = Callable[[Batch, U64], Batch]


class _Batches:
    """Makes the dataset's own batch of some records, and finishes it with a random key per record."""

    def __init__(self, dataset: BaseDataset, finish: Finish | None, seed: int) -> None:
        self.dataset, self.finish = dataset, finish
        self.base = np.uint64(randomness.key(seed, "finish"))

    def __call__(self, rows: NDArray[np.int64], keys: U64 | None) -> Batch:
        return self.finished(batch_at(self.dataset, rows), keys)

    def finished(self, made: Batch, keys: U64 | None) -> Batch:
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

    _shard_line = ".shard(rank, world) to the loader: loader = loader.shard(rank, world)"

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
        batches = _Batches(data, finish, seed)
        access = data.access()
        keep = data._valid() if access == "index" else None
        order: list[Step] | None = None
        if keep is not None:  # a rejected record is replaced by another, so that batches are full
            order = [*([Shuffle(seed)] if shuffle else []), Filter(keep, batched=True)]
        output: Output = RowBatches(batches, _nbytes)
        self._passes: Passes | None = None
        self._calls: BatchCalls | None = None
        if access != "index":
            reader: Passes | BatchCalls
            if access == "pass":
                reader = self._passes = data._new_passes()
                reader.ahead = threads + prefetch + 2
                order = [PassOrder(seed if shuffle else None, self._passes)]
            else:
                reader = BatchCalls(data._next_batch, len(data), batch_size, drop_last, type(data).__name__)
                self._calls = reader
                order = [PassOrder()]
            output = PassBatches(data, reader, batches.finished, _nbytes)
        definition = row_definition(
            data if access == "index" else Passed(data),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            recipe=f" {recipe}",
            keys=finish is not None,
            order=order,
        )
        super().__init__(definition, output, threads=threads, prefetch=max(1, prefetch))
        self.dataset, self.batch_size, self.shuffle, self.drop_last = data, batch_size, shuffle, drop_last
        self._run: Run | None = None  # what `next(loader)` takes from, and its loop
        self._own: Loop | None = None

    def __next__(self) -> Batch:
        """The next batch of the epoch; StopIteration at its end, and then the next epoch."""
        if self._run is None or self.loop is not self._own:
            self._run = iter(self)
            self._own = self.loop
        try:
            batch: Batch = next(self._run)
        except StopIteration:
            self._run = None
            raise
        return batch

    def _begin(self, step: int, stop: int | None, threads: int) -> Any:
        if self._calls is not None:
            place = self._ranges.at(step)
            self._calls.start(place.epoch * len(self.dataset) + place.offset)
        return super()._begin(step, stop, threads)

    def rewind(self) -> None:
        """Back to the first batch of the first epoch."""
        self._run = None
        self._move(0)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_run": None, "_own": None}

    def state_dict(self) -> dict[str, Any]:
        """The position as plain JSON. Of a dataset that is iterated, also the keys drawn before the current pass."""
        state = super().state_dict()
        if self._passes is None:
            return state
        began = self._passes.began(self.epoch + self._ended)
        return states.write(
            "passes", {"loader": state, "draws": draws_of(self.dataset.rngs) if began is None else began}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state. A dataset that is iterated is iterated again up to there."""
        self._run = None
        if self._passes is None:
            super().load_state_dict(state)
            return
        saved = states.read(state, "passes")
        counts = states.counts(saved.get("draws"), "draws")
        super().load_state_dict(saved.get("loader"))  # type: ignore[arg-type]
        self._passes.forget()
        set_draws(self.dataset.rngs, counts)


@explained_class
class PrefetchDataLoader(DatasetLoader):
    """A loader whose batches are prepared on `num_workers` threads; 0 prepares them when asked.

    A new `for` after leaving one early starts the epoch anew; after `load_state_dict` it continues there. The short
    batch at the end of an epoch is kept unless `drop_last`.

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
        self._resumed = False

    def __iter__(self) -> Run:
        if not self._resumed:
            self.seek_epoch(self.epoch)
        self._resumed = False
        return super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumed = True

    @cached_property
    def queue(self) -> Queue[Any]:
        """An empty queue of `prefetch_size` places, for code that looks at one: batches do not pass through it."""
        return Queue(maxsize=self.prefetch_size)

    def __getstate__(self) -> dict[str, Any]:
        """A copy continues where this loader is."""
        state = super().__getstate__() | {"_resumed": True}
        state.pop("queue", None)
        return state


class MultiEpochLoader:
    """`(epoch, batch)` for `num_epochs` epochs, each in its own order. Leaving the loop early keeps the place.

    >>> loader = MultiEpochLoader(DatasetLoader([{"x": 1}, {"x": 2}], 2), num_epochs=3)
    >>> [epoch for epoch, batch in loader]
    [0, 1, 2]
    """

    def __init__(self, loader: DatasetLoader, num_epochs: int) -> None:
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 0:
            raise UsageError("num_epochs of at least 0", got=repr(num_epochs), fix="num_epochs=10")
        self.loader, self.num_epochs = loader, num_epochs

    def shard(self, rank: int | None = None, world: int | None = None) -> MultiEpochLoader:
        """A copy for one rank's rows of each batch."""
        return MultiEpochLoader(self.loader.shard(rank, world), self.num_epochs)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self.loader.epoch >= self.num_epochs:
            self.loader.rewind()
        while (epoch := self.loader.epoch) < self.num_epochs:
            for batch in self.loader:
                yield epoch, batch

    def __len__(self) -> int:
        """Batches in all epochs."""
        return len(self.loader) * self.num_epochs

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


@explained_call
def create_simple_data_loader(
    dataset: Any, batch_size: int, shuffle: bool = True, drop_last: bool = False, *, seed: int = 0
) -> DatasetLoader:
    """Batches of every record once. `drop_last` leaves out a last batch that would be short.

    >>> loader = create_simple_data_loader([{"x": i} for i in range(5)], batch_size=2)
    >>> sorted(x for batch in loader for x in batch["x"].tolist())
    [0, 1, 2, 3, 4]
    """
    return DatasetLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)


@explained_call
def create_multi_epoch_data_loader(
    dataset: Any, batch_size: int, num_epochs: int, shuffle: bool = True, drop_last: bool = False, *, seed: int = 0
) -> MultiEpochLoader:
    """`(epoch, batch)` over `num_epochs` epochs, reshuffled each time."""
    return MultiEpochLoader(
        DatasetLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed), num_epochs
    )
