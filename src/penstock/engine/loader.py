"""The loader: iterates, saves and restores its position, computes any batch.

Each `for` runs to the end of the current epoch; the next `for` is the next epoch, reshuffled. After leaving a loop
early, the next `for` continues there. The position moves when a batch is taken, not when it is computed ahead.

A change of position or weights inside a running `for` takes effect at its next batch: what was computed ahead is thrown
away. So it does where a signal handler or another thread makes it while that batch is computed.
A loader has one position, so a new `for` ends the one before it: taking another batch from that one raises.
"""

from __future__ import annotations

import copy
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from penstock.core.arguments import explained_class
from penstock.core.cpus import usable_cores
from penstock.core.errors import ArgumentError, LimitError, NoSuchVerb, StateError, UsageError
from penstock.core.ledger import Ledger
from penstock.core.pickling import Portable
from penstock.engine import stalls
from penstock.engine.batches import Batches
from penstock.engine.iterate import iterate
from penstock.engine.loop import Loop
from penstock.engine.moving import Experience, Loss, child_threads
from penstock.engine.ordered_threads import OrderedThreads
from penstock.engine.output import Output
from penstock.engine.prefetch import Ahead, FetchingAhead, Prefetcher, is_paged
from penstock.engine.provenance import Provenance
from penstock.engine.rank_guard import refuse_unsharded
from penstock.engine.recorded import Recorded
from penstock.engine.rows_ahead import RowsAhead, ranges_of
from penstock.engine.stats import Stats
from penstock.engine.storage_stats import StorageStats
from penstock.engine.tuples import TupleOutput
from penstock.markup.notebook import Facts
from penstock.order.shuffle import LARGEST
from penstock.plan import state as states
from penstock.plan.branches import Mix
from penstock.plan.build import Plan, build
from penstock.plan.definition import Definition
from penstock.plan.same_step import refuse_different_steps
from penstock.plan.step_ranges import StepRanges, step_number

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.engine.moving import Child
    from penstock.engine.processes.isolated import Isolated
    from penstock.engine.processes.standby import Standby

    Items = OrderedThreads | Isolated | FetchingAhead | Child
    Started = tuple[Items, Iterator[Any], Callable[[Any], Any] | None]  # the third completes each item
    BatchT = TypeVar("BatchT", default=Any)  # a plain `Loader` is a `Loader[Any]`
else:
    from typing import TypeVar

    BatchT = TypeVar("BatchT")

Run = Generator[BatchT, None, None]  # the batches of one `for`
PREFETCH = 3
MAX_BYTES = 512 << 20


@explained_class
class Loader(Provenance, Recorded, Portable, Generic[BatchT]):
    """Batches of a pipeline. Made by `Pipeline.to_numpy()`, `.to_torch()` and `.to_jax()`."""

    # For the error of a loader that is not sharded: what to add, and what passes all rows to every process.
    _shard_line = ".shard() to the pipeline, after the processes have been initialised"
    _share_all_line = ".shard(0, 1)"

    if not TYPE_CHECKING:  # so that type checkers refuse unknown names too

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):  # a property's own AttributeError is not about a name
                return object.__getattribute__(self, name)
            from difflib import get_close_matches

            near = get_close_matches(name, (n for n in dir(type(self)) if n[0] != "_"), 1, 0.8)
            fix = f".{near[0]}" if near else f"verbs of a pipeline come before .to_{self.output.name}()"
            raise NoSuchVerb("a method or attribute of a loader", got=f".{name}", fix=fix)

    def __init__(
        self,
        definition: Definition,
        output: Output,
        *,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        isolate: bool | None = None,
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
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf
        ):
            raise UsageError("seconds above 0 for timeout=", got=repr(timeout)[:80], fix="None waits without a limit")
        if (isolate is not None and not isinstance(isolate, bool)) or on_worker_death not in ("raise", "restart"):
            raise UsageError(
                'isolate=True, False or None, and on_worker_death="raise" or "restart"',
                got=f"{isolate!r} and {on_worker_death!r}",
                fix="for n child processes write workers=n",
            )
        self.definition, self.output = definition, output
        self._plan = build(definition)
        self._code = definition.code_id()  # now, before a run changes global values
        if output.memory is not None:
            output.memory.buffers.limit = min(output.memory.buffers.limit, max_bytes)
            self._plan.check_ids(output.memory.ids)
        if (warning := self._plan.warning) is not None:
            warnings.warn(warning, UserWarning, stacklevel=5)  # past the wrappers of `to_*` and of the class
        self._rows = batch.rows(definition.world)
        keep = batch.remainder != "drop"
        self._ranges = StepRanges.start(self._plan.root.size, self._rows, keep)
        self._pad = batch.remainder == "pad"
        self._even = False  # whether ranks take the same number of rows of a short batch
        self._workers, self._on_worker_death = workers or int(isolate or 0), on_worker_death
        if threads is None and (self._workers or timeout is not None):
            threads = max(1, usable_cores() // max(1, self._workers))
        self._threads = threads
        self._prefetch, self._max_bytes, self._timeout = prefetch, max_bytes, timeout
        self._stats, self._storage = Stats(), StorageStats()
        # Records that are requested for many steps at a time: a child, or another number of threads in the middle of
        # an epoch, would request those of each step again.
        ahead = bool(ranges_of(self._plan))
        self._may_move = threads is None and isolate is None and not ahead
        self._known = Experience()
        # With threads=None: the number that was found best. Storage is waited for on a thread from the start.
        waits = ahead or (is_paged(self._plan) and self._plan.predictable)
        self._settled = 1 if threads is None and waits else None
        self._step = 0
        self._ended = False  # the last batch of an epoch was taken, and the `for` over that epoch has not ended
        self.moves = 0  # how often the position or the weights were changed, other than by taking a batch
        self._no_loops()

    def _no_loops(self) -> None:
        self.loop: Loop | None = None  # the running `for`, which moves the position
        self._detached: weakref.WeakSet[Loop] = weakref.WeakSet()  # older ones that still deliver batches
        self.changing = threading.RLock()  # held while the position or the weights change

    @contextmanager
    def _change_of_place(self) -> Iterator[None]:
        """Around a change of position or weights: no `for` delivers a batch meanwhile, and all begin again after it."""
        with self.changing:
            self.moves += 1
            yield

    def __iter__(self) -> Run[BatchT]:
        refuse_unsharded(self.definition.sharded or self.definition.world > 1, self._shard_line, self._share_all_line)
        return self._start()

    def _start(self, *, independent: bool = False) -> Run[BatchT]:
        """What a `for` iterates. If `independent`, a newer one does not end it: it goes on without moving the position.

        Meanwhile there is no position to save: `state_dict` raises.
        """
        with self._change_of_place():
            if self.loop is not None and self.loop.started:
                self._ended = False  # the loop that took the last batch of an epoch is left
            moves, self.loop = self.moves, (loop := Loop(independent))
        self._prepare_recording()
        at, stop = self._step, self._loop_end()
        run = iterate(self, loop, moves, at, stop, self._begin(at, stop, self._threads or self._settled or 0))
        loop.run = weakref.ref(run)
        return run

    def _loop_end(self) -> int | None:
        """The step before which a `for` from the current position ends."""
        return self._step if self._ended else self._ranges.epoch_end(self._step)

    def _follows(self, loop: Loop) -> bool:
        """Called when something changed since the last batch of a `for`: whether it goes on at the loader's position.

        If a newer one has begun it does not: it raises, or goes on by itself.
        """
        if self.loop is loop:
            return True
        loop.detach()
        self._detached.add(loop)
        return False

    def _left(self, loop: Loop, moves: int, _unwatch: Callable[..., None] = stalls.unwatch) -> None:
        """A `for` has ended or was left; `moves` is what it had followed. At interpreter exit modules may be gone."""
        _unwatch(loop.run)
        self._end_recording()
        self._detached.discard(loop)
        if self.loop is loop:
            self.loop = None
            if self.moves == moves:
                self._ended = False

    def close(self) -> None:
        """Ends a running `for` and its threads and processes. The position stays: a new `for` continues there.

        Leaving the loop does the same once nothing refers to its iterator; `with loader:` does it at the end.
        """
        for loop in (self.loop, *self._detached):
            run = None if loop is None else loop.run()
            if run is not None:
                run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getitem__(self, place: Any) -> None:
            raise ArgumentError(
                "a loop over a loader: it makes batches itself",
                got=f"loader[{place!r}], as a DataLoader around it does",
                fix="for batch in loader: ...; loader.batch_at(step); or pipeline.to_dataset() for a DataLoader",
            )

    def _move(self, step: int, ended: bool = False) -> None:
        """Changes the position; a running `for` continues there."""
        with self._change_of_place():
            self._step, self._ended = step, ended

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
        """The epoch of the next batch; after the last batch of an epoch still that epoch, until its `for` ends."""
        return self._ranges.at(self._step).epoch - self._ended

    def batch_at(self, step: int) -> BatchT:
        """Computes the batch of any past or future step. Does not move the loader's position."""
        batch: BatchT = self._work(single=True).batches(step_number(step), step + 1)[0]
        return batch

    def shard(self, rank: int | None = None, world: int | None = None) -> Self:
        """A copy of this loader for one rank's rows of each batch, as `.shard()` in its pipeline would make it."""
        other = copy.copy(self)
        other._share(rank, world)
        return other

    def as_tuples(self, *names: str) -> Loader[tuple[Any, ...]]:
        """A copy of this loader whose batches are tuples of these columns, for loops and trainers that unpack them.

        >>> import penstock as ps
        >>> numbers = ps.from_arrays({"x": [1, 2], "y": [0, 1]}).batch(2).to_numpy()
        >>> next(iter(numbers.as_tuples("x", "y")))
        (array([1, 2]), array([0, 1]))
        """
        other: Loader[Any] = copy.copy(self)
        other.output = TupleOutput(self.output.converter, names)
        return other

    def _share(self, rank: int | None, world: int | None) -> None:
        """Makes this the loader of one rank, from its position on."""
        definition, size, keep = self.definition.share(rank, world), self._ranges.size, self._ranges.keep
        rows = self._rows if definition.batch is None else definition.batch.rows(definition.world)
        StepRanges.start(size, rows, keep)  # raises if an epoch has no batch
        self._rebuild(definition, None)
        self._rows, self._ranges = rows, self._ranges.then(self._step, self._ranges.row(self._step), rows)
        self._move(self._step, self._ended)

    def seek_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch. A running `for` continues with its first batch."""
        step = self._first_step(epoch)
        with self._change_of_place():
            self._ranges = StepRanges.start(self._ranges.size, self._rows, self._ranges.keep)
            self._move(step)

    def _first_step(self, epoch: int) -> int:
        """The step at which `seek_epoch(epoch)` begins."""
        size = self._ranges.size
        if size is None or isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch * size < LARGEST:
            raise UsageError("an epoch of at least 0 of a loader that has an end", got=repr(epoch)[:80])
        origin = self.definition.origin
        if isinstance(origin, Mix) and origin.drawn and epoch * size < origin.stages[0][0]:
            raise UsageError(
                "an epoch after the first change of weights that the state holds",
                got=f"epoch {epoch}",
                fix="seek in the run that saved the state, or restore an earlier one",
            )
        return epoch * self._ranges.steps(self._rows)

    def next_epoch(self) -> None:
        """Skips the rest of the current epoch, which ends a running `for`; does nothing before an epoch's first batch.

        The next `for` is the next epoch.
        """
        running = self.loop is not None and self.loop.started
        end = self._ranges.epoch_end(self._step)
        if end is not None and not self._ended and self._ranges.at(self._step).offset:
            self._move(end, ended=running)

    def _leave_epoch(self) -> None:
        """Moves to the start of the next epoch, unless the current one has not begun. For a new `for` over it."""
        end = self._ranges.epoch_end(self._step)
        if end is not None and not self._ended and self._ranges.at(self._step).offset:
            self._step = end
        self._ended = False

    def state_dict(self) -> dict[str, Any]:
        """The position of the run as plain JSON, under 1 KB, the same on every rank."""
        if self._detached:
            raise StateError(
                "one `for` over this loader, whose position can be saved",
                got="an older one that took batches after a newer one began",
                fix="save in the newest loop, or use a second loader for the inner one",
            )
        return states.save(self._plan, self._ranges, self._step, self._ended, self._code)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state; world size, threads and batch size may differ from when it was saved.

        A running `for` continues from there.
        """
        refuse_different_steps(self._plan.fingerprint, state, self.definition.world)
        found = states.restore(state, self.definition, self._plan, self._ranges, self._rows, self._code)
        plan = self._plan if found.definition == self.definition else build(found.definition, noted=self._plan)
        with self._change_of_place():  # nothing is called in between: a handler that saves a state sees all or nothing
            self.definition, self._plan, self._ranges = found.definition, plan, found.ranges
            self._step, self._ended = found.step, found.ended

    def set_weights(self, weights: Sequence[float] | Mapping[str, float]) -> None:
        """Changes the weights of a mixture from the next batch on, also in a running `for`; earlier ones stay the same.

        Batches computed ahead with the old weights are thrown away; with child processes, these start again. Of more
        than 16 sources the weights are rounded to float32, as a checkpoint holds them.
        """
        with self._change_of_place():
            origin, row = self.definition.origin, self._ranges.row(self._step)
            before = [stage for stage in origin.stages if stage[0] < row] if isinstance(origin, Mix) else []
            drawn = origin.drawn if isinstance(origin, Mix) else ()
            changed = states.reweighted(self.definition, [*before, (row, weights)], drawn)
            self._rebuild(states.rounded(changed), self._plan)

    def _rebuild(self, definition: Definition, noted: Plan | None) -> None:
        plan = build(definition, noted=noted)
        self.definition, self._plan = definition, plan

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waiting time, a verdict in one sentence, and what an epoch leaves out."""
        facts = Facts(self._stats.summary())
        if beside := self._known.verdict:
            facts["verdict"] += f"; {beside}"
        self._storage.add_to(facts, self._plan)
        facts["left_out"] = self._plan.left_out(self._rows)
        facts["skipped"] = self._plan.ledger.total
        facts["filtered"] = self._plan.refusals.total
        return facts

    @property
    def ledger(self) -> Ledger:
        """The skipped records, and why each was skipped."""
        return self._plan.ledger

    def __getstate__(self) -> dict[str, Any]:
        """Definition, output, options and position; the plan is built again where this arrives."""
        here = ("_plan", "_stats", "_storage", "_recording", "_known", "loop", "_detached", "changing")
        return {name: value for name, value in self.__dict__.items() if name not in here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stats=Stats(), _storage=StorageStats(), _known=Experience())
        self._no_loops()
        self._plan = build(self.definition)

    def __repr__(self) -> str:
        threads = "auto" if self._threads is None else self._threads
        lost = self._plan.left_out(self._rows)
        shown = f", left_out={lost}" if lost else ""
        return f"Loader(to={self.output.name}, step={self._step}, threads={threads}{shown})"

    def _work(self, single: bool = False) -> Batches:
        return Batches(self._plan, self._ranges, self.output, self._pad, self._stats, self._even, single)

    def _begin(self, step: int, stop: int | None, threads: int) -> Started:
        """Starts computing batches [step, stop)."""
        if not is_paged(self._plan):
            if self._workers or not ranges_of(self._plan):
                return self._compute(self._work(), step, stop, threads)
            return self._fetching(RowsAhead(self._work().again(), step, stop), step, stop, threads)
        return self._fetching(Prefetcher(self._work(), step, stop, self._prefetch + 1), step, stop, threads)

    def _change(self, items: Items, step: int, stop: int | None, threads: int) -> Started:
        """The same with another number of threads, in place of items that were taken up to `step`."""
        if isinstance(items, FetchingAhead):  # what fetches ahead goes on
            items.items.close()
            return self._fetching(items.prefetcher, step, stop, threads)
        items.close()
        return self._begin(step, stop, threads)

    def _fetching(self, prefetcher: Ahead, step: int, stop: int | None, threads: int) -> Started:
        work = self._work()
        prefetcher.serve(work)
        items, take, deliver = self._compute(work, step, stop, threads)
        ahead = FetchingAhead(items, take, prefetcher)
        return ahead, iter(ahead), deliver

    def _compute(self, work: Batches, step: int, stop: int | None, threads: int) -> Started:
        if self._workers:
            from penstock.engine.processes.isolated import Isolated

            isolated = Isolated(
                work, step, stop,
                workers=self._workers,
                threads=threads,
                ahead=self._prefetch,
                max_bytes=self._max_bytes,
                timeout=self._timeout,
                on_death=self._on_worker_death,
            )  # fmt: skip
            return isolated, iter(isolated), None
        eager, late = threads > 0, not threads or work.late
        if self._timeout is not None and not eager:
            threads, late = 1, False  # nobody else could notice that the trainer's own thread hangs
        try:
            ordered = OrderedThreads(
                work.read if late else work.batches,
                step,
                stop,
                threads=threads,
                eager=eager,
                ahead=self._prefetch,
                max_bytes=self._max_bytes,
                size_of=attrgetter("nbytes") if late else self.output.nbytes,
                range_bytes=work.range_bytes(threads),
                timeout=self._timeout,
                per_call=work.per_call,
                range_seconds=work.range_seconds,
                one_size=late or work.one_size,
            )
        except LimitError:
            if self._threads is not None:
                raise
            self._settled = 0  # the system allows no more threads: the trainer's own does the work
            return self._compute(work, step, stop, 0)
        return ordered, iter(ordered), work.make if late else None

    def _why_not_move(self) -> str:
        """Why this loader does not move its work to a child process by itself; "" where it may."""
        if ranges_of(self._plan) or is_paged(self._plan):
            return "what it reads from remote storage is fetched ahead in this process"
        from penstock.engine.processes.can_move import why_not

        return why_not(self.definition, self.output)

    def _standby(self, loss: Loss) -> Standby:
        """Starts a child that can take over in the middle of a `for`."""
        from penstock.engine.processes.standby import Standby

        threads = child_threads(loss, usable_cores())
        return Standby(self._work(), threads=threads, ahead=self._prefetch, max_bytes=self._max_bytes)
