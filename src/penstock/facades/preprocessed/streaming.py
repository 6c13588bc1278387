"""`StreamingPreprocessedDataset`: a stream of records through a prompt engine, as a torch `IterableDataset`.

The order is one sequence of positions, the same for any number of workers and ranks: the stream's own order, or a
local shuffle by (seed, epoch, position). Reader c of C (workers x ranks) takes positions c, c + C, c + 2C ...: no
position is lost or read twice, whatever the counts. A reader makes only the rows of its own positions; of data with
random access it reads only its own records.

A Hugging Face stream of several shards is read in lanes (`sources.hf_stream`). Record i of lane g of G has position
i * G + g, so the lanes take turns; where a lane has ended its positions are missing. A reader opens only the lanes that
hold its positions: G / gcd(G, C) of them. A lane is shuffled on its own, with its part of the buffer. Any other
iterable is iterated in full by every reader.

A state is a few numbers. The shuffle buffer is not in it, because its contents are a function of the position. Resuming
costs reading an iterable from its beginning to the position, without making rows, or computing about
buffer_size * log(buffer_size) numbers for lists, datasets and JSON lines.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from heapq import merge
from math import gcd
from operator import itemgetter
from typing import Any

from penstock.core import hashing, randomness
from penstock.core.arguments import explained_class
from penstock.core.errors import StateError, UsageError
from penstock.core.ledger import Ledger
from penstock.facades.preprocessed.preprocess import Preprocess, RowCollate, Skip
from penstock.order.shard import check_rank, find_rank
from penstock.order.shuffle_buffer import shuffled
from penstock.plan import state as states
from penstock.torch_data.accelerate import refuse_sharding_twice, sharded_among
from penstock.torch_data.framework import data
from penstock.torch_data.framework import worker as reader
from penstock.torch_data.stream_input import stream_input
from penstock.torch_data.stream_progress import Layer, from_json, numbered, simplified, to_json
from penstock.torch_data.worker_state import SkipLog, WorkerState

_log = logging.getLogger("penstock")

Row = dict[str, Any]
Placed = tuple[int, Any]


@dataclass
class _Iteration:
    """One iteration of this process over its positions: worker `worker` of `workers` on a rank, after `turns` turns."""

    epoch: int
    rank: int
    world: int
    worker: int
    workers: int  # 0 outside of DataLoader workers
    base: list[Layer]  # consumed before it started
    turns: int = 0

    @property
    def readers(self) -> int:
        return max(1, self.workers) * self.world


@explained_class
class StreamingPreprocessedDataset(data.IterableDataset):  # type: ignore[misc]
    """Rows of a stream. Use it in a torch DataLoader with any number of workers, or through `DataLoaderBuilder`.

    `hf_iterable`: a datasets.IterableDataset, any iterable of dicts that can be iterated again, a function that returns
    a new iterator, a list, a datasets.Dataset or a JSON-lines path; it may be endless. `buffer_size` above 1 shuffles
    locally. `rank` and `world_size` default to those of torch.distributed, JAX or the launcher; a DataLoader that
    Accelerate has prepared, or that HF's Trainer made, shards the records itself and gets all of them.

    A record that the engine skips (it returns None) is left out and counted in `skipped`, over all workers; so is one
    that fails with `skip_errors=True`. `ledger` names them and the reasons. The order depends on `set_epoch`.

    Of a datasets.IterableDataset with several shards each worker opens only its own, as long as the dataset's steps
    treat every record alone (no `take`, `skip`, batched function or function of the index). Any other iterable is read
    in full by every process, so one that splits itself among DataLoader workers does not see them.

    `state_dict()` is for iteration in this process, or inside a worker, where torchdata's `StatefulDataLoader` calls
    it. With workers, `DataLoaderBuilder` returns a DataLoader with an exact state, one for all ranks; for your own
    torch DataLoader, `state_after(batches, ...)` computes the state from the number of batches.

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 0:
            raise UsageError("buffer_size of 0 or more", got=repr(buffer_size), fix="0 keeps the stream's order")
        if (rank is None) != (world_size is None):
            raise UsageError("both rank and world_size, or neither", got=f"rank={rank!r}, world_size={world_size!r}")
        if rank is not None and world_size is not None:
            check_rank(rank, world_size, "StreamingPreprocessedDataset")
        self.input = stream_input(hf_iterable, storage_options)
        self.engine = Preprocess(prompt_engine, skip_errors)
        self.buffer_size, self.skip_errors, self.seed = buffer_size, skip_errors, int(seed)
        self.rank, self.world_size = rank, world_size
        self._shared = WorkerState()
        self._shared.lanes = self.input.lanes
        self._sent: tuple[int, int, int] | None = None  # process id, rank and world size where this was pickled
        self._skips = SkipLog()
        self._base: list[Layer] = []  # consumed before the first iteration after a restore
        self._mark: dict[str, Any] = {}  # the rank of the restored state, if it belongs to one rank
        self._restores = 0  # restores that this copy has seen
        self._resume: tuple[list[Layer], int] | None = None  # restored inside a worker: consumed, turns
        self._iteration: _Iteration | None = None  # of this process

    # Iteration.

    def __iter__(self) -> Iterator[Row]:
        """The rows of this reader. Only the first iteration after `load_state_dict` starts in the middle."""
        rank, world = self.place()  # at once: a mistake raises on every rank before it waits for others
        if self._restores != self._shared.restores:
            return _too_late(reader()[0])
        return self._rows_of(self._started(rank, world))

    def _started(self, rank: int, world: int) -> _Iteration:
        worker, workers, _ = reader()
        base, turns = self._base if self._shared.start_iteration() else [], 0
        if self._resume is not None:
            (base, turns), self._resume = self._resume, None
        self._iteration = _Iteration(self.epoch, rank, world, worker, workers, base, turns)
        return self._iteration

    def _rows_of(self, walk: _Iteration) -> Iterator[Row]:
        """The remaining rows of one reader; turns that all readers have completed are skipped."""
        mine, readers = walk.worker * walk.world + walk.rank, walk.readers
        first = walk.turns * readers
        start, layers = simplified([*walk.base, Layer(readers, [walk.turns])])
        shared = 1 if layers else gcd(self.lanes, readers)
        lanes = [lane for lane in range(self.lanes) if (lane - (mine - first + start)) % shared == 0]
        if mine == 0 and 1 < readers != shared:
            self._say_what_is_read(len(lanes), readers)
        for turn, placed in numbered(self.elements(start, walk.epoch, lanes), start, layers):
            if (turn + first) % readers == mine:
                self._note_gap(walk, (turn + first) // readers)
                walk.turns = (turn + first) // readers + 1
                (row,) = self.rows([placed])
                if row is not None:
                    yield row
        self._note_gap(walk)

    def _note_gap(self, walk: _Iteration, turns: int | None = None) -> None:
        if self.lanes > 1 and turns != walk.turns:
            self._shared.gap(walk.turns)

    def _say_what_is_read(self, lanes: int, readers: int) -> None:
        if self.input.lanes > 1:
            _log.warning(
                "each of %d readers (workers x ranks) reads %d of the %d lanes of the stream; with a number of readers "
                "that divides %d every record is read once", readers, lanes, self.lanes, self.lanes,
            )  # fmt: skip

    def __len__(self) -> int:
        """Records of this rank in an epoch, including skipped ones; raises TypeError if unknown."""
        rank, world = self.place()
        return max(0, -(-(self.total() - rank) // world))

    def total(self) -> int:
        """Records of all ranks in an epoch; raises TypeError if unknown."""
        if not isinstance(self.input, Sized):
            raise TypeError("a stream has no length")
        return len(self.input)

    @property
    def lanes(self) -> int:
        """The number of parts of the stream that can be read one without another."""
        return self._shared.lanes

    def elements(self, start: int, epoch: int, lanes: Sequence[int] | None = None) -> Iterator[Placed]:
        """(position, element) pairs of all readers, or of some lanes, from a position of an epoch on."""
        parts = [self._lane(lane, start, epoch) for lane in (range(self.lanes) if lanes is None else lanes)]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0))

    def _lane(self, lane: int, start: int, epoch: int) -> Iterator[Placed]:
        lanes, size = self.lanes, self.buffer_size
        key = randomness.key(self.seed, "stream", epoch, *([lane] if lanes > 1 else []))
        size = max(2, -(-size // lanes)) if size > 1 else size
        first = max(0, -(-(start - lane) // lanes))
        placed = shuffled(lambda i: self.input.elements(i, epoch, lane, lanes), first, size, key)
        return placed if lanes == 1 else ((number * lanes + lane, element) for number, element in placed)

    def locate(self, placed: Placed) -> dict[str, Any]:
        """Where an element comes from."""
        return {"source": "stream", "position": placed[0], "record": self.input.name(*placed)}

    def rows(self, placed: Sequence[Placed]) -> list[Row | None]:
        """The rows of (position, element) pairs; None for a skipped record."""
        out: list[Row | None] = []
        records = self.input.records([element for _, element in placed])
        for (position, element), record in zip(placed, records, strict=True):
            out.append(self._row(position, element, record))
        return out

    def _row(self, position: int, element: Any, record: Any) -> Row | None:
        made = self.engine(record, lambda: self.input.name(position, element))
        if not isinstance(made, Skip):
            return made
        self._skips.add(self.input.name(position, element), position, made.reason, made.detail)
        return None

    @property
    def skipped(self) -> int:
        """Records skipped so far, by this process and its DataLoader workers."""
        return self._skips.total

    @property
    def ledger(self) -> Ledger:
        """The skipped records of this process and its DataLoader workers, and why each was skipped."""
        return self._skips.ledger()

    def place(self) -> tuple[int, int]:
        """Rank and world size of this process; (0, 1) if the records are already sharded.

        They are if the input was split by rank, or if the calling loader shards them: see `torch_data.accelerate`.
        """
        if self.rank is not None and self.world_size is not None:
            fix = "leave out rank and world_size, or with_distributed: Accelerate assigns the records to processes"
            refuse_sharding_twice(self.rank, self.world_size, fix)
            return self.rank, self.world_size
        if self.input.sharded:
            refuse_sharding_twice(
                *find_rank(), "leave out split_dataset_by_node: Accelerate assigns the records to processes"
            )
            return 0, 1
        if sharded_among() is not None:
            return 0, 1
        if self._sent is not None and self._sent[0] != os.getpid():
            return self._sent[1:]
        return find_rank()

    def shard(self, rank: int, world_size: int) -> StreamingPreprocessedDataset:
        """The same stream for one rank."""
        check_rank(rank, world_size, "StreamingPreprocessedDataset.shard")
        other = copy.copy(self)
        other.rank, other.world_size = rank, world_size
        other._shared = self._shared.copy()
        return other

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, here and in all workers."""
        return self._shared.epoch

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of another epoch, which has another order."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError("an epoch of 0 or more", got=repr(epoch))
        if epoch != self.epoch:
            self._shared.start_epoch(epoch)
            self._base, self._resume, self._iteration = [], None, None

    @property
    def collate_fn(self) -> RowCollate:
        """The collate function that `DataLoaderBuilder` uses by default."""
        return RowCollate(self.engine.pad_token_id())

    # State.

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration in this process: a few numbers.

        If no record can be skipped, ranks that have yielded the same number of rows have equal states. Otherwise each
        rank has its own state, because skipped records move a rank ahead, and loads only that one. In a DataLoader
        worker it is the state of this worker, for the same worker of the same number of workers, as torchdata's
        `StatefulDataLoader` saves it.
        """
        _, workers, _ = reader()
        if not workers and self._shared.workers:
            raise StateError(
                "state_dict() in the process that iterates the dataset",
                got=f"a call outside of the {self._shared.workers} DataLoader workers that iterate it",
                fix="use state_after(batches, batch_size=..., num_workers=...), a DataLoader of DataLoaderBuilder, or "
                "torchdata's StatefulDataLoader",
            )
        walk = self._iteration or _Iteration(
            self.epoch, *self.place(), *reader()[:2], *(self._resume or (self._restored(), 0))
        )
        if walk.workers:
            own = {"worker": [walk.worker, walk.workers, walk.turns]}
            return self._state(walk.base, walk.epoch, own | self._owner(walk))
        state = self._state([*walk.base, Layer(walk.world, [walk.turns])], walk.epoch)
        return states.signed(state | self._owner(walk)) if state["given"] else state

    def _owner(self, walk: _Iteration) -> dict[str, Any]:
        return {"rank": [walk.rank, walk.world]} if walk.world > 1 and self.engine.may_skip else {}

    def state_after(self, batches: int, *, batch_size: int, num_workers: int = 0) -> dict[str, Any]:
        """The state after a torch DataLoader over this dataset has yielded `batches` batches of the current iteration.

        torch takes batches from its workers in turn. After a restore every remaining row comes once, with any number of
        workers and ranks, as long as no record was skipped on any rank; the batches are the same too if `batches` is a
        multiple of `num_workers` and `num_workers` stays the same.
        """
        if self.skipped:
            raise StateError(
                "no skipped records, to compute a state from the number of batches",
                got=f"{self.skipped} skipped",
                fix="use DataLoaderBuilder, or torchdata's StatefulDataLoader: these count positions, not rows",
            )
        workers = max(1, num_workers)
        rounds = [-(-max(0, batches - w) // workers) * batch_size for w in range(workers)]
        if max(rounds) > self._shared.even_turns:
            raise StateError(
                "shards that last as long as each other, to compute a state from the number of batches",
                got=f"a reader whose shards have ended after {self._shared.even_turns} rows",
                fix="use DataLoaderBuilder, or torchdata's StatefulDataLoader: these count positions, not rows",
            )
        mark = self._mark if self._restored() else {}
        return self._state([*self._restored(), Layer(self.place()[1], rounds)], self.epoch, mark)

    def _restored(self) -> list[Layer]:
        """Consumed before the current iteration, or before the next if none is running."""
        return self._base if self._shared.restored else []

    def _state(self, layers: list[Layer], epoch: int, owner: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return states.write("stream", {"epoch": epoch, "given": to_json(layers), **(owner or {})}, self.origin())

    def origin(self) -> dict[str, Any]:
        """What decides the order and the rows of this stream; written into every state."""
        lanes = {"lanes": self.lanes} if self.lanes > 1 else {}
        return {"seed": self.seed, "buffer_size": self.buffer_size, **lanes, **self.identity()}

    def identity(self) -> dict[str, str]:
        """Identity of the engine, and of the records if they have random access (all of them are read, once)."""
        if not self._shared.records:
            found = self.input.fingerprint()
            self._shared.records = int(hashing.content_id([found])[:15], 16) if found else -1
        records = {"records": f"{self._shared.records:015x}"} if self._shared.records > 0 else {}
        return {"engine": self.engine.identity[:15]} | records

    def fingerprint(self) -> str:
        """Identity of records, engine and order; without the records if they have no random access."""
        return hashing.content_id(["stream", str(sorted(self.identity().items())), self.seed, self.buffer_size])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration resumes from there, with any number of workers and ranks.

        Create a DataLoader with persistent_workers after this call, not before.
        """
        state = states.read(state, "stream")
        layers, turns = from_json(state.get("given"), states.UNCHANGED), self._own_turns(state)
        epoch = states.number(state, "epoch")
        self.check_origin(state)
        self._check_owner(state)
        self._iteration = None
        if reader()[1]:
            self._resume, self._shared.epoch = (layers, turns), epoch
        else:
            self._base, self._restores = layers, self._shared.restore(epoch)
            self._mark = {"rank": state["rank"]} if "rank" in state else {}

    def check_origin(self, state: dict[str, Any]) -> None:
        """Raises for a state of another stream. The lanes are those of the state, or none if it was saved without."""
        older = "engine" not in state  # the first states do not identify engine and records
        lanes = state.get("lanes", 1)
        expected = self.origin() | {"lanes": lanes if lanes in (1, self.input.lanes) else self.input.lanes}
        for name, value in expected.items():
            order = name in ("seed", "buffer_size", "lanes")
            found = state.get(name, 1 if name == "lanes" else None)
            if found != value and (order or not older):
                raise StateError(
                    f"a state of a stream with {name}={value}, which decides the {'order' if order else 'rows'}",
                    got=f"{name}={found!r}"[:80],
                    fix="make the dataset with the arguments it was saved with (records, engine, schema, skip policy, "
                    "seed, buffer_size); workers and ranks may change",
                )
        self._shared.lanes = int(lanes)

    def _own_turns(self, state: dict[str, Any]) -> int:
        """The completed turns of this worker in a state; 0 for a state of the full stream."""
        if "worker" not in state:
            return 0
        own = state["worker"]
        numbers = own if isinstance(own, list | tuple) and len(own) == 3 else [None]
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise StateError("a worker as [number, workers, turns]", got=str(own)[:80], fix=states.UNCHANGED)
        worker, workers, _ = reader()
        if [worker, workers] != list(own[:2]):
            here = f"worker {worker} of {workers}" if workers else "the full stream, outside of workers"
            raise StateError(
                f"a state of {here}",
                got=f"one of worker {own[0]} of {own[1]}",
                fix="restore it through a StatefulDataLoader with the same number of workers",
            )
        return int(own[2])

    def _check_owner(self, state: dict[str, Any]) -> None:
        rank, world = self.place()
        owner = state.get("rank", [rank, world])
        if owner != [rank, world]:
            known = isinstance(owner, list | tuple) and len(owner) == 2
            raise StateError(
                f"a state of rank {rank} of {world}: if records may be skipped, ranks differ in position",
                got=f"one of rank {owner[0]!r} of {owner[1]!r}"[:80] if known else repr(owner)[:80],
                fix="load on each rank the state that it saved; a DataLoader of DataLoaderBuilder has one for all "
                "ranks, and so has state_after() if no rank has skipped a record",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sent": (os.getpid(), *self.place())}  # a worker may not find its rank

    def __repr__(self) -> str:
        return (
            f"StreamingPreprocessedDataset(buffer_size={self.buffer_size}, epoch={self.epoch}, {self.skipped} skipped)"
        )


def _too_late(worker: int) -> Iterator[Row]:
    """Raises at the first row: torch does not report errors that a persistent worker raises before that."""
    raise UsageError(
        "load_state_dict before the workers of a DataLoader start",
        got=f"worker {worker}, which was started before and is persistent",
        fix="make a new DataLoader after load_state_dict, or use persistent_workers=False",
    )
    yield {}
