"""A torch DataLoader over any map-style dataset, in the order of the core, with exact state.

The core decides which rows make a global batch and moves the place; a rank takes its share of the row numbers, asks the
dataset for all of them at once and collates. That happens on threads, or (`processes`) in torch's own workers: the
batches are the same. The state is the core's: under 1 KB, the same on every rank, restored on any world or batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.columns import Columns
from penstock.core.optional import need
from penstock.core.pickling import with_functions
from penstock.engine.loader import Loader
from penstock.engine.output import Output
from penstock.torch_data.epoch_collate import KeyedCollate, KeyedRows, SentCollate, is_random, rows_of
from penstock.torch_data.loaders import data, torch
from penstock.torch_data.rank_sampler import Numbers, Share, ShareSampler, share

_pin = need("torch.utils.data._utils.pin_memory", extra="torch")


@dataclass(frozen=True)
class RowsOutput(Output):
    """Makes batches: row numbers -> this rank's share -> the dataset's rows -> collated, and pinned if asked."""

    part: Share
    collate: Callable[[Any], Any]
    pin: bool
    first: int = 0  # see `Share.first`
    name = "torch"

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> Any:
        made = self.collate(rows_of(self.part.dataset, self.part.of(np.asarray(columns["row"]), self.first)))
        return _pin.pin_memory(made) if self.pin else made

    def nbytes(self, batch: Any) -> int:
        return _nbytes(batch)


def _nbytes(batch: Any) -> int:
    if isinstance(batch, torch.Tensor | np.ndarray):
        return int(batch.nbytes)
    if isinstance(batch, dict):
        return sum(map(_nbytes, batch.values()))
    return sum(map(_nbytes, batch)) if isinstance(batch, list | tuple) else 64


class MapDataLoader(data.DataLoader):  # type: ignore[misc]
    """Made by `DataLoaderBuilder`. Each new `for` is the next epoch, in another order if shuffled; the first one after
    `load_state_dict` goes on in the middle.

    It has the arguments of torch's DataLoader, because trainers make another of the same class from its attributes;
    that one gets its batches from torch, in the same order.
    """

    def __init__(
        self, dataset: Any, batch_sampler: Any, collate_fn: Callable[[Any], Any] | None = None, **options: Any
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **options)
        # torch leaves a SequentialSampler here, from which nobody could build this loader again.
        object.__setattr__(self, "sampler", batch_sampler)
        self.loader: Loader = batch_sampler.loader

    def __iter__(self) -> Iterator[Any]:
        if not self.batch_sampler.restored:
            self.loader.next_epoch()
        return self._from_threads() if isinstance(self.loader.output, RowsOutput) else self._from_torch()

    def _from_threads(self) -> Iterator[Any]:
        self.batch_sampler.restored = False
        self.loader.output = self._output(self.loader.epoch)
        yield from self.loader

    def _from_torch(self) -> Iterator[Any]:
        self.batch_sampler.restored = False
        places = iter(self.loader)
        for batch in super().__iter__():
            next(places)
            yield batch

    def _output(self, epoch: int) -> Any:
        output = self.loader.output
        return replace(output, first=output.part.first(epoch)) if isinstance(output, RowsOutput) else output

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch, as with a DistributedSampler; only a place just restored in that epoch is kept."""
        self.batch_sampler.set_epoch(epoch)

    def batch_at(self, step: int) -> Any:
        """The very batch of a past or future step (with torch's workers: its row numbers)."""
        random = isinstance(self.dataset, KeyedRows)
        return self._at(step, self._output(self.loader.why(step)["epoch"] if random else 0))

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`; see `Loader.why`."""
        part: Share = self.batch_sampler.part
        everyone = self._at(step, Numbers(replace(part, rank=0, world=1)))
        mine = share(len(everyone), part.rank, part.world)
        return self.loader.why(step, int(mine[row]) if 0 <= row < len(mine) else len(everyone)) | {"row": row}

    def _at(self, step: int, output: Any) -> Any:
        kept, self.loader.output = self.loader.output, output
        try:
            return self.loader.batch_at(step)
        finally:
            self.loader.output = kept

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain JSON; see `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state."""
        self.loader.load_state_dict(state)
        self.batch_sampler.restored = True

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict; see `Loader.stats`."""
        return self.loader.stats()


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
    threads: int,
    prefetch: int,
    pin: bool,
    processes: int,
    persistent: bool,
) -> MapDataLoader:
    """The DataLoader, with `threads` threads or `processes` of torch's worker processes."""
    if is_random(collate_fn):
        dataset, collate_fn = KeyedRows(dataset), KeyedCollate(collate_fn, len(dataset))
    elif processes:
        collate_fn = SentCollate(collate_fn)
    part = Share(dataset, shuffle, seed, rank, world)
    output = Numbers(part) if processes else RowsOutput(part, collate_fn, pin)
    loader = part.loader(batch_size, drop_last, output, threads=0 if processes else threads, prefetch=prefetch)
    workers: dict[str, Any] = {}
    if processes:
        workers = {"num_workers": processes, "prefetch_factor": prefetch, "persistent_workers": persistent}
    sampler = ShareSampler(part, batch_size, drop_last, loader)
    return MapDataLoader(dataset, batch_sampler=sampler, collate_fn=collate_fn, pin_memory=pin, **workers)


def can_pin() -> bool:
    """Whether there is a device to pin memory for."""
    return bool(torch.cuda.is_available() or (hasattr(torch, "accelerator") and torch.accelerator.is_available()))


def is_map_style(dataset: Any) -> bool:
    """Whether rows can be asked for by number."""
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return by_number and not isinstance(dataset, dict | str | bytes)
