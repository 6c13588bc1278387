"""`StreamingPreprocessedDataset`: a stream of records through a prompt engine, as a torch `IterableDataset`.

The order is one sequence of positions, the same for any number of workers and ranks: the stream's own order, or a
local shuffle by (seed, epoch, position). Reader c of C (workers x ranks) takes positions c, c + C, c + 2C ...: nothing
is lost and nothing comes twice, whatever the counts. Every reader walks the whole stream but only makes the rows of its
own positions; what can be read by number is only read where needed.

A state is a handful of numbers. The shuffle buffer is not in it: what it holds is a function of the position. Going on
costs reading the stream from its beginning, without making rows, up to the place (for an HF or other iterable), or
about buffer_size * log(buffer_size) numbers (for lists, datasets and JSON lines).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from penstock.core import hashing, randomness
from penstock.core.errors import StateError, UsageError
from penstock.core.ledger import Ledger
from penstock.facades.preprocessed.preprocess import Prompted, RowCollate, Skip
from penstock.order.shard import check_rank, find_rank
from penstock.order.shuffle_buffer import shuffled
from penstock.plan import state as states
from penstock.torch_data.accelerate import refuse_sharding_twice, sharded_among
from penstock.torch_data.framework import data, torch
from penstock.torch_data.framework import worker as reader
from penstock.torch_data.stream_input import feed_of
from penstock.torch_data.stream_progress import Layer, from_json, left, settled, to_json
from penstock.torch_data.worker_state import Passes

_COUNTERS = 64  # processes that count skipped records without getting in each other's way

Row = dict[str, Any]


@dataclass
class _Pass:
    """A walk of this process over its positions: reader `worker` of `workers` on a rank, with `turns` of it done."""

    epoch: int
    rank: int
    world: int
    worker: int
    workers: int  # 0 outside of DataLoader workers
    base: list[Layer]  # what was given before it began
    turns: int = 0

    @property
    def readers(self) -> int:
        return max(1, self.workers) * self.world


class StreamingPreprocessedDataset(data.IterableDataset):  # type: ignore[misc]
    """Rows of a stream. Use it in a torch DataLoader with any number of workers, or through `DataLoaderBuilder`.

    `hf_iterable`: a datasets.IterableDataset, any iterable of dicts that can be begun again, a function that gives a
    new iterator, a list, a datasets.Dataset or a JSON-lines path; it may be endless. `buffer_size` above 1 shuffles
    locally. `rank` and `world_size` are found from torch.distributed, JAX or the launcher when left out; a DataLoader
    that Accelerate has prepared, or HF's Trainer made, deals out the records itself and is given all of them.

    A record that the engine skips (it gives None) is left out and counted in `skipped`, over all workers; so is one
    that fails under `skip_errors=True`, and `ledger` names those of this process. `set_epoch` gives another order.

    Every process must be given all records: an iterable that shares itself over DataLoader workers is not shown them.

    `state_dict()` is for iteration in this process, or inside a worker, as torchdata's `StatefulDataLoader` asks for
    it. With workers, `DataLoaderBuilder` gives a DataLoader that keeps an exact state, one for all ranks; for a torch
    DataLoader of your own, `state_after(batches, ...)` is the state by count.

    >>> dataset = StreamingPreprocessedDataset([{"n": i} for i in range(5)], lambda r: {"x": r["n"]}, buffer_size=3)
    >>> sorted(row["x"] for row in dataset)
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        hf_iterable: Any,
        prompt_engine: Callable[..., Any],
        buffer_size: int = 0,
        skip_errors: bool = False,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 0:
            raise UsageError("buffer_size of 0 or more", got=repr(buffer_size), fix="0 keeps the stream's order")
        if (rank is None) != (world_size is None):
            raise UsageError("both rank and world_size, or neither", got=f"rank={rank!r}, world_size={world_size!r}")
        if rank is not None and world_size is not None:
            check_rank(rank, world_size, "StreamingPreprocessedDataset")
        self.feed = feed_of(hf_iterable)
        self.engine = Prompted(prompt_engine, skip_errors)
        self.buffer_size, self.skip_errors, self.seed = buffer_size, skip_errors, int(seed)
        self.rank, self.world_size = rank, world_size
        self._passes = Passes()
        self._told: tuple[int, int, int] | None = None  # the process that sent this here, and the place it found
        self.ledger = Ledger()
        self._counts = torch.zeros(_COUNTERS, dtype=torch.int64).share_memory_()
        self._base: list[Layer] = []  # what was given before the first pass after a restore
        self._mark: dict[str, Any] = {}  # the rank that this is of, if it is of one
        self._restores = 0  # how many restores this copy knows of
        self._kept: tuple[list[Layer], int] | None = None  # a worker's own restored place
        self._pass: _Pass | None = None  # of this process

    # Iteration.

    def __iter__(self) -> Iterator[Row]:
        """The rows of this reader's positions. Only the first pass after `load_state_dict` begins in the middle."""
        rank, world = self.place()  # found at once: every rank is told of a mistake before it waits for others
        if self._restores != self._passes.restores:
            return _too_late(reader()[0])
        return self._mine(self._begun(rank, world))

    def _begun(self, rank: int, world: int) -> _Pass:
        worker, workers, _ = reader()
        base, turns = self._base if self._passes.begin() else [], 0
        if self._kept is not None:
            (base, turns), self._kept = self._kept, None
        self._pass = _Pass(self.epoch, rank, world, worker, workers, base, turns)
        return self._pass

    def _mine(self, walk: _Pass) -> Iterator[Row]:
        """Rows of the turns that are left to one reader; whole rounds of all readers are passed over."""
        mine = walk.worker * walk.world + walk.rank
        layers = [*walk.base, Layer(walk.readers, [walk.turns])]
        for turn, placed in enumerate(self._left(layers), walk.turns * walk.readers):
            if turn % walk.readers == mine:
                walk.turns = turn // walk.readers + 1
                (row,) = self.rows([placed])
                if row is not None:
                    yield row

    def _left(self, layers: list[Layer]) -> Iterator[tuple[int, Any]]:
        """Position and element of what was not given before, in order."""
        start, layers = settled(layers)
        if not layers:
            return self.elements(start)
        return (placed for placed, wanted in zip(self.elements(start), left(layers), strict=False) if wanted)

    def __len__(self) -> int:
        """Records of this rank in a pass, skipped ones counted, where the number of records is known."""
        rank, world = self.place()
        return max(0, -(-(self.total() - rank) // world))

    def total(self) -> int:
        """Records of all ranks in a pass; a TypeError where nobody knows."""
        if not isinstance(self.feed, Sized):
            raise TypeError("a stream has no length")
        return len(self.feed)

    def elements(self, start: int) -> Iterator[tuple[int, Any]]:
        """Position and element of every position from `start` on, for all readers."""
        self.feed.set_epoch(self.epoch)
        return shuffled(self.feed.begin, start, self.buffer_size, randomness.key(self.seed, "stream", self.epoch))

    def rows(self, placed: Sequence[tuple[int, Any]]) -> list[Row | None]:
        """Rows of some positions; None where a record is skipped."""
        out: list[Row | None] = []
        records = self.feed.records([element for _, element in placed])
        for (position, element), record in zip(placed, records, strict=True):
            out.append(self._row(position, element, record))
        return out

    def _row(self, position: int, element: Any, record: Any) -> Row | None:
        made = self.engine(record, lambda: self.feed.name(position, element))
        if not isinstance(made, Skip):
            return made
        worker, workers, _ = reader()
        self._counts[0 if not workers else 1 + worker % (_COUNTERS - 1)] += 1
        self.ledger.add(self.feed.name(position, element), position, made.reason, made.detail)
        return None

    @property
    def skipped(self) -> int:
        """Records skipped so far, by this process and its DataLoader workers."""
        return int(self._counts.sum())

    def place(self) -> tuple[int, int]:
        """Rank and world size of this process; (0, 1) where somebody else gives each rank its share.

        That is the stream itself, or the loader that asks for the rows: see `outputs.dealt`.
        """
        if self.rank is not None and self.world_size is not None:
            fix = "leave out rank and world_size, or with_distributed: Accelerate assigns the records to processes"
            refuse_sharding_twice(self.rank, self.world_size, fix)
            return self.rank, self.world_size
        if self.feed.split:
            refuse_sharding_twice(
                *find_rank(), "leave out split_dataset_by_node: Accelerate assigns the records to processes"
            )
            return 0, 1
        if sharded_among() is not None:
            return 0, 1
        if self._told is not None and self._told[0] != os.getpid():
            return self._told[1:]
        return find_rank()

    def shard(self, rank: int, world_size: int) -> StreamingPreprocessedDataset:
        """The same stream for one rank."""
        check_rank(rank, world_size, "StreamingPreprocessedDataset.shard")
        other = copy.copy(self)
        other.rank, other.world_size = rank, world_size
        other._passes = self._passes.apart()
        return other

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, here and in all workers."""
        return self._passes.epoch

    def set_epoch(self, epoch: int) -> None:
        """Another epoch: another order, from its beginning."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError("an epoch of 0 or more", got=repr(epoch))
        if epoch != self.epoch:
            self._passes.renew(epoch)
            self._base, self._kept, self._pass = [], None, None

    @property
    def collate_fn(self) -> RowCollate:
        """The collate function that `DataLoaderBuilder` takes when it is given none."""
        return RowCollate(self.engine.pad_token_id())

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Where the pass in this process is: a few numbers.

        Where no record can be skipped they are equal on all ranks that have given as many rows. Else each rank has its
        own, since ranks whose records were skipped are further on, and only takes that. In a DataLoader worker it is
        that worker's place, for the same worker of as many, as torchdata's `StatefulDataLoader` keeps it.
        """
        _, workers, _ = reader()
        if not workers and self._passes.workers:
            raise StateError(
                "to be asked where the rows are given out",
                got=f"a pass of {self._passes.workers} DataLoader workers, of which this process knows nothing",
                fix="use state_after(batches, batch_size=..., num_workers=...), a DataLoader of DataLoaderBuilder, or "
                "torchdata's StatefulDataLoader",
            )
        walk = self._pass or _Pass(self.epoch, *self.place(), *reader()[:2], *(self._kept or (self._restored(), 0)))
        if walk.workers:
            own = {"worker": [walk.worker, walk.workers, walk.turns]}
            return self._state(walk.base, walk.epoch) | own | self._owner(walk)
        state = self._state([*walk.base, Layer(walk.world, [walk.turns])], walk.epoch)
        return state | (self._owner(walk) if state["given"] else {})

    def _owner(self, walk: _Pass) -> dict[str, Any]:
        return {"rank": [walk.rank, walk.world]} if walk.world > 1 and self.engine.may_skip else {}

    def state_after(self, batches: int, *, batch_size: int, num_workers: int = 0) -> dict[str, Any]:
        """The state after a torch DataLoader of this dataset has given `batches` batches of the pass now under way.

        torch takes batches from its workers in turn. Every row comes once, as long as none was skipped on any rank,
        with any number of workers and ranks afterwards; the batches are the same too if `batches` is a multiple of
        `num_workers` and that stays.
        """
        if self.skipped:
            raise StateError(
                "no skipped records, for a state by count of batches",
                got=f"{self.skipped} skipped",
                fix="use DataLoaderBuilder, or torchdata's StatefulDataLoader: these count positions, not rows",
            )
        workers = max(1, num_workers)
        given = [-(-max(0, batches - w) // workers) * batch_size for w in range(workers)]
        state = self._state([*self._restored(), Layer(self.place()[1], given)], self.epoch)
        return state | (self._mark if self._restored() else {})

    def _restored(self) -> list[Layer]:
        """What was given before the pass under way, or the next if none is."""
        return self._base if self._passes.restored else []

    def _state(self, layers: list[Layer], epoch: int) -> dict[str, Any]:
        return states.write("stream", {"epoch": epoch, "given": to_json(layers)}, self.origin())

    def origin(self) -> dict[str, Any]:
        """What every state of this stream says of it: what decides the order and what decides the rows."""
        return {"seed": self.seed, "buffer_size": self.buffer_size, **self.identity()}

    def identity(self) -> dict[str, str]:
        """What a state must be of: the engine, and the records where these can be read by number (once, in full)."""
        if not self._passes.records:
            found = self.feed.fingerprint()
            self._passes.records = int(hashing.content_id([found])[:15], 16) if found else -1
        records = {"records": f"{self._passes.records:015x}"} if self._passes.records > 0 else {}
        return {"engine": self.engine.identity[:15]} | records

    def fingerprint(self) -> str:
        """Identity of records, engine and order; records of a stream that cannot be read by number are not in it."""
        return hashing.content_id(["stream", str(sorted(self.identity().items())), self.seed, self.buffer_size])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on from there, with any number of workers and ranks.

        A DataLoader with persistent_workers is made after it.
        """
        state = states.read(state, "stream")
        layers, turns = from_json(state.get("given"), states.UNCHANGED), self._own_turns(state)
        epoch = states.number(state, "epoch")
        self.check_origin(state)
        self._check_owner(state)
        self._pass = None
        if reader()[1]:
            self._kept, self._passes.epoch = (layers, turns), epoch
        else:
            self._base, self._restores = layers, self._passes.restore(epoch)
            self._mark = {"rank": state["rank"]} if "rank" in state else {}

    def check_origin(self, state: dict[str, Any]) -> None:
        """Raises where a state is of another stream."""
        older = "engine" not in state  # such states do not say whose rows they are of
        for name, value in self.origin().items():
            order = name in ("seed", "buffer_size")
            if state.get(name) != value and (order or not older):
                raise StateError(
                    f"a state of a stream with {name}={value}, which decides the {'order' if order else 'rows'}",
                    got=f"{name}={state.get(name)!r}"[:80],
                    fix="make the dataset with the arguments it was saved with (records, engine, schema, skip policy, "
                    "seed, buffer_size); workers and ranks may change",
                )

    def _own_turns(self, state: dict[str, Any]) -> int:
        """How many turns of this worker a state has done; 0 if it is a state of the whole stream."""
        if "worker" not in state:
            return 0
        own = state["worker"]
        numbers = own if isinstance(own, list | tuple) and len(own) == 3 else [None]
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise StateError("a worker as [number, workers, turns]", got=str(own)[:80], fix=states.UNCHANGED)
        worker, workers, _ = reader()
        if [worker, workers] != list(own[:2]):
            here = f"worker {worker} of {workers}" if workers else "a whole stream"
            raise StateError(
                f"a state of {here}",
                got=f"one of worker {own[0]} of {own[1]}",
                fix="restore it with the StatefulDataLoader that it is from, with as many workers",
            )
        return int(own[2])

    def _check_owner(self, state: dict[str, Any]) -> None:
        rank, world = self.place()
        owner = state.get("rank", [rank, world])
        if owner != [rank, world]:
            known = isinstance(owner, list | tuple) and len(owner) == 2
            raise StateError(
                f"a state of rank {rank} of {world}: where records may be skipped, ranks are not equally far",
                got=f"one of rank {owner[0]!r} of {owner[1]!r}"[:80] if known else repr(owner)[:80],
                fix="load on each rank the state that it saved; a DataLoader of DataLoaderBuilder has one for all, and "
                "so has state_after() if no rank has skipped a record",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_told": (os.getpid(), *self.place())}  # workers may not see what this process sees

    def __repr__(self) -> str:
        return (
            f"StreamingPreprocessedDataset(buffer_size={self.buffer_size}, epoch={self.epoch}, {self.skipped} skipped)"
        )


def _too_late(worker: int) -> Iterator[Row]:
    """Raises when asked for a row: torch says nothing of what a worker that lives on raises before that."""
    raise UsageError(
        "load_state_dict before the workers of a DataLoader begin",
        got=f"worker {worker}, which began before it and lives on",
        fix="make a new DataLoader after load_state_dict, or use persistent_workers=False",
    )
    yield {}
