"""Real `torch.utils.data` objects over the core: `Rows`, `WindowDataset` and `CoreDataLoader`.

A `CoreDataLoader` is a `torch.utils.data.DataLoader` whose batches come from a penstock `Loader`: threads instead of
worker processes, exact state. Frameworks that take a DataLoader apart (its dataset, batch sampler and collate function)
and put it together again get the same batches: the sampler walks the same order and the dataset answers a whole batch
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.engine.loader import Loader
from penstock.pipeline import Pipeline
from penstock.torch_data.accelerate import refuse_second_deal

torch = need("torch", extra="torch", purpose="for DataLoaders")
_collate = need("torch.utils.data._utils.collate", extra="torch")
data = torch.utils.data


class Rows(Sequence[Any]):
    """A batch that is already made, yet looks like the list of samples that a collate function expects."""

    def __init__(self, whole: Any, row: Callable[[int], Any], count: int) -> None:
        self.whole, self._row, self._count = whole, row, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return self._row(index % self._count)


class TupleRow(tuple[Any, ...]):
    """A sample of a `Rows` batch; torch's default collate knows by this type that the batch is already made."""

    __slots__ = ()


class DictRow(dict[str, Any]):
    """The same, for samples that are dicts."""


def whole_batch(batch: Any, **_: Any) -> Any:
    """Collates rows: takes a batch that is already made as it is, and leaves anything else to torch."""
    return batch.whole if isinstance(batch, Rows) else _collate.default_collate([_bare(row) for row in batch])


def _bare(row: Any) -> Any:
    return tuple(row) if isinstance(row, TupleRow) else dict(row) if isinstance(row, DictRow) else row


_collate.default_collate_fn_map[TupleRow] = whole_batch
_collate.default_collate_fn_map[DictRow] = whole_batch


class WindowDataset(data.Dataset):  # type: ignore[misc, name-defined]
    """Windows of a pipeline of tokens as a map-style dataset; `pair` turns (inputs, labels) into a sample."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._rows = pipeline.rows()

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
        """A batch as this dataset gives it."""
        return tensors

    def row(self, tensors: dict[str, Any], i: int) -> Any:
        """One sample of a batch."""
        return DictRow({name: tensor[i] for name, tensor in tensors.items()})


class CoreSampler(data.Sampler):  # type: ignore[misc, name-defined]
    """The loader's own order as a batch sampler: record numbers, one epoch at a time from the loader's place."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        definition = self.loader.definition
        fix = "leave out rank= and world=: Accelerate deals out the batches"
        refuse_second_deal(definition.rank, definition.world, fix)
        return (records.tolist() for records in self.loader.records())

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch, as trainers ask of distributed samplers."""
        self.loader.seek_epoch(epoch)


class CoreDataLoader(data.DataLoader):  # type: ignore[misc, name-defined]
    """A DataLoader whose batches a penstock `Loader` makes. `state_dict` and `load_state_dict` resume exactly.

    As with every DataLoader, each new `iter` begins an epoch (the next one, in another order); only the first one after
    `load_state_dict` goes on in the middle. It has the arguments of torch's DataLoader, because trainers make another
    of the same class from its attributes; one with another sampler around the core's gets its batches from torch.
    """

    def __init__(
        self, dataset: Any, batch_sampler: Any, collate_fn: Callable[[Any], Any] = whole_batch, **options: Any
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **options)
        self.loader: Loader = batch_sampler.loader
        self._restored = False

    def __iter__(self) -> Iterator[Any]:
        if not self._restored:
            self.loader.next_epoch()
        self._restored = False
        if not isinstance(self.batch_sampler, CoreSampler):
            return iter(super().__iter__())
        return map(self.dataset.pair, iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain JSON; see `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state."""
        self.loader.load_state_dict(state)
        self._restored = True

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict; see `Loader.stats`."""
        return self.loader.stats()


def core_dataloader(
    dataset: WindowDataset,
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
    rank: int = 0,
    world: int = 1,
) -> CoreDataLoader:
    """The DataLoader over a window dataset. `num_workers` is the number of threads; 0 lets the loader decide.

    `batch_size` is per rank, as everywhere in torch.
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError("num_workers of 0 or more", got=repr(num_workers), fix="num_workers=0")
    pipeline = dataset.pipeline.shuffle(seed) if shuffle else dataset.pipeline
    pipeline = pipeline.shard(rank, world).batch(per_rank=batch_size, remainder="drop" if drop_last else "short")
    loader = pipeline.to_torch(pin_memory=pin_memory, threads=num_workers or None)
    return CoreDataLoader(dataset, batch_sampler=CoreSampler(loader))
