"""Windows of a token pipeline as a map-style torch dataset, and the DataLoader over it.

The loader runs the pipeline itself; the dataset answers single rows and complete batches for whoever uses torch's own
DataLoader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.pipeline import Pipeline
from penstock.torch_data.default_collate import DictRow, Rows, accept_made_batches
from penstock.torch_data.framework import data, torch
from penstock.torch_data.loaders import CoreDataLoader, CoreSampler


class WindowDataset(data.Dataset):  # type: ignore[misc]
    """Windows by number; `pair` turns a batch of columns into what this dataset's users expect, `row` one sample."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._rows = pipeline.rows()
        accept_made_batches()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        accept_made_batches()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"window {index} of {n}")
        return self.row(self._tensors([index % n]), 0)

    def __getitems__(self, indices: Any) -> Rows:
        tensors = self._tensors(indices)
        return Rows(self.pair(tensors), lambda i: self.row(tensors, i), len(indices))

    def _tensors(self, indices: Any) -> dict[str, Any]:
        columns = self._rows.read(np.asarray(indices, np.int64))
        return {
            name: torch.from_numpy(np.asarray(column).astype(np.int64, order="C")) for name, column in columns.items()
        }

    def pair(self, tensors: dict[str, Any]) -> Any:
        """A batch as this dataset's users expect it."""
        return tensors

    def row(self, tensors: dict[str, Any], i: int) -> Any:
        """One sample of a batch."""
        return DictRow({name: tensor[i] for name, tensor in tensors.items()})


@dataclass(frozen=True)
class WindowRows:
    """The windows of one rank; the pipeline shards them and makes the batches."""

    dataset: WindowDataset
    shuffle: bool
    seed: int
    rank: int = 0
    world: int = 1
    sharded: bool = False
    pin_memory: bool = False
    threads: int | None = None
    fix = "leave out rank= and world=: Accelerate assigns the batches to processes"
    lines = ("rank= and world=, or prepare the loader with Accelerate", "rank=0, world=1")

    makes_batches = True

    def rebuilt(self) -> WindowRows:
        return self

    def open(self, batch_size: int, drop_last: bool) -> Loader:
        pipeline = self.dataset.pipeline.shuffle(self.seed) if self.shuffle else self.dataset.pipeline
        remainder: Any = "drop" if drop_last else "short"
        pipeline = pipeline.shard(self.rank, self.world) if self.sharded else pipeline
        pipeline = pipeline.batch(per_rank=batch_size, remainder=remainder)
        return pipeline.to_torch(pin_memory=self.pin_memory, threads=self.threads)

    def numbers(self, loader: Loader) -> Iterator[list[int]]:
        return (records.tolist() for records in loader.records())

    def begin(self, loader: Loader) -> None:
        """Windows are the same in every epoch."""

    def deliver(self, batch: Any) -> Any:
        return self.dataset.pair(batch)

    def batch_at(self, loader: Loader, step: int) -> Any:
        return self.dataset.pair(loader.batch_at(step))

    def why(self, loader: Loader, step: int, row: int) -> dict[str, Any]:
        return loader.why(step, row)


def core_dataloader(
    dataset: WindowDataset,
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
    rank: int | None = None,
    world: int | None = None,
) -> CoreDataLoader:
    """The DataLoader over a window dataset. `num_workers` is the number of threads; 0 lets the loader decide.

    `batch_size` is per rank, as everywhere in torch.
    """
    if (rank is None) != (world is None):
        raise UsageError("both rank= and world=, or neither", got=f"rank={rank!r}, world={world!r}")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError("num_workers of 0 or more", got=repr(num_workers), fix="num_workers=0")
    sharded = rank is not None
    rows = WindowRows(dataset, shuffle, seed, rank or 0, world or 1, sharded, pin_memory, num_workers or None)
    sampler = CoreSampler(rows, batch_size, drop_last, rows.open(batch_size, drop_last))
    return CoreDataLoader(dataset, batch_sampler=sampler)
