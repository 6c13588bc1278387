"""Windows of a token pipeline as a map-style torch dataset, and the DataLoader over it.

The loader runs the pipeline itself; the dataset answers single rows and complete batches for whoever uses torch's own
DataLoader. Of a subclass with a `__getitem__` or `__len__` of its own, both use that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from penstock.core.errors import ArgumentError, UsageError
from penstock.engine.loader import PREFETCH, Loader
from penstock.pipeline import Pipeline
from penstock.torch_data.default_collate import DictRow, Rows, accept_made_batches, made_batch
from penstock.torch_data.framework import can_pin, data, torch
from penstock.torch_data.loaders import CoreDataLoader, CoreSampler
from penstock.torch_data.map_rows import map_dataloader
from penstock.torch_data.user_objects import overrides


def whole_number(value: Any) -> Any:
    """A float that is a whole number (such as `max_length / 4`) as an int; anything else as it is.

    >>> whole_number(64.0), whole_number(2.5)
    (64, 2.5)
    """
    return int(value) if isinstance(value, float | np.floating) and value == int(value) else value


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

    def __getitems__(self, indices: Any) -> Rows | list[Any]:
        if overrides(self, WindowDataset, "__getitem__"):
            return [self[i] for i in indices]
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
    prefetch: int = PREFETCH
    timeout: float | None = None
    collate: Callable[[Any], Any] | None = None
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
        return pipeline.to_torch(
            pin_memory=self.pin_memory, threads=self.threads, prefetch=self.prefetch, timeout=self.timeout
        )

    def numbers(self, loader: Loader) -> Iterator[list[int]]:
        return (records.tolist() for records in loader.records())

    def begin(self, loader: Loader) -> None:
        """Windows are the same in every epoch."""

    def deliver(self, batch: Any) -> Any:
        if self.collate is None:
            return self.dataset.pair(batch)
        return self.collate([self.dataset.row(batch, i) for i in range(len(batch["input_ids"]))])

    def batch_at(self, loader: Loader, step: int) -> Any:
        return self.deliver(loader.batch_at(step))

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
    **options: Any,
) -> CoreDataLoader:
    """The DataLoader over a window dataset. `num_workers` is the number of threads; 0 lets the loader decide.

    `batch_size` is per rank, as everywhere in torch. `options` are other arguments of torch's DataLoader: see
    `window_options`.
    """
    settings = window_options(options, max(1, num_workers))
    seed = settings.pop("seed", seed)
    if (rank is None) != (world is None):
        raise UsageError("both rank= and world=, or neither", got=f"rank={rank!r}, world={world!r}")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError("num_workers of 0 or more", got=repr(num_workers), fix="num_workers=0")
    if drop_last and 0 < len(dataset) < batch_size * (world or 1):
        raise UsageError(
            f"at least one batch of {batch_size} windows" + (f" on each of {world} ranks" if (world or 1) > 1 else ""),
            got=f"{len(dataset)} windows and drop_last=True",
            fix="a smaller batch_size, or drop_last=False",
        )
    if overrides(dataset, WindowDataset, "__getitem__", "__getitems__", "__len__"):
        return map_dataloader(
            dataset,
            batch_size=batch_size,
            collate_fn=settings.get("collate", made_batch),
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank or 0,
            world=world or 1,
            sharded=rank is not None,
            threads=num_workers,
            prefetch=settings.get("prefetch", PREFETCH),
            timeout=settings.get("timeout"),
            pin=pin_memory and can_pin(),
        )
    rows = WindowRows(
        dataset, shuffle, seed, rank or 0, world or 1, rank is not None, pin_memory, num_workers or None, **settings
    )
    sampler = CoreSampler(rows, batch_size, drop_last, rows.open(batch_size, drop_last))
    return CoreDataLoader(dataset, batch_sampler=sampler, collate_fn=rows.collate or made_batch)


_NO_WORKERS = "leave it out: num_workers are threads of this process, there are no worker processes"
_OWN_ORDER = (
    "shuffle= and seed= decide the order; for another one use torch.utils.data.DataLoader(dataset, sampler=...)"
)

_ARGUMENTS = ("batch_size", "shuffle", "drop_last", "num_workers", "seed", "pin_memory", "rank", "world", "collate_fn",
              "generator", "prefetch_factor", "timeout", "seq_length")  # fmt: skip

# Arguments of torch's DataLoader that cannot be honoured here, and why.
_REFUSED = {"worker_init_fn": _NO_WORKERS, "sampler": _OWN_ORDER, "batch_sampler": _OWN_ORDER}
# Those that change nothing here: threads need no start method, are not started for each epoch, and keep the order.
_WITHOUT_EFFECT = ("persistent_workers", "multiprocessing_context", "pin_memory_device", "in_order")


def window_options(options: dict[str, Any], threads: int) -> dict[str, Any]:
    """The settings of `WindowRows` for further arguments of torch's DataLoader.

    `collate_fn` gets the list of samples of each batch, `generator` is used for its seed, `prefetch_factor` counts
    batches for each thread, `timeout` is in seconds. Others are refused, unless they change nothing or are None.

    >>> window_options({"timeout": 0, "prefetch_factor": 2, "persistent_workers": True}, threads=2)
    {'prefetch': 4}
    """
    made: dict[str, Any] = {}
    for name, value in options.items():
        if name in _WITHOUT_EFFECT and (name != "in_order" or value):
            continue
        if name == "collate_fn":
            made |= {} if value is None else {"collate": value}
        elif name == "generator":
            made |= {} if value is None else {"seed": int(value.initial_seed())}
        elif name == "prefetch_factor":
            made |= {} if value is None else {"prefetch": value * threads}
        elif name == "timeout":
            made |= {"timeout": value} if value else {}
        elif name not in _REFUSED:
            near = [one for one in get_close_matches(name, _ARGUMENTS, 1) if one not in options]
            raise ArgumentError(
                "arguments of create_dataloader or of torch's DataLoader",
                got=f"{name}=",
                fix=f"{near[0]}={value!r}"[:80] + ", or leave it out" if near else "leave it out",
            )
        elif value is not None:
            raise ArgumentError("a DataLoader over windows", got=f"{name}={value!r}"[:80], fix=_REFUSED[name])
    return made
