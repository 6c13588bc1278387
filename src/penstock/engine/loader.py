"""The loader: iterates, saves and restores its position, computes any batch.

Each `for` runs to the end of the current epoch; the next `for` is the next epoch, reshuffled. After leaving a loop
early, the next `for` continues there. The position moves when a batch is taken, not when it is computed ahead.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.cpus import usable_cores
from penstock.core.errors import UsageError
from penstock.core.pickling import Portable
from penstock.engine.auto_threads import RECHECK_MASK, CostMonitor, ThreadTrial
from penstock.engine.batches import Batches
from penstock.engine.ordered_threads import OrderedThreads
from penstock.engine.output import Output
from penstock.engine.rank_guard import refuse_unsharded
from penstock.engine.stages import Part
from penstock.engine.stats import Stats
from penstock.plan import state as states
from penstock.plan.build import build
from penstock.plan.definition import Definition, Mix
from penstock.plan.step_ranges import StepRanges
from penstock.steps.picks import Picks

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.engine.processes.isolated import Isolated

    Items = OrderedThreads | Isolated
    BatchT = TypeVar("BatchT", default=Any)  # a plain `Loader` is a `Loader[Any]`
else:
    from typing import TypeVar

    BatchT = TypeVar("BatchT")

Run = Generator[BatchT, None, None]  # the batches of one `for`
PREFETCH = 3
MAX_BYTES = 512 << 20
THREADED_RANGE_BYTES = 4 << 20  # small batches are computed together up to this many bytes on threads...
INLINE_RANGE_BYTES = 8 << 20  # ...and without threads: what was read should still be in the CPU cache on delivery
ORDER_ROWS = 1 << 18  # rows whose picks are computed together where nothing is read


class Loader(Portable, Generic[BatchT]):
    """Batches of a pipeline. Made by `Pipeline.to_numpy()`, `.to_torch()` and `.to_jax()`."""

    # For the error of a loader that is not sharded: what to add, and what gives every process all rows.
    _shard_line = ".shard() to the pipeline, after the processes have been initialised"
    _share_all_line = ".shard(0, 1)"

    def __init__(
        self,
        definition: Definition,
        output: Output,
        *,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        isolate: bool = False,
        workers: int = 0,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> None:
        batch = definition.batch
        if batch is None:
            raise UsageError(
                f".batch(n) before .to_{output.name}()", got="a pipeline without one", fix="add .batch(32), for example"
            )
        for name, value, least in (
            ("threads", threads, 0), ("prefetch", prefetch, 1), ("max_bytes", max_bytes, 1), ("workers", workers, 0)
        ):  # fmt: skip
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError(f"an integer of at least {least} for {name}=", got=repr(value))
        if not isinstance(isolate, bool) or on_worker_death not in ("raise", "restart"):
            raise UsageError(
                'isolate=True or False and on_worker_death="raise" or "restart"',
                got=f"{isolate!r} and {on_worker_death!r}",
                fix="for n child processes write workers=n",
            )
        self.definition, self.output = definition, output
        self._plan = build(definition)
        if output.memory is not None:
            output.memory.buffers.limit = min(output.memory.buffers.limit, max_bytes)
            self._plan.check_ids(output.memory.ids)
        if (warning := self._plan.warning) is not None:
            warnings.warn(warning, UserWarning, stacklevel=4)  # past the wrapper of `to_*`
        self._rows = batch.rows(definition.world)
        keep = batch.remainder != "drop"
        self._ranges = StepRanges.start(self._plan.root.size, self._rows, keep)
        self._pad = batch.remainder == "pad"
        self._even = False  # whether ranks take the same number of rows of a short batch
        self._workers, self._on_worker_death = workers or int(isolate), on_worker_death
        self._threads = max(1, usable_cores() // self._workers) if threads is None and self._workers else threads
        self._prefetch, self._max_bytes, self._timeout = prefetch, max_bytes, timeout
        self._stats = Stats()
        self._settled: int | None = None  # with threads=None: the number that was found best
        self._step = 0

    def __iter__(self) -> Run[BatchT]:
        refuse_unsharded(self.definition.sharded or self.definition.world > 1, self._shard_line, self._share_all_line)
        stop = self._ranges.epoch_end(self._step)
        return _run(self, stop, *self._begin(self._step, stop, self._threads or self._settled or 0))

    def __len__(self) -> int:
        """Batches in one full epoch."""
        if self._ranges.size is None:
            raise TypeError("an endless loader has no length: add .take(n) before .batch()")
        return self._ranges.steps(self._rows)

    @property
    def step(self) -> int:
        """The number of the next batch, counted over all epochs."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._ranges.at(self._step).epoch

    def batch_at(self, step: int) -> BatchT:
        """Computes the batch of any past or future step. Does not move the loader's position."""
        batch: BatchT = self._work().batches(_step_number(step), step + 1)[0]
        return batch

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """The provenance of a row of this rank's batch `step`: record, offsets and seed."""
        work = self._work()
        picks = work.rows(_step_number(step), row)
        if not len(picks):
            raise UsageError("a row of the batch", got=f"row {row} of step {step}", fix="rows count from 0")
        cut = self._ranges.at(step)
        return {
            "step": step,
            "row": row,
            "epoch": cut.epoch,
            "n": int(picks.column("slot")[0]),
            "record": int(picks.record[0]),
            "pass": int(picks.column("epoch")[0]),
            "refused_before": int(picks.column("tries")[0]),
            "seed": self.definition.seed,
            "from": self._plan.root.explain(picks),
        }

    def records(self) -> Iterator[NDArray[np.int64]]:
        """The record numbers of each batch of this rank, from the current position to the end of the epoch.

        Reads no data. A filter or a bad record may replace some of them when the batch is computed.
        """
        stop = self._ranges.epoch_end(self._step)
        work = self._work()
        step = self._step
        while stop is None or step < stop:
            yield work.order(step).record
            step += 1

    def order(self, start: int, stop: int) -> Iterator[Picks]:
        """The planned picks of steps [start, stop), all ranks' rows in order, in blocks. No data is read."""
        while start < stop:
            end = min(stop, self._ranges.epoch_end(start) or stop, self._ranges.section_end(start))
            first, last = self._ranges.at(start), self._ranges.at(end - 1)
            after = last.offset + last.rows
            for row in range(first.offset, after, ORDER_ROWS):
                yield self._plan.root.pick(np.arange(row, min(after, row + ORDER_ROWS)), first.epoch)
            start = end

    def shard(self, rank: int | None = None, world: int | None = None) -> Self:
        """A copy of this loader for one rank's rows of each batch, as `.shard()` in its pipeline would make it."""
        other = copy.copy(self)
        other._share(rank, world)
        return other

    def _share(self, rank: int | None, world: int | None) -> None:
        """Makes this the loader of one rank, from its position on."""
        definition, size, keep = self.definition.share(rank, world), self._ranges.size, self._ranges.keep
        rows = self._rows if definition.batch is None else definition.batch.rows(definition.world)
        StepRanges.start(size, rows, keep)  # raises if an epoch has no batch
        self._rebuild(definition)
        self._rows, self._ranges = rows, self._ranges.then(self._step, self._ranges.row(self._step), rows)

    def seek_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch."""
        size = self._ranges.size
        if size is None or isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError("an epoch of at least 0 of a loader that has an end", got=repr(epoch))
        self._ranges = StepRanges.start(size, self._rows, self._ranges.keep)
        self._step = epoch * self._ranges.steps(self._rows)

    def next_epoch(self) -> None:
        """Skips the rest of the current epoch; does nothing before an epoch's first batch."""
        end = self._ranges.epoch_end(self._step)
        if end is not None and self._ranges.at(self._step).offset:
            self._step = end

    def state_dict(self) -> dict[str, Any]:
        """The position of the run as plain JSON, under 1 KB, the same on every rank."""
        return states.save(self._plan, self._ranges, self._step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state; world size, threads and batch size may differ from when it was saved."""
        if isinstance(state, dict) and "mix" in state:
            self._rebuild(states.reweighted(self.definition, state["mix"]))
        self._ranges, self._step = states.restore(state, self._plan, self._ranges, self._rows)

    def set_weights(self, weights: Sequence[float]) -> None:
        """Changes the weights of a mixture from the next batch on. Earlier batches stay the same."""
        origin = self.definition.origin
        stages = [
            *(origin.stages if isinstance(origin, Mix) else ()),
            (self._ranges.row(self._step), tuple(weights)),
        ]
        self._rebuild(states.reweighted(self.definition, stages))

    def _rebuild(self, definition: Definition) -> None:
        self.definition, self._plan = definition, build(definition)

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waiting time, a verdict in one sentence, and what an epoch leaves out."""
        facts = self._stats.summary()
        facts["left_out"] = self._plan.left_out(self._rows)
        facts["skipped"] = self._plan.ledger.total
        facts["filtered"] = self._plan.refusals.total
        return facts

    @property
    def ledger(self) -> Any:
        """The skipped records, and why each was skipped."""
        return self._plan.ledger

    def __getstate__(self) -> dict[str, Any]:
        """Definition, output, options and position; the plan is built again where this arrives."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_plan", "_stats")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stats=Stats())
        self._plan = build(self.definition)

    def __repr__(self) -> str:
        threads = "auto" if self._threads is None else self._threads
        lost = self._plan.left_out(self._rows)
        shown = f", left_out={lost}" if lost else ""
        return f"Loader(to={self.output.name}, step={self._step}, threads={threads}{shown})"

    def _work(self) -> Batches:
        return Batches(self._plan, self._ranges, self.output, self._pad, self._stats, self._even)

    def _begin(self, step: int, stop: int | None, threads: int) -> tuple[Items, Callable[[Any], Any] | None]:
        """Starts computing batches [step, stop). Returns the items and the function that completes each, if any."""
        work = self._work()
        if self._workers:
            from penstock.engine.processes.isolated import Isolated

            isolated = Isolated(
                work,
                step,
                stop,
                workers=self._workers,
                threads=threads,
                ahead=self._prefetch,
                max_bytes=self._max_bytes,
                timeout=self._timeout,
                on_death=self._on_worker_death,
            )
            return isolated, None
        ordered = OrderedThreads(
            work.batches if threads else work.read,
            step,
            stop,
            threads=threads,
            ahead=self._prefetch,
            max_bytes=self._max_bytes,
            size_of=self.output.nbytes if threads else _part_bytes,
            range_bytes=THREADED_RANGE_BYTES if threads else INLINE_RANGE_BYTES,
            timeout=self._timeout,
            per_call=work.per_call,
        )
        return ordered, None if threads else work.make


def _run(loader: Loader[BatchT], stop: int | None, items: Items, deliver: Callable[[Any], Any] | None) -> Run[BatchT]:
    """One `for` over a loader, up to batch `stop`. Dropping it, leaving the loop or Ctrl-C ends its threads.

    With `threads=None` batches are computed in the trainer's own thread while that is cheaper than handing them over,
    and on threads otherwise, if they help. The batches are the same.
    """
    clock, stats, at = time.perf_counter, loader._stats, loader._step
    monitor = CostMonitor() if loader._threads is None and loader._settled is None else None
    trial: ThreadTrial | None = None
    watching, move = monitor is not None, -1
    take = iter(items)
    try:
        while True:
            cpu = time.thread_time() if watching else 0.0
            began = clock()
            try:
                batch = next(take)
            except StopIteration:
                return
            if deliver is None:
                now = clock()
            elif at & 7:
                batch = deliver(batch)
                now = clock()
            else:  # one in eight is timed and counted eight times
                middle = clock()
                batch = deliver(batch)
                now = clock()
                stats.delivered(8 * (now - middle))
            at += 1
            loader._step = at
            stats.taken += 1
            stats.waited += now - began
            stats.ended = now
            if stats.began is None:
                stats.began = began
            if monitor is not None and (watching or not at & RECHECK_MASK):
                if watching and monitor.end(now - began, cpu):
                    move = usable_cores()
                    trial, monitor, watching = ThreadTrial(monitor.cost, move), None, False
                else:
                    watching = monitor.watching if watching else monitor.recheck(stats.waited)
            elif trial is not None and (worth := trial.end(now - began)) is not None:
                trial, loader._settled = None, usable_cores() if worth else 0
                move = -1 if worth else 0
            if move >= 0:
                items.close()
                items, deliver = loader._begin(at, stop, move)
                take, move = iter(items), -1
            yield batch
    finally:
        items.close()


def _part_bytes(part: Part) -> int:
    return part.nbytes


def _step_number(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UsageError("a step number of at least 0", got=repr(step), fix="steps count from 0 over all epochs")
    return step
