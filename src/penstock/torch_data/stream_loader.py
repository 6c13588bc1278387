"""A torch DataLoader over a stream, whose batch n is the same for any number of workers, and which resumes exactly.

The stream's positions are cut into global batches; worker w of W makes batches w, w + W, ..., and torch returns them in
turn. A rank takes its share of each. A skipped record leaves its batch one row shorter, so that no other batch changes.
The state is the number of positions consumed, whatever the workers: it can be restored on another number of them, with
another world size or batch size. Every worker reads the full stream; only the one whose turn it is makes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from penstock.core.pickling import with_functions
from penstock.plan.stream_batches import Placed, StreamPosition, rounds
from penstock.torch_data.epoch_collate import StreamCollate, collate_at
from penstock.torch_data.framework import data, torch
from penstock.torch_data.map_rows import share
from penstock.torch_data.user_objects import is_random

# Options that the outer DataLoader passes on to the inner one.
_OPTIONS = (
    "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator",
)  # fmt: skip


@runtime_checkable
class PositionStream(Protocol):
    """A stream with numbered positions, from which batches can be cut: `StreamingPreprocessedDataset`."""

    seed: int
    rank: int | None
    world_size: int | None

    @property
    def epoch(self) -> int: ...

    @property
    def skipped(self) -> int:
        """Records skipped so far, over all workers."""
        ...

    def set_epoch(self, epoch: int) -> None: ...

    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        ...

    def shard(self, rank: int, world_size: int) -> PositionStream: ...

    def elements(self, start: int) -> Iterator[Placed]:
        """(position, element) pairs of all ranks, from a position on."""
        ...

    def rows(self, placed: list[Placed]) -> list[Any]:
        """The rows of such pairs; None for a skipped record."""
        ...

    def total(self) -> int:
        """Positions in an epoch; raises TypeError if unknown."""
        ...

    def origin(self) -> dict[str, Any]:
        """What decides order and rows; written into the state."""
        ...

    def check_origin(self, state: dict[str, Any]) -> None:
        """Raises for a state of another stream."""
        ...


class BatchStream(data.IterableDataset):  # type: ignore[misc]
    """Complete batches of a stream, each with the position after it and whether it is the last of the epoch."""

    def __init__(
        self, dataset: PositionStream, batch_size: int, collate: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.dataset, self.batch_size, self.collate, self.drop_last = dataset, batch_size, collate, drop_last
        self._begin = torch.zeros(2, dtype=torch.int64).share_memory_()  # shared with persistent workers

    def begin(self, epoch: int, start: int) -> None:
        """Sets where the next iteration starts, in this process and in workers."""
        self._begin[0], self._begin[1] = epoch, start

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)

    def __iter__(self) -> Iterator[tuple[int, bool, Any]]:
        """Position after the batch, whether it is the last of the epoch, and the batch."""
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, world = self.dataset.place()
        epoch, start = self._begin.tolist()
        self.dataset.set_epoch(epoch)
        cut = rounds(self.dataset.elements(start), self.batch_size * world, self.drop_last)
        for number, made in enumerate(cut):
            if number % workers != worker:
                continue
            mine = [made.placed[i] for i in share(len(made.placed), rank, world).tolist()]
            yield made.next, made.last, self._batch(mine, epoch)

    def _batch(self, placed: list[Any], epoch: int) -> Any:
        """The batch of one rank; None if all of its records were skipped."""
        made = zip(placed, self.dataset.rows(placed), strict=True)
        rows = [(position, row) for (position, _), row in made if row is not None]
        if not rows:
            return None
        if is_random(self.collate):
            return collate_at(self.collate, epoch, [position for position, _ in rows], [row for _, row in rows])
        return self.collate([row for _, row in rows])


class StreamDataLoader(data.DataLoader):  # type: ignore[misc]
    """Made by `DataLoaderBuilder`. Each new `for` is the next epoch; the first one after `load_state_dict` resumes in
    the middle of an epoch.

    It is a torch DataLoader over the dataset, with torch's arguments, so that trainers can take it apart and build
    their own from its attributes. Its own batches come from an inner DataLoader over a `BatchStream`.
    """

    def __init__(
        self,
        dataset: PositionStream,
        batch_size: int = 1,
        collate_fn: Callable[[Any], Any] = data.default_collate,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        collate = collate_fn.collate if isinstance(collate_fn, StreamCollate) else collate_fn
        outer = StreamCollate(collate, dataset)
        super().__init__(dataset, batch_size=batch_size, collate_fn=outer, drop_last=drop_last, **options)
        self._stream = BatchStream(dataset, batch_size, collate, drop_last)
        self._inner: Any = None
        self._position = StreamPosition(dataset.epoch, dataset.origin)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._position.epoch

    def __iter__(self) -> Iterator[Any]:
        if self._position.n and not self._position.restored:
            self._position.next_epoch()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        position = self._position
        position.restored = False
        self.dataset.set_epoch(position.epoch)
        self._stream.begin(position.epoch, position.n)
        if self._inner is None or not self.persistent_workers:
            options = {name: getattr(self, name) for name in _OPTIONS}
            self._inner = data.DataLoader(self._stream, batch_size=None, collate_fn=_as_is, **options)
        for after, last, batch in self._inner:
            position.take(after, last)
            if batch is not None:
                yield batch

    def __len__(self) -> int:
        """Batches of a complete epoch; raises TypeError if the number of records is unknown."""
        rows, size = self.dataset.total(), self.batch_size * self.dataset.place()[1]
        return int(rows // size if self.drop_last else -(-rows // size))

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position just restored in that epoch is kept."""
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: a few numbers, the same on every rank."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state; workers, ranks and batch size may differ from those it was saved with."""
        self._position.load_state_dict(state, self.dataset.check_origin)

    @property
    def skipped(self) -> int:
        """Records skipped so far, over all workers."""
        return int(self.dataset.skipped)


def _as_is(batch: Any) -> Any:
    return batch
