"""A torch DataLoader over any map-style dataset, in the order of the core, with exact state.

The core decides which rows make a global batch and moves the place; a rank takes its share of the row numbers, asks the
dataset for all of them at once and collates. That happens on threads, or (`processes`) in torch's own workers: the
batches are the same. The state is the core's: under 1 KB, the same on every rank, restored on any world or batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._optional import need
from penstock.columns import Columns
from penstock.engine.loader import Loader
from penstock.outputs.torch_data import data, torch
from penstock.pipeline import Pipeline

_pin = need("torch.utils.data._utils.pin_memory", extra="torch")


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
        self.dataset = dataset

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


class RowsOutput:
    """Makes batches: row numbers -> this rank's share -> the dataset's rows -> collated, and pinned if asked."""

    name = "torch"

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | None, rank: int, world: int, pin: bool) -> None:
        self.dataset, self.collate, self.rank, self.world, self.pin = dataset, collate, rank, world, pin

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def batch(self, columns: Columns) -> Any:
        numbers = np.asarray(columns["row"])
        mine = numbers[share(len(numbers), self.rank, self.world)].tolist()
        if self.collate is None:  # torch's workers make the batch; only the place is wanted here
            return mine
        made = self.collate(rows_of(self.dataset, mine))
        return _pin.pin_memory(made) if self.pin else made

    def nbytes(self, batch: Any) -> int:
        return _nbytes(batch)


def rows_of(dataset: Any, numbers: list[int]) -> Any:
    """Rows of a dataset: in one call where it knows how."""
    many = getattr(dataset, "__getitems__", None)
    return many(numbers) if callable(many) else [dataset[n] for n in numbers]


def _nbytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor | np.ndarray):
        return int(batch.nbytes)
    if isinstance(batch, dict):
        return sum(map(_nbytes, batch.values()))
    return sum(map(_nbytes, batch)) if isinstance(batch, list | tuple) else 64


class ShareSampler(data.Sampler):  # type: ignore[misc]
    """The core's order as a batch sampler, for this rank: lists of row numbers from the loader's place on.

    Trainers that take a DataLoader apart build it again from this; they tell the epoch through `set_epoch`.
    """

    def __init__(self, loader: Loader, rank: int, world: int, batch_size: int, drop_last: bool) -> None:
        self.loader, self.rank, self.world = loader, rank, world
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        for numbers in self.loader.records():
            yield numbers[share(len(numbers), self.rank, self.world)].tolist()

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> ShareSampler:
        """Itself: where trainers look for the thing that has a `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch; does nothing in the middle of it, so that a restored place is kept."""
        if epoch != self.loader.epoch:
            self.loader.seek_epoch(epoch)


class MapDataLoader(data.DataLoader):  # type: ignore[misc]
    """Made by `DataLoaderBuilder`. Each new `for` is the next epoch, in another order if shuffled; the first one after
    `load_state_dict` goes on in the middle."""

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        collate_fn: Callable[[Any], Any],
        shuffle: bool,
        seed: int,
        drop_last: bool,
        rank: int,
        world: int,
        threads: int,
        prefetch: int,
        pin: bool,
        processes: int,
    ) -> None:
        pipeline = Pipeline(RowNumbers(dataset))
        if shuffle:
            pipeline = pipeline.shuffle(seed)
        pipeline = pipeline.batch(batch_size * world, remainder="drop" if drop_last else "short")
        output = RowsOutput(dataset, None if processes else collate_fn, rank, world, pin)
        self.loader = Loader(pipeline.definition, output, threads=0 if processes else threads, prefetch=prefetch)
        self._begun = False
        sampler = ShareSampler(self.loader, rank, world, batch_size, drop_last)
        workers: dict[str, Any] = {"num_workers": processes, "prefetch_factor": prefetch} if processes else {}
        super().__init__(dataset, batch_sampler=sampler, collate_fn=collate_fn, pin_memory=pin, **workers)

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self.loader.next_epoch()
        self._begun = False
        return self._from_workers() if self.num_workers else self._from_threads()

    def _from_threads(self) -> Iterator[Any]:
        for batch in self.loader:
            self._begun = True
            yield batch

    def _from_workers(self) -> Iterator[Any]:
        places = iter(self.loader)
        for batch in super().__iter__():
            next(places)
            self._begun = True
            yield batch

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch, as with a DistributedSampler; keeps a place restored in the middle of that epoch."""
        self.batch_sampler.set_epoch(epoch)
        self._begun = False

    def batch_at(self, step: int) -> Any:
        """The very batch of a past or future step (with torch's workers: its row numbers)."""
        return self.loader.batch_at(step)

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain JSON; see `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state."""
        self.loader.load_state_dict(state)
        self._begun = False

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict; see `Loader.stats`."""
        return self.loader.stats()


def can_pin() -> bool:
    """Whether there is a device to pin memory for."""
    return bool(torch.cuda.is_available() or (hasattr(torch, "accelerator") and torch.accelerator.is_available()))


def is_map_style(dataset: Any) -> bool:
    """Whether rows can be asked for by number."""
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, dict)
