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
from typing import Any

from penstock import _rng
from penstock._errors import PenstockError, StateError, UsageError
from penstock._ledger import Ledger
from penstock.order.local import shuffled
from penstock.order.shard import check_rank, find_rank
from penstock.outputs.dealt import dealt_among, refuse_second_deal
from penstock.outputs.torch_data import data, torch
from penstock.text.feed import feed_of
from penstock.text.records import Prompted, RowCollate

FORMAT = 1
_COUNTERS = 64  # processes that count skipped records without getting in each other's way

Row = dict[str, Any]
Layer = tuple[int, list[int]]


class StreamingPreprocessedDataset(data.IterableDataset):  # type: ignore[misc]
    """Rows of a stream. Use it in a torch DataLoader with any number of workers, or through `DataLoaderBuilder`.

    `hf_iterable`: a datasets.IterableDataset, any iterable of dicts that can be begun again, a function that gives a
    new iterator, a list, a datasets.Dataset or a JSON-lines path; it may be endless. `buffer_size` above 1 shuffles
    locally. `rank` and `world_size` are found from torch.distributed, JAX or the launcher when left out; a DataLoader
    that Accelerate has prepared, or HF's Trainer made, deals out the records itself and is given all of them.

    A record that the engine skips (it gives None) is left out and counted in `skipped`, over all workers; so is one
    that fails under `skip_errors=True`, and `ledger` names those of this process. `set_epoch` gives another order.

    `state_dict()` is for iteration in this process (no workers). With workers, `DataLoaderBuilder` gives a DataLoader
    that keeps an exact state; for a DataLoader of your own, `state_after(batches, ...)` is the state by count.

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
        self.engine = Prompted(prompt_engine)
        self.buffer_size, self.skip_errors, self.seed = buffer_size, skip_errors, int(seed)
        self.rank, self.world_size = rank, world_size
        self.epoch = 0
        self._told: tuple[int, int, int] | None = None  # the process that sent this here, and the place it found
        self.ledger = Ledger()
        self._counts = torch.zeros(_COUNTERS, dtype=torch.int64).share_memory_()
        self._base: list[Layer] = []  # what was given before this pass began
        self._passed: Layer | None = None  # what this pass has given
        self._resumed = False

    # Iteration.

    def __iter__(self) -> Iterator[Row]:
        """The rows of this reader's positions. Only the first pass after `load_state_dict` begins in the middle."""
        return self._mine(*self.place())  # found at once: every rank is told of a mistake before it waits for others

    def _mine(self, rank: int, world: int) -> Iterator[Row]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if not self._resumed:
            self._base = []
        self._resumed, self._passed = False, (world, [0])
        readers, reader = workers * world, worker * world + rank
        for turn, placed in enumerate(self._left(self._base)):
            if turn % readers != reader:
                continue
            if workers == 1:
                self._passed = (world, [turn // readers + 1])
            (row,) = self.rows([placed])
            if row is not None:
                yield row

    def _left(self, layers: list[Layer]) -> Iterator[tuple[int, Any]]:
        """Position and element of what was not given before, in order."""
        start = _prefix(layers[0]) if layers else 0
        places = [start] + [0] * (len(layers) - 1)  # the next place in what each layer left to the one after it
        for placed in self.elements(start):
            for i, layer in enumerate(layers):
                places[i] += 1
                if _has(layer, places[i] - 1):
                    break
            else:
                yield placed

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
        return shuffled(self.feed.begin, start, self.buffer_size, _rng.key(self.seed, "stream", self.epoch))

    def rows(self, placed: Sequence[tuple[int, Any]]) -> list[Row | None]:
        """Rows of some positions; None where a record is skipped."""
        out: list[Row | None] = []
        records = self.feed.records([element for _, element in placed])
        for (position, element), record in zip(placed, records, strict=True):
            out.append(self._row(position, element, record))
        return out

    def _row(self, position: int, element: Any, record: Any) -> Row | None:
        try:
            row = self.engine(record, lambda: self.feed.name(position, element))
        except PenstockError as error:
            if not self.skip_errors:
                raise
            self._skip(position, element, error.expected, error.got)
            return None
        if row is None:
            self._skip(position, element, "a record that the prompt engine keeps", "None")
        return row

    def _skip(self, position: int, element: Any, reason: str, detail: str) -> None:
        info = data.get_worker_info()
        self._counts[0 if info is None else 1 + info.id % (_COUNTERS - 1)] += 1
        self.ledger.add(self.feed.name(position, element), position, reason, detail)

    @property
    def skipped(self) -> int:
        """Records skipped so far, by this process and its DataLoader workers."""
        return int(self._counts.sum())

    def place(self) -> tuple[int, int]:
        """Rank and world size of this process; (0, 1) where somebody else gives each rank its share.

        That is the stream itself, or the loader that asks for the rows: see `outputs.dealt`.
        """
        if self.rank is not None and self.world_size is not None:
            fix = "leave out rank and world_size, or with_distributed: Accelerate deals out the records"
            refuse_second_deal(self.rank, self.world_size, fix)
            return self.rank, self.world_size
        if self.feed.split:
            refuse_second_deal(*find_rank(), "leave out split_dataset_by_node: Accelerate deals out the records")
            return 0, 1
        if dealt_among() is not None:
            return 0, 1
        if self._told is not None and self._told[0] != os.getpid():
            return self._told[1:]
        return find_rank()

    def shard(self, rank: int, world_size: int) -> StreamingPreprocessedDataset:
        """The same stream for one rank."""
        check_rank(rank, world_size, "StreamingPreprocessedDataset.shard")
        other = copy.copy(self)
        other.rank, other.world_size = rank, world_size
        return other

    def set_epoch(self, epoch: int) -> None:
        """Another epoch: another order, from its beginning."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError("an epoch of 0 or more", got=repr(epoch))
        if epoch != self.epoch:
            self.epoch, self._base, self._passed, self._resumed = epoch, [], None, False

    @property
    def collate_fn(self) -> RowCollate:
        """The collate function that `DataLoaderBuilder` takes when it is given none."""
        return RowCollate(self.engine.pad_token_id())

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Where the pass in this process is: a few numbers, equal on all ranks that have given as many rows."""
        return self._state([*self._base, *([] if self._passed is None else [self._passed])])

    def state_after(self, batches: int, *, batch_size: int, num_workers: int = 0) -> dict[str, Any]:
        """The state after a torch DataLoader of this dataset has given `batches` batches of the pass now under way.

        torch takes batches from its workers in turn. Every row comes once, as long as none was skipped, with any number
        of workers afterwards; the batches are the same too if `batches` is a multiple of `num_workers` and that stays.
        """
        workers = max(1, num_workers)
        given = [-(-max(0, batches - w) // workers) * batch_size for w in range(workers)]
        return self._state([*self._base, (self.place()[1], given)])

    def _state(self, layers: list[Layer]) -> dict[str, Any]:
        return {
            "penstock_stream": FORMAT,
            "seed": self.seed,
            "buffer_size": self.buffer_size,
            "epoch": self.epoch,
            "given": [[world, list(rounds)] for world, rounds in _merged(layers)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on from there, with any number of workers and ranks."""
        layers = _checked(state)
        for name in ("seed", "buffer_size"):
            if state.get(name) != getattr(self, name):
                raise StateError(
                    f"a state of a stream with {name}={getattr(self, name)}, which decides the order",
                    got=f"{name}={state.get(name)!r}",
                    fix="make the dataset with the arguments it was saved with; workers and ranks may change",
                )
        self.epoch = state["epoch"]
        self._base, self._passed, self._resumed = layers, None, True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_told": (os.getpid(), *self.place())}  # workers may not see what this process sees

    def __repr__(self) -> str:
        return (
            f"StreamingPreprocessedDataset(buffer_size={self.buffer_size}, epoch={self.epoch}, {self.skipped} skipped)"
        )


# A layer is what one run has given of the places it found: (ranks, rounds of each worker), a round being one place for
# each rank. Place i went to worker (i // ranks) % workers. What it left is numbered anew for the layer after it.


def _has(layer: Layer, place: int) -> bool:
    """Whether a place was given."""
    world, rounds = layer
    turn, reader = divmod(place, world * len(rounds))
    return turn < rounds[reader // world]


def _prefix(layer: Layer) -> int:
    """All places before this one were given."""
    world, rounds = layer
    return min((turn * len(rounds) + w) * world for w, turn in enumerate(rounds))


def _after(layer: Layer) -> int:
    """No place from this one on was given."""
    world, rounds = layer
    return max(((turn - 1) * len(rounds) + w + 1) * world if turn else 0 for w, turn in enumerate(rounds))


def _merged(layers: list[Layer]) -> list[Layer]:
    """The same in as few layers as can be: one number, unless workers were stopped in the middle of a turn."""
    out: list[Layer] = []
    for layer in layers:
        given = layer[0] * sum(layer[1])
        whole = given == _after(layer)
        before = out[-1][0] * sum(out[-1][1]) if out else 0
        if whole and out and given >= _after(out[-1]) - before:
            out[-1] = (1, [before + given])
        elif given:
            out.append((1, [given]) if whole else layer)
    return out


def _checked(state: Any) -> list[Layer]:
    fix = "pass the dict that state_dict() gave, unchanged"
    if not isinstance(state, dict) or state.get("penstock_stream") != FORMAT:
        raise StateError(f"a stream's state of format {FORMAT}", got=str(state)[:80], fix=fix)
    given: list[Any] = state["given"] if isinstance(state.get("given"), list) else [None]
    epoch = state.get("epoch")
    good = type(epoch) is int and epoch >= 0 and len(given) < 64
    good = good and all(
        isinstance(layer, list | tuple)
        and len(layer) == 2
        and type(layer[0]) is int
        and layer[0] > 0
        and isinstance(layer[1], list)
        and layer[1]
        and all(type(turn) is int and turn >= 0 for turn in layer[1])
        for layer in given
    )
    if not good:
        raise StateError("an epoch and what was given, as [world, [rounds...]]", got=str(state)[:80], fix=fix)
    return [(int(world), [int(turn) for turn in rounds]) for world, rounds in given]
