"""`DataLoaderBuilder`: builds a DataLoader from one setting per call; `build()` checks all of them together.

It returns a real `torch.utils.data.DataLoader` with `state_dict` and `load_state_dict`: for map-style datasets one over
the core (threads, one call per batch), for `StreamingPreprocessedDataset` one whose batches do not depend on the number
of workers. Any other IterableDataset, and a subclass with its own `__iter__`, gets torch's own DataLoader, which has
no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.argument_kinds import is_integer
from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.core.signals import surface
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.torch_data.framework import can_pin, data
from penstock.torch_data.map_rows import map_dataloader
from penstock.torch_data.stream_loader import PositionStream, StreamDataLoader
from penstock.torch_data.user_objects import collate_of, is_map_style, overrides

PREFETCH = 3


@explained_class
class DataLoaderBuilder:
    """Each call returns the builder; nothing is checked, opened or started before `build()`.

    >>> loader = (DataLoaderBuilder()
    ...     .with_dataset([{"x": i} for i in range(10)])
    ...     .with_batch_size(2)
    ...     .with_distributed(rank=1, world_size=2)
    ...     .build())
    >>> [batch["x"].tolist() for batch in loader]
    [[2, 3], [6, 7], [9]]
    """

    def __init__(self) -> None:
        self._dataset: Any = None
        self._batch_size: Any = None
        self._rank: Any = 0
        self._world: Any = 1
        self._distributed = False
        self._workers: Any = 0
        self._pin: Any = False
        self._processes: Any = False
        self._persistent: Any = False
        self._collate: Any = None
        self._shuffle: Any = False
        self._seed: Any = None
        self._drop_last: Any = False
        self._prefetch: Any = PREFETCH

    def with_dataset(self, dataset: Any) -> DataLoaderBuilder:
        """A torch `Dataset` or `IterableDataset`, or any sequence of rows."""
        self._dataset = dataset
        return self

    def with_batch_size(self, batch_size: int) -> DataLoaderBuilder:
        """Rows per batch on each rank."""
        self._batch_size = batch_size
        return self

    def with_distributed(self, rank: int, world_size: int) -> DataLoaderBuilder:
        """Shards the rows: ranks get different rows and the same number of batches.

        Without `with_drop_last` up to `world_size - 1` rows of the last batch are repeated so that all ranks get the
        same number of rows, as with a `DistributedSampler`. Unlike there, the order is shuffled only after
        `with_shuffle()`.
        """
        self._rank, self._world, self._distributed = rank, world_size, True
        return self

    def with_workers(
        self, num: int, pin_memory: bool = True, *, processes: bool = False, persistent_workers: bool = False
    ) -> DataLoaderBuilder:
        """`num` threads (0: the calling thread), or torch's worker processes with `processes=True`.

        Processes help if rows are made in pure Python. For an IterableDataset workers are always processes. With
        `persistent_workers` they are kept from one epoch to the next. Memory is pinned only if there is a device.
        """
        self._workers, self._pin, self._processes, self._persistent = num, pin_memory, processes, persistent_workers
        return self

    def with_collate(self, collate_fn: Callable[[Any], Any]) -> DataLoaderBuilder:
        """A function from a list of rows to a batch. Default: the dataset's `collate_fn` if it has one, else torch's.

        A function with `at_epoch(epoch)`, such as those of `create_mlm_collate` and `create_fim_collate`, is called
        with the epoch and the row numbers: its random draws differ between epochs, and do not depend on workers or on
        the resume point.
        """
        self._collate = collate_fn
        return self

    def with_shuffle(self, shuffle: bool = True) -> DataLoaderBuilder:
        """A different order each epoch."""
        self._shuffle = shuffle
        return self

    def with_seed(self, seed: int) -> DataLoaderBuilder:
        """The seed of the order. For a stream, pass the seed to the dataset instead."""
        self._seed = seed
        return self

    def with_drop_last(self, drop_last: bool = True) -> DataLoaderBuilder:
        """Drops the last batch if it is not full."""
        self._drop_last = drop_last
        return self

    def with_prefetch(self, batches: int) -> DataLoaderBuilder:
        """Batches prepared ahead (for each worker process, with processes)."""
        self._prefetch = batches
        return self

    def build(self) -> Any:
        """Returns the DataLoader; a `UsageError` lists all wrong settings at once."""
        problems = self._problems()
        if problems:
            raise UsageError(
                "a builder that can build a DataLoader",
                got=f"{len(problems)} problem{'s' * (len(problems) > 1)}",
                where="DataLoaderBuilder.build()",
                fix="".join(f"\n    {n}. {problem}" for n, problem in enumerate(problems, 1)),
            )
        collate = self._collate or collate_of(self._dataset) or data.default_collate
        pin = self._pin and can_pin()
        size, num, prefetch = int(self._batch_size), int(self._workers), int(self._prefetch)
        rank, world = int(self._rank), int(self._world)
        if not isinstance(self._dataset, data.IterableDataset):
            return map_dataloader(
                self._dataset,
                batch_size=size,
                collate_fn=collate,
                shuffle=self._shuffle,
                seed=int(self._seed or 0),
                drop_last=self._drop_last,
                rank=rank,
                world=world,
                sharded=self._distributed,
                threads=num,
                prefetch=prefetch,
                pin=pin,
                processes=num if self._processes else 0,
                persistent=self._persistent,
            )
        options: dict[str, Any] = {"num_workers": num, "pin_memory": pin, "drop_last": self._drop_last}
        if num:
            options |= {"prefetch_factor": prefetch, "persistent_workers": self._persistent}
        dataset = self._dataset
        if not isinstance(dataset, PositionStream):
            return data.DataLoader(dataset, batch_size=size, collate_fn=collate, **options)
        dataset = dataset.shard(rank, world) if self._distributed else dataset
        own = isinstance(dataset, StreamingPreprocessedDataset) and overrides(
            dataset, StreamingPreprocessedDataset, "__iter__"
        )
        make = data.DataLoader if own else StreamDataLoader  # batches cut from positions would not pass through it
        return make(dataset, batch_size=size, collate_fn=collate, **options)

    def _problems(self) -> list[str]:
        found = [
            *self._number("with_batch_size", "batch_size", self._batch_size, 1, "32"),
            *self._number("with_workers", "num", self._workers, 0, "0"),
            *self._number("with_prefetch", "batches", self._prefetch, 1, "3"),
            *self._number("with_seed", "seed", 0 if self._seed is None else self._seed, None, "0"),
            *self._flags(),
            *self._rank_problems(),
        ]
        if self._collate is not None and not callable(self._collate):
            found.append(
                f"with_collate: expected a function from a list of rows to a batch, got {self._collate!r}; "
                "use create_collate_fn(pad_token_id=...)"
            )
        return [*self._dataset_problems(), *found, *self._size_problems()]

    def _number(self, verb: str, name: str, value: Any, least: int | None, example: str) -> list[str]:
        if value is None:
            return [f"{verb}: not called; call .{verb}({example})"]
        wrong = not is_integer(value) or (least is not None and value < least)
        kind = "an integer" + ("" if least is None else f" of at least {least}")
        return [f"{verb}: expected {name} to be {kind}, got {value!r}; for example .{verb}({example})"] if wrong else []

    def _flags(self) -> list[str]:
        flags = {
            "with_shuffle": self._shuffle,
            "with_drop_last": self._drop_last,
            "with_workers(pin_memory=)": self._pin,
            "with_workers(processes=)": self._processes,
            "with_workers(persistent_workers=)": self._persistent,
        }
        found = [f"{k}: expected True or False, got {v!r}" for k, v in flags.items() if not isinstance(v, bool)]
        if self._processes is True and self._workers == 0:
            found.append(
                "with_workers: processes=True with num=0; pass the number of processes, or leave processes out"
            )
        processes = self._processes is True or isinstance(self._dataset, data.IterableDataset)
        if self._persistent is True and (not processes or self._workers == 0):
            found.append("with_workers: persistent_workers=True without processes; add processes=True and their number")
        return found

    def _rank_problems(self) -> list[str]:
        numbers = {"rank": self._rank, "world_size": self._world}
        found = [
            f"with_distributed: expected {name} to be an integer, got {value!r}"
            for name, value in numbers.items()
            if not is_integer(value)
        ]
        if not found and self._world < 1:
            found.append(f"with_distributed: expected world_size of at least 1, got {self._world}")
        elif not found and not 0 <= self._rank < self._world:
            found.append(
                f"with_distributed: expected rank from 0 to {self._world - 1}, got {self._rank}; ranks count from 0"
            )
        return found

    def _dataset_problems(self) -> list[str]:
        dataset = self._dataset
        if dataset is None:
            return ["with_dataset: not called; call .with_dataset(dataset)"]
        if isinstance(dataset, data.IterableDataset):
            return self._stream_problems()
        if not is_map_style(dataset):
            return [
                f"with_dataset: expected rows by number (len() and [i]) or a torch IterableDataset, got a "
                f"{type(dataset).__name__}; use PreprocessedDataset, or StreamingPreprocessedDataset for an iterable"
            ]
        rows = self._rows()
        if isinstance(rows, str):
            return [rows]
        return [] if rows else ["with_dataset: the dataset is empty; check how it was loaded or filtered"]

    def _rows(self) -> int | str:
        """The number of rows of the dataset, or the problem with its len()."""
        try:
            return len(self._dataset)
        except Exception as error:
            surface(error)
            said = f"{type(error).__name__}: {str(error)[:200]}"
            return f"with_dataset: expected len() of the dataset to return its number of rows, got {said}"

    def _stream_problems(self) -> list[str]:
        found = []
        stream = self._dataset if isinstance(self._dataset, PositionStream) else None
        if self._shuffle:
            where = "the dataset itself" if stream is None else "StreamingPreprocessedDataset(buffer_size=1000)"
            found.append(f"with_shuffle: a stream cannot be permuted; shuffle in a buffer, in {where}")
        if is_integer(self._seed) and self._seed != getattr(self._dataset, "seed", None):
            where = (
                "the dataset itself" if stream is None else "StreamingPreprocessedDataset(buffer_size=1000, seed=...)"
            )
            found.append(f"with_seed: it does not decide the order of a stream; pass the seed to {where}")
        if self._distributed and stream is None:
            found.append(
                f"with_distributed: a {type(self._dataset).__name__} cannot be sharded among ranks here; "
                "wrap its records in StreamingPreprocessedDataset, or shard it before"
            )
        own = None if stream is None or stream.rank is None else (stream.rank, stream.world_size)
        if self._distributed and own is not None and own != (self._rank, self._world):
            found.append(
                f"with_distributed: rank {self._rank} of {self._world}, but the dataset has {own[0]} of {own[1]}; "
                "set them in one place"
            )
        return found

    def _size_problems(self) -> list[str]:
        numbers = (self._batch_size, self._world)
        if self._drop_last is not True or not all(is_integer(number) and number > 0 for number in numbers):
            return []
        if isinstance(self._dataset, data.IterableDataset) or not is_map_style(self._dataset):
            return []
        rows, size = self._rows(), self._batch_size * self._world
        if isinstance(rows, str) or not 0 < rows < size:
            return []
        return [
            f"with_drop_last: {rows} rows make no full batch of {self._batch_size} on each of {self._world} ranks; "
            "use a smaller batch, or leave with_drop_last out"
        ]
