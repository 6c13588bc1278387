"""The DataLoader over any map-style dataset, in the order of the core.

The core decides which rows make a global batch and keeps the position; a rank takes its share of the row numbers, asks
the dataset for all of them at once and collates. That happens on threads, or (`processes`) in torch's own workers: the
batches are the same. The state is the core's: under 1 KB, the same on every rank, restored on any world or batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.held_bytes import held_bytes
from penstock.core.pickling import with_functions
from penstock.core.randomness import U64
from penstock.engine.loader import Loader
from penstock.engine.row_loader import RowBatches, row_definition
from penstock.order.shard import equal_rows
from penstock.torch_data.epoch_collate import EpochCollate, EpochRows, SentCollate
from penstock.torch_data.framework import pinned
from penstock.torch_data.loaders import CoreDataLoader, CoreSampler
from penstock.torch_data.user_objects import is_random, rows_of


@dataclass(frozen=True)
class DatasetRows:
    """Rows of a dataset in the core's order, of which rank `rank` of `world` takes a share.

    `collate` makes a batch of them in the loader; without it the loader only counts, and torch makes the batches.
    """

    dataset: Any
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1
    sharded: bool = False
    collate: Callable[[Any], Any] | None = None
    pin: bool = False
    fix = "leave out with_distributed: Accelerate assigns the batches to processes"
    lines = (
        ".with_distributed(rank, world_size), or prepare the loader with Accelerate",
        ".with_distributed(0, 1)",
    )

    @property
    def makes_batches(self) -> bool:
        return self.collate is not None

    def rebuilt(self) -> DatasetRows:
        return replace(self, collate=None)  # a trainer that builds the sampler again lets torch make the batches

    def open(self, batch_size: int, drop_last: bool, threads: int = 0, **options: Any) -> Loader:
        """Global batches of row numbers, and this rank's batches made of them."""
        dataset = self.dataset.dataset if isinstance(self.dataset, EpochRows) else self.dataset
        rows = batch_size * self.world
        definition = row_definition(dataset, rows, shuffle=self.shuffle, seed=self.seed, drop_last=drop_last)
        definition = definition.share(0, 1) if self.sharded else definition  # `of_rank` takes this rank's rows
        return Loader(definition, self.output(0), threads=threads, **options)

    def output(self, epoch: int) -> RowBatches:
        """What makes the batches of an epoch; only random collate functions depend on it."""
        return RowBatches(partial(_make, self, self.first(epoch)), held_bytes)

    def first(self, epoch: int) -> int:
        """What is added to the row numbers of an epoch: see `epoch_collate`."""
        return epoch * len(self.dataset) if isinstance(self.dataset, EpochRows) else 0

    def of_rank(self, numbers: NDArray[np.int64], first: int) -> list[int]:
        """This rank's share of a global batch."""
        mine: list[int] = (numbers[equal_rows(len(numbers), self.rank, self.world)] + first).tolist()
        return mine

    def numbers(self, loader: Loader) -> Iterator[list[int]]:
        first = self.first(loader.epoch)
        return (self.of_rank(numbers, first) for numbers in loader.records())

    def begin(self, loader: Loader) -> None:
        loader.output = self.output(loader.epoch)

    def deliver(self, batch: Any) -> Any:
        return batch

    def batch_at(self, loader: Loader, step: int) -> Any:
        epoch = loader.why(step)["epoch"] if isinstance(self.dataset, EpochRows) and self.collate else 0
        return _at(loader, step, self.output(epoch))

    def why(self, loader: Loader, step: int, row: int) -> dict[str, Any]:
        count = len(_at(loader, step, replace(self, rank=0, world=1, collate=None).output(0)))
        mine = equal_rows(count, self.rank, self.world)
        return loader.why(step, int(mine[row]) if 0 <= row < len(mine) else count) | {"row": row}

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


def _make(rows: DatasetRows, first: int, numbers: NDArray[np.int64], _: U64 | None) -> Any:
    """This rank's batch of a global batch of row numbers; without a collate function, its row numbers."""
    if rows.collate is None:
        return rows.of_rank(numbers, 0)
    made = rows.collate(rows_of(rows.dataset, rows.of_rank(numbers, first)))
    return pinned(made) if rows.pin else made


def _at(loader: Loader, step: int, output: RowBatches) -> Any:
    kept, loader.output = loader.output, output
    try:
        return loader.batch_at(step)
    finally:
        loader.output = kept


def map_dataloader(
    dataset: Any,
    *,
    batch_size: int,
    collate_fn: Callable[[Any], Any],
    shuffle: bool,
    seed: int,
    drop_last: bool,
    rank: int,
    world: int,
    sharded: bool,
    threads: int,
    prefetch: int,
    pin: bool,
    processes: int = 0,
    persistent: bool = False,
    timeout: float | None = None,
) -> CoreDataLoader:
    """The DataLoader, with `threads` threads or `processes` of torch's worker processes."""
    if is_random(collate_fn):
        dataset, collate_fn = EpochRows(dataset), EpochCollate(collate_fn, len(dataset))
    elif processes:
        collate_fn = SentCollate(collate_fn)
    rows = DatasetRows(dataset, shuffle, seed, rank, world, sharded, None if processes else collate_fn, pin)
    loader = rows.open(batch_size, drop_last, threads=0 if processes else threads, prefetch=prefetch, timeout=timeout)
    workers: dict[str, Any] = {}
    if processes:
        workers = {"num_workers": processes, "prefetch_factor": prefetch, "persistent_workers": persistent}
    sampler = CoreSampler(rows, batch_size, drop_last, loader)
    return CoreDataLoader(dataset, batch_sampler=sampler, collate_fn=collate_fn, pin_memory=pin, **workers)
