"""A torch DataLoader over a stream, whose batch n is the same for any number of workers, and which resumes exactly.

`engine.stream_loader` keeps the position; here rows are made and collated, in this process or in torch's workers. A
skipped record leaves its batch one row shorter, so that no other batch changes.

Worker w of W makes global batches w, w + W, ..., and torch returns them in turn. Every worker goes through all
elements; only the one whose turn it is makes rows. Elements of data with random access are numbers, which cost nothing.
Of a stream with lanes each worker reads only its own: see `stream_lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from penstock.core.pickling import with_functions
from penstock.engine.stream_loader import Made, StreamLoader
from penstock.plan.stream_batches import Cut, Placed, Share
from penstock.torch_data.epoch_collate import StreamCollate, collate_at
from penstock.torch_data.framework import data, pinned, torch
from penstock.torch_data.stream_lanes import WorkerLanes, merged
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

    @property
    def lanes(self) -> int:
        """The number of parts that can be read one without another; the lane of a position is its remainder."""
        ...

    def elements(self, start: int, epoch: int, lanes: Sequence[int] | None = None) -> Iterator[Placed]:
        """(position, element) pairs of all ranks, from a position of an epoch on; of some lanes only, if they are
        named."""
        ...

    def rows(self, placed: list[Placed]) -> list[Any]:
        """The rows of such pairs; None for a skipped record."""
        ...

    def locate(self, placed: Placed) -> dict[str, Any]:
        """Where an element comes from."""
        ...

    def total(self) -> int:
        """Positions in an epoch; raises TypeError if unknown."""
        ...

    def origin(self) -> Mapping[str, Any]:
        """What decides order and rows; written into the state."""
        ...

    def check_origin(self, state: dict[str, Any]) -> None:
        """Raises for a state of another stream."""
        ...


class CollatedStream:
    """Collated batches of a `PositionStream`: the `BatchedStream` of the core's loader."""

    def __init__(
        self, dataset: PositionStream, batch_size: int, collate: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.dataset, self.batch_size, self.collate, self.drop_last = dataset, batch_size, collate, drop_last

    def elements(self, start: int, epoch: int) -> Iterator[Placed]:
        return self.dataset.elements(start, epoch)

    def locate(self, placed: Placed) -> dict[str, Any]:
        return self.dataset.locate(placed)

    def origin(self) -> Mapping[str, Any]:
        return self.dataset.origin()

    def check_origin(self, state: dict[str, Any]) -> None:
        self.dataset.check_origin(state)

    def cut(self) -> Cut:
        """How batches are cut. The rank is found when an iteration starts: trainers may shard the rows themselves."""
        rank, world = self.dataset.place()
        return Cut(self.batch_size * world, "drop" if self.drop_last else "repeat", rank, world)

    def make(self, share: Share, epoch: int) -> tuple[Any, int]:
        return self.collated(share.placed, self.dataset.rows(share.placed), epoch), 0

    def make_of_rows(self, share: Share, epoch: int) -> Any:
        """The batch of elements that are a `LaneRow` each."""
        rows = [
            each.value if each.made else self.dataset.rows([(position, each.value)])[0]
            for position, each in share.placed
        ]
        return self.collated(share.placed, rows, epoch)

    def collated(self, placed: list[Placed], made: list[Any], epoch: int) -> Any:
        """The batch of some rows, or None if all of them were skipped."""
        rows = [(position, row) for (position, _), row in zip(placed, made, strict=True) if row is not None]
        if not rows:
            return None
        if is_random(self.collate):
            return collate_at(self.collate, epoch, [position for position, _ in rows], [row for _, row in rows])
        return self.collate([row for _, row in rows])

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


class WorkerBatches(data.IterableDataset):  # type: ignore[misc]
    """The batches that one of torch's workers makes of a stream."""

    def __init__(self, stream: CollatedStream) -> None:
        self.stream = stream
        self.begin = torch.zeros(2, dtype=torch.int64).share_memory_()  # epoch and position; read by persistent workers

    def __iter__(self) -> Iterator[Made]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, start = self.begin.tolist()
        cut = self.stream.cut()
        for number, each in enumerate(cut.rounds(self.stream.elements(start, epoch))):
            if number % workers == worker:
                yield Made(each.next, each.last, *self.stream.make(cut.share(each.placed), epoch))


class StreamDataLoader(data.DataLoader):  # type: ignore[misc]
    """Made by `DataLoaderBuilder`. Each new `for` is the next epoch, as with every DataLoader of the builder; the first
    one after `load_state_dict` resumes in the middle of an epoch. The rest is as in `engine.stream_loader`.

    It is a torch DataLoader over the dataset, with torch's arguments, so that trainers can take it apart and build
    their own from its attributes.
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
        self._stream = CollatedStream(dataset, batch_size, collate, drop_last)
        self.loader = StreamLoader(self._stream, self._stream.cut, self._batches, dataset.epoch)
        self._kept: Any = None  # the inner DataLoader with persistent workers, while nobody iterates it

    def __iter__(self) -> Iterator[Any]:
        self.loader.next_epoch()
        return iter(self.loader)

    def _batches(self, epoch: int, start: int) -> Iterator[Made]:
        """The batches from a position on, from torch's workers if there are any."""
        self.dataset.set_epoch(epoch)
        if not self.num_workers and not self.pin_memory:
            yield from self.loader.batches(epoch, start)
            return
        kind = WorkerLanes if self.num_workers > 1 and self.dataset.lanes > 1 else WorkerBatches
        inner, self._kept = self._kept, None
        if inner is None or not isinstance(inner.dataset, kind):
            options = {name: getattr(self, name) for name in _OPTIONS}
            inner = data.DataLoader(kind(self._stream), batch_size=None, collate_fn=_as_is, **options)
        inner.dataset.begin[0], inner.dataset.begin[1] = epoch, start
        try:
            yield from self._from_lanes(iter(inner), epoch) if kind is WorkerLanes else inner
        finally:
            if self.persistent_workers:
                self._kept = inner

    def _from_lanes(self, items: Iterator[Any], epoch: int) -> Iterator[Made]:
        cut = self._stream.cut()
        for each in cut.rounds(merged(items, self.num_workers)):
            batch = self._stream.make_of_rows(cut.share(each.placed), epoch)
            yield Made(each.next, each.last, pinned(batch) if self.pin_memory else batch)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.loader.epoch

    def __len__(self) -> int:
        """Batches of a complete epoch; raises TypeError if the number of records is unknown."""
        rows, size = self.dataset.total(), self._stream.cut().rows
        return int(rows // size if self.drop_last else -(-rows // size))

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position just restored in that epoch is kept."""
        self.loader.set_epoch(epoch)

    def batch_at(self, step: int) -> Any:
        """The batch of a step, counted over complete epochs, found by reading the stream from its beginning."""
        return self.loader.batch_at(step)

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`."""
        return self.loader.why(step, row)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: a few numbers, the same on every rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state; workers, ranks and batch size may differ from those it was saved with."""
        self.loader.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict; see `StreamLoader.stats`."""
        return self.loader.stats()

    @property
    def skipped(self) -> int:
        """Records skipped so far, over all workers."""
        return int(self.dataset.skipped)


def _as_is(batch: Any) -> Any:
    return batch
