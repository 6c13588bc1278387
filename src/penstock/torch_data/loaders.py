"""`CoreDataLoader`: a real `torch.utils.data.DataLoader` whose batches a penstock `Loader` makes.

Threads instead of worker processes (or torch's own workers, where asked), exact state. Frameworks that take a
DataLoader apart (its dataset, batch sampler and collate function) and put it together again get the same batches: the
sampler yields the same order. `RankRows` says which rows a rank reads: windows of a pipeline (`windows`) or rows of any
map-style dataset (`map_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from penstock.core.errors import UsageError
from penstock.core.pickling import with_functions
from penstock.engine.loader import Loader, Run
from penstock.engine.loop import Loop
from penstock.engine.rank_guard import refuse_unsharded
from penstock.plan.same_step import refuse_different_steps
from penstock.torch_data.accelerate import refuse_sharding_twice, sharded_among
from penstock.torch_data.default_collate import made_batch
from penstock.torch_data.framework import data


@runtime_checkable
class RankRows(Protocol):
    """The rows of one rank in the core's order, and how their batches are made."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def sharded(self) -> bool:
        """Whether rank and world were passed; if not, several processes are refused unless a trainer shards."""
        ...

    @property
    def fix(self) -> str:
        """How to leave out rank and world."""
        ...

    @property
    def lines(self) -> tuple[str, str]:
        """What the user adds to shard the rows, and what to give all rows to every process."""
        ...

    def rebuilt(self) -> RankRows:
        """The same rows for a sampler that a trainer builds again from its attributes."""
        ...

    def open(self, batch_size: int, drop_last: bool) -> Loader:
        """The loader that keeps the position, and makes the batches if `makes_batches`."""
        ...

    def numbers(self, loader: Loader) -> Iterator[list[int]]:
        """Row numbers of this rank's batches, from the loader's position to the end of the epoch."""
        ...

    @property
    def makes_batches(self) -> bool:
        """Whether the loader makes the batches; else torch does, from the numbers."""
        ...

    def begin(self, loader: Loader) -> None:
        """Called before an epoch of batches begins."""
        ...

    def deliver(self, batch: Any) -> Any:
        """A batch of the loader as the dataset's users expect it."""
        ...

    def batch_at(self, loader: Loader, step: int) -> Any: ...

    def why(self, loader: Loader, step: int, row: int) -> dict[str, Any]: ...


class CoreSampler(data.Sampler):  # type: ignore[misc]
    """The batch sampler: row numbers of this rank's batches, from the loader's position to the end of the epoch.

    Trainers that take a DataLoader apart build it again from this, and pass the epoch through `set_epoch`. Some build
    the sampler again too, as they would torch's BatchSampler: from its `sampler`, which here is itself.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, loader: Loader | None = None) -> None:
        self.rows: RankRows = _rows_of(sampler)
        self.batch_size, self.drop_last = batch_size, drop_last
        if loader is None:
            self.rows = self.rows.rebuilt()
            loader = self.rows.open(batch_size, drop_last)
        self.loader = loader
        self.restored = False  # whether the position comes from a saved state, and nothing was taken since
        self.read_elsewhere = False  # whether another DataLoader takes its lists, which do not move the position
        self.wanted: tuple[int, int, int] | None = None  # set inside a `for`: the epoch, and where the loader was

    def __iter__(self) -> Iterator[list[int]]:
        refuse_sharding_twice(self.rows.rank, self.rows.world, self.rows.fix)
        refuse_unsharded(self.rows.sharded or (sharded_among() or 1) > 1, *self.rows.lines)
        self.restored, self.read_elsewhere = False, True
        return iter(self.rows.numbers(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> CoreSampler:
        """Itself: where trainers look for the object that has `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch, as a DistributedSampler does; a position just restored in it is kept.

        A `for` that has taken a batch is not disturbed: the next one begins there.
        """
        self.wanted = None
        loop, running = self.loader.loop, self.loader.epoch
        if self.restored and epoch == running:
            return
        if loop is None or not (loop.started or epoch == running):
            self.loader.seek_epoch(epoch)
            self.restored = False
        else:
            self.loader._first_step(epoch)  # raises if there is no such epoch
            self.wanted = epoch, running, self.loader.step

    def begin(self) -> None:
        """Called before a new `for`: moves to the next epoch, unless another one was set or the position restored."""
        wanted, self.wanted = self.wanted, None
        if wanted is not None:
            epoch, running, step = wanted
            if epoch != running or step == self.loader.step:  # some trainers set it after they took the first batch
                self.loader.seek_epoch(epoch)
                return
        if not self.restored:
            self.loader._leave_epoch()


def _rows_of(sampler: Any) -> RankRows:
    if isinstance(sampler, RankRows):
        return sampler
    if isinstance(sampler, CoreSampler):
        return sampler.rows
    if isinstance(sampler, data.SequentialSampler):
        from penstock.torch_data.map_rows import DatasetRows

        return DatasetRows(sampler.data_source)
    raise UsageError(
        "a DataLoader that keeps its own order",
        got=f"a {type(sampler).__name__} put in its place",
        where="a DataLoader of DataLoaderBuilder, taken apart by a trainer on several devices",
        fix="Trainer(use_distributed_sampler=False), and .with_distributed(rank, world_size) on the builder",
    )


_END = object()


class CoreDataLoader(data.DataLoader):  # type: ignore[misc]
    """A DataLoader with exact resume. Each new `for` is the next epoch, in another order if shuffled; only the first
    one after `load_state_dict` begins in the middle of an epoch.

    It has the arguments of torch's DataLoader, because trainers make another of the same class from its attributes;
    one with another sampler around ours gets its batches from torch, in the same order.
    """

    def __init__(
        self, dataset: Any, batch_sampler: Any, collate_fn: Callable[[Any], Any] | None = made_batch, **options: Any
    ) -> None:
        options.pop("batch_size", None)  # trainers pass all attributes of the loader they copy
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **options)
        # torch leaves a SequentialSampler here, from which nobody could build this loader again.
        object.__setattr__(self, "sampler", batch_sampler)
        # torch leaves False here; Accelerate would then take the last batch of gather_for_metrics for a short one.
        object.__setattr__(self, "drop_last", bool(getattr(batch_sampler, "drop_last", False)))
        # torch leaves None here; code written for a DataLoader of rows reads it.
        object.__setattr__(self, "batch_size", getattr(batch_sampler, "batch_size", None))
        self.loader: Loader = batch_sampler.loader

    def __iter__(self) -> Iterator[Any]:
        sampler = self.batch_sampler
        if isinstance(sampler, CoreSampler):
            refuse_unsharded(sampler.rows.sharded, *sampler.rows.lines)
            sampler.begin()
            return self._batches(*self._begin())
        if not sampler.restored:
            self.loader._leave_epoch()
        return iter(super().__iter__())

    def _begin(self) -> tuple[Run, Iterator[Any] | None, Loop | None, int]:
        """The loader's run from its position, and torch's iterator where torch makes the batches."""
        sampler, loader = self.batch_sampler, self.loader
        made = None
        if sampler.rows.makes_batches:
            sampler.rows.begin(loader)
        else:
            restored = sampler.restored
            made = iter(super().__iter__())
            sampler.restored, sampler.read_elsewhere = restored, False
        run = loader._start(independent=True)
        assert loader.loop is not None
        loader.loop.guided = made is not None
        return run, made, loader.loop, loader.moves

    def _batches(self, run: Run, made: Iterator[Any] | None, loop: Loop | None, moves: int) -> Iterator[Any]:
        """One `for`, which begins again where the position was changed inside it."""
        loader, deliver = self.loader, self.batch_sampler.rows.deliver
        self.batch_sampler.restored = False  # only now: an iterator that is never used changes nothing
        while True:
            if loader.moves != moves and loader.loop is loop:
                run.close()
                run, made, loop, moves = self._begin()
                self.batch_sampler.restored = False
            batch = next(run if made is None else made, _END)
            if batch is _END:
                run.close() if made is None else next(run, None)
                return
            if made is not None and next(run, _END) is _END:  # changed by a signal handler or a thread, meanwhile
                run, made, loop, moves = self._begin()
                self.batch_sampler.restored = False
                continue
            yield deliver(batch) if made is None else batch

    def __len__(self) -> int:
        """Batches of a complete epoch."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position just restored in that epoch is kept."""
        self.batch_sampler.set_epoch(epoch)

    def batch_at(self, step: int) -> Any:
        """The batch of a past or future step (with torch's workers: its row numbers)."""
        return self.batch_sampler.rows.batch_at(self.loader, step)

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`; see `Loader.why`."""
        found: dict[str, Any] = self.batch_sampler.rows.why(self.loader, step, row)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain JSON; see `Loader.state_dict`."""
        if isinstance(self.batch_sampler, CoreSampler) and self.batch_sampler.read_elsewhere:
            raise UsageError(
                "the state of a loader that was iterated over itself",
                got="one whose batches another DataLoader takes, in an order and at a pace of its own",
                where="a loader that Accelerate has prepared, or a DataLoader built from its batch_sampler",
                fix="accelerator.skip_first_batches, or do not prepare the loader and pass rank and world",
            )
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state."""
        rows = self.batch_sampler.rows if isinstance(self.batch_sampler, CoreSampler) else None
        if rows is not None and self.loader.definition.world == 1:  # the rows of a dataset are shared by `RankRows`
            refuse_different_steps(self.loader.definition.fingerprint(), state, rows.world)
        self.loader.load_state_dict(state)
        self.batch_sampler.restored, self.batch_sampler.wanted = True, None

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits and a verdict; see `Loader.stats`."""
        return self.loader.stats()

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)
