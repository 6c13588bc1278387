"""The core's order as a torch batch sampler, and a rank's share of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.engine.output import Output
from penstock.pipeline import Pipeline
from penstock.torch_data.accelerate import refuse_second_deal
from penstock.torch_data.epoch_collate import KeyedRows
from penstock.torch_data.loaders import data


def share(count: int, rank: int, world: int) -> NDArray[np.int64]:
    """Which of a global batch's `count` rows a rank takes: as many as every other rank.

    Where ranks cannot share the last batch equally, some of its rows are given twice, fewer than there are ranks.

    >>> [share(6, rank, 2).tolist() for rank in range(2)], [share(5, rank, 3).tolist() for rank in range(3)]
    ([[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 0]])
    """
    each = -(-count // world)
    return np.arange(rank * each, (rank + 1) * each, dtype=np.int64) % count


class RowNumbers:
    """A source of the numbers of a dataset's rows; what they hold is read by whoever makes the batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.dataset if isinstance(dataset, KeyedRows) else dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {"row": np.asarray(indices, np.int64)}

    def fingerprint(self) -> str:
        """The dataset's own, where it has one; else its kind and length."""
        own = getattr(self.dataset, "fingerprint", None)
        kind = type(self.dataset)
        return str(own()) if callable(own) else f"{kind.__module__}.{kind.__qualname__}:{len(self)}"

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self.dataset).__name__, "records": len(self)}

    def locate(self, index: int) -> dict[str, Any]:
        place = getattr(self.dataset, "locate", None)
        return {"row": int(index)} | ({"record": place(int(index))} if callable(place) else {})


@dataclass(frozen=True)
class Share:
    """Rows of a dataset in the core's order, of which rank `rank` of `world` takes a part."""

    dataset: Any
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def loader(self, batch_size: int, drop_last: bool, output: Any, **options: Any) -> Loader:
        """Global batches of row numbers, for an output that makes the rank's batch of them."""
        rows = Pipeline(RowNumbers(self.dataset))
        rows = rows.shuffle(self.seed) if self.shuffle else rows
        rows = rows.batch(batch_size * self.world, remainder="drop" if drop_last else "short")
        return Loader(rows.definition, output, **options)

    def first(self, epoch: int) -> int:
        """What is added to the row numbers of an epoch: see `outputs.keyed`."""
        return epoch * len(self.dataset) if isinstance(self.dataset, KeyedRows) else 0

    def of(self, numbers: NDArray[np.int64], first: int) -> list[int]:
        """The rank's part of a global batch."""
        mine: list[int] = (numbers[share(len(numbers), self.rank, self.world)] + first).tolist()
        return mine


class Numbers(Output):
    """An output that gives the row numbers of the rank's batch: others make the batch, only the place is wanted."""

    name = "torch"

    def __init__(self, part: Share) -> None:
        self.part = part

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> Any:
        return self.part.of(np.asarray(columns["row"]), 0)

    def nbytes(self, batch: Any) -> int:
        return 64


class ShareSampler(data.Sampler):  # type: ignore[misc]
    """Lists of row numbers of this rank, from the loader's place to the end of the epoch.

    Trainers that take a DataLoader apart build it again from this; they tell the epoch through `set_epoch`. Some build
    the sampler again too, as they would torch's BatchSampler: from its `sampler`, which here is itself.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, loader: Loader | None = None) -> None:
        self.part = _part_of(sampler)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.loader = loader or self.part.loader(batch_size, drop_last, Numbers(self.part), threads=0)
        self.restored = False  # whether the place comes from a saved state, and nothing was taken since

    def __iter__(self) -> Iterator[list[int]]:
        fix = "leave out with_distributed: Accelerate deals out the batches"
        refuse_second_deal(self.part.rank, self.part.world, fix)
        return self._lists()

    def _lists(self) -> Iterator[list[int]]:
        self.restored = False
        first = self.part.first(self.loader.epoch)
        for numbers in self.loader.records():
            yield self.part.of(numbers, first)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> ShareSampler:
        """Itself: where trainers look for the thing that has a `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch, as with a DistributedSampler; only a place just restored in that epoch is kept."""
        if not self.restored or epoch != self.loader.epoch:
            self.loader.seek_epoch(epoch)
            self.restored = False


def _part_of(sampler: Any) -> Share:
    if isinstance(sampler, Share):
        return sampler
    if isinstance(sampler, ShareSampler):
        return sampler.part
    if isinstance(sampler, data.SequentialSampler):
        return Share(sampler.data_source)
    raise UsageError(
        "a DataLoader that keeps its own order",
        got=f"a {type(sampler).__name__} put in its place",
        where="a DataLoader of DataLoaderBuilder, taken apart by a trainer on several devices",
        fix="Trainer(use_distributed_sampler=False), and .with_distributed(rank, world_size) on the builder",
    )
