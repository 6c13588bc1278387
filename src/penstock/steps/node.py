"""What a pipeline is built into: a tree of nodes, each a sequence of rows.

`pick` is arithmetic: positions of this node's sequence -> which record of which source, for many batches in one call.
`open` prepares to read such picks and returns `read(start, stop) -> Rows`, which reads several batches at once; `Rows`
then makes the columns of each batch. `fetch` is the same for a few rows in one call: picks -> columns. Content that
cannot be planned (a filter's answer, a bad record) is found while reading, so `fetch` also returns the picks that it
really used.

A step's node derives from `WrapperNode` if it changes only positions or facts, from `ContentNode` if it changes what
the rows hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import StageError
from penstock.sources.base import BlockSource, ColumnSource, PartialSource, Source, TokenSource, WindowReader
from penstock.steps.facts import Bounds, RowFacts, Spares
from penstock.steps.loss_runs import RUNS, with_labels
from penstock.steps.picks import I64, Epoch, Picks
from penstock.steps.rows import FetchedRows, Read

if TYPE_CHECKING:
    from penstock.steps.planned_batches import PlannedBatches


class Fetched(NamedTuple):
    """Columns, and the picks they were made from, replacements included."""

    columns: Columns
    picks: Picks


class Reads(NamedTuple):
    """What some rows read of a source: tokens [start, start + length) of its stream, or of other sources records.

    `documents`, which may read the document table, are those of which these `columns` are read besides.
    """

    leaf: SourceNode
    starts: I64
    lengths: I64
    documents: Callable[[], I64] | None = None
    columns: tuple[str, ...] = ()


class Node(ABC):
    """A sequence of rows: `size` rows per epoch, or None if it is endless."""

    size: int | None
    facts: RowFacts = RowFacts()
    batch_plan: PlannedBatches | None = None  # for steps that plan batches: `.bucket()`, `.batch_tokens()`
    verb: str = ""  # the step that it was built for, set by `plan.build`; "" if it is a part of the node above it
    timed: ClassVar[tuple[str, ...]] = ("pick", "fetch", "heads")  # methods that do its work, besides `open`

    def inputs(self) -> Sequence[Node]:
        """The nodes whose rows this one is made of; none for a source."""
        return ()

    @abstractmethod
    def pick(self, position: I64, epoch: Epoch) -> Picks:
        """The records at these positions of an epoch."""

    @abstractmethod
    def fetch(self, picks: Picks) -> Fetched:
        """The columns of these picks."""

    def open(self, picks: Picks, compact: bool = False) -> Read:
        """Prepares to read these picks in stretches; `compact`: the output prefers `Rows.compact`."""

        def read(start: int, stop: int) -> FetchedRows:
            return FetchedRows(*self.fetch(picks.rows(slice(start, stop))))

        return read

    def heads(self, picks: Picks, length: int) -> Heads | None:
        """The first `length` tokens of each row, if rows hold only tokens and the source can read them so."""
        return None

    @abstractmethod
    def reads(self, picks: Picks) -> Iterator[Reads]:
        """What these rows read of each source, from the plan alone; a rejected record reads more."""

    def schema(self) -> Callable[[], Columns] | None:
        """Returns the columns without a row, where their types are known before any record is asked for."""
        return None

    def left_out(self) -> dict[str, int]:
        """Counts of what an epoch leaves out, by kind and reason: `documents_dropped`, `tokens_cut`, ..."""
        return {}

    @abstractmethod
    def explain(self, picks: Picks) -> dict[str, Any]:
        """Where the one row of `picks` comes from, in plain JSON."""

    def encoded(self, picks: Picks) -> dict[str, Any]:
        """What was decoded for the one row of `picks`: the encoded file, by the column that it was decoded into."""
        return {}

    @abstractmethod
    def leaves(self) -> Iterator[SourceNode]:
        """The sources of this tree, in the order of their numbers."""

    def count_labels(self, picks: Picks) -> int:
        """Labels other than -100 in these rows, from the plan alone; called only where `facts.per_batch` is set."""
        raise StageError("a step that counts its labels from the plan", got=type(self).__name__)

    def costs(self, picks: Picks) -> I64:
        """The cost of attention for each row, from the plan alone; called only where `facts.weighs`."""
        raise StageError("a step that computes the cost of its rows from the plan", got=type(self).__name__)

    def draw_spares(self, spares: Spares) -> None:  # noqa: B027 - only nodes that reject rows need them
        """Where the replacement of a rejected row should be drawn from, in a step below this one."""

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        """Where the lane of each row is among all lanes, from 0 to 65535; called only where `facts.lanes`.

        Ranks take the rows of a step in this order, so that a lane stays on one host.
        """
        raise StageError("a step that knows the lanes of its rows", got=type(self).__name__)


class Heads(NamedTuple):
    """The first tokens of documents: `read(a, b)` returns rows of one length, of which `counts` tokens are theirs."""

    read: Callable[[int, int], NDArray[Any]]
    counts: NDArray[np.int32]


class SourceNode(Node):
    """The records of one source, in their own order."""

    timed = (*Node.timed, "columns_of")

    def __init__(self, source: Source, number: int) -> None:
        self.source = source
        self.number = number
        self.size = len(source)
        sizes = source.block_sizes() if isinstance(source, BlockSource) else None
        unread = source.unread if isinstance(source, PartialSource) else ""
        self.facts = RowFacts(blocks=sizes, numbered=True, unread=unread)
        if isinstance(source, TokenSource):
            self.facts = replace(self.facts, bounds=Bounds.of(source.dtype, source.vocab_size), by_document=True)
        self.columns = tuple(source.columns) if isinstance(source, ColumnSource) else ()
        if RUNS in self.columns and (isinstance(source, TokenSource) or "input_ids" in self.columns):
            bounds, ids = self.facts.bounds.with_labels(), self.facts.ids | {"input_ids", "labels"}
            self.facts = replace(self.facts, bounds=bounds, ids=ids, own_labels=True)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return Fetched(self.columns_of(picks.record), picks)

    def schema(self) -> Callable[[], Columns] | None:
        return lambda: self.columns_of(np.empty(0, np.int64))

    def columns_of(self, records: I64) -> Columns:
        """The columns of these records."""
        columns = self.source.read(records)
        return with_labels(columns) if RUNS in columns and "input_ids" in columns else columns

    def reads(self, picks: Picks) -> Iterator[Reads]:
        if isinstance(self.source, TokenSource):
            starts, lengths = self.source.starts(picks.record), self.source.lengths(picks.record)
            yield Reads(self, starts, lengths, lambda: picks.record, self.columns)
        else:
            yield Reads(self, picks.record, np.ones(len(picks), np.int64))

    def heads(self, picks: Picks, length: int) -> Heads | None:
        source = self.source
        if not isinstance(source, TokenSource) or not isinstance(source, WindowReader) or self.columns:
            return None
        starts, last = source.starts(picks.record), source.n_tokens - length
        if last < 0:
            return None
        counts = np.minimum(source.lengths(picks.record), length).astype(np.int32)
        return Heads(_shifted_back(source.reader(np.minimum(starts, last), length), starts - last, length), counts)

    def explain(self, picks: Picks) -> dict[str, Any]:
        return {"source": self.source.describe().get("kind", type(self.source).__name__)} | self.source.locate(
            int(picks.record[0])
        )

    def leaves(self) -> Iterator[SourceNode]:
        yield self


def _shifted_back(
    read: Callable[[int, int], NDArray[Any]], over: I64, length: int
) -> Callable[[int, int], NDArray[Any]]:
    """Rows that would end `over` tokens past the end of the stream were read that much earlier: moves them back."""
    late = np.flatnonzero(over > 0)
    if not len(late):
        return read

    def moved(a: int, b: int) -> NDArray[Any]:
        rows = read(a, b)
        for row in late[np.searchsorted(late, a) : np.searchsorted(late, b)].tolist():
            by = int(over[row])
            rows[row - a, : length - by] = rows[row - a, by:].copy()
        return rows

    return moved


class WrapperNode(Node):
    """A node over one child with the same content; steps override what they change: `pick`, `size`, `facts`."""

    changes_rows: ClassVar[bool] = False
    moves_rows: ClassVar[bool] = False  # row n is not made of the child's row n: set where a class defines `pick`

    def __init__(self, child: Node) -> None:
        self.child = child
        self.size = child.size
        facts = replace(child.facts, stretches=None)
        if not self.changes_rows or self.moves_rows:
            facts = replace(facts, blocks=None, numbered=False, spares=None)
        self.facts = facts
        self.spares = facts.spares

    def draw_spares(self, spares: Spares) -> None:
        """Called by a shuffle above that reads block by block: replacements of rejected rows come from these."""
        self.spares = spares
        self.child.draw_spares(spares)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.moves_rows = cls.moves_rows or "pick" in cls.__dict__
        if "fetch" in cls.__dict__ and not cls.changes_rows:
            raise TypeError(f"{cls.__name__} changes the content of rows: derive it from ContentNode")

    def inputs(self) -> Sequence[Node]:
        return (self.child,)

    def schema(self) -> Callable[[], Columns] | None:
        return None if self.changes_rows else self.child.schema()

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return self.child.fetch(picks)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        return self.child.open(picks, compact)

    def heads(self, picks: Picks, length: int) -> Heads | None:
        return self.child.heads(picks, length)

    def reads(self, picks: Picks) -> Iterator[Reads]:
        return self.child.reads(picks)

    def left_out(self) -> dict[str, int]:
        return self.child.left_out()

    def explain(self, picks: Picks) -> dict[str, Any]:
        return self.child.explain(picks)

    def encoded(self, picks: Picks) -> dict[str, Any]:
        return self.child.encoded(picks)

    def leaves(self) -> Iterator[SourceNode]:
        return self.child.leaves()

    def count_labels(self, picks: Picks) -> int:
        return self.child.count_labels(picks)

    def costs(self, picks: Picks) -> I64:
        return self.child.costs(picks)

    def lanes(self, position: I64, epoch: Epoch) -> NDArray[np.uint16]:
        return self.child.lanes(position, epoch)


class ContentNode(WrapperNode):
    """A node over one child that changes what its rows hold: it defines `fetch`, or `open` and its own `Rows`."""

    changes_rows = True

    def __init__(self, child: Node) -> None:
        super().__init__(child)
        self.facts = replace(self.facts, one_copy=False)

    def fetch(self, picks: Picks) -> Fetched:
        rows = self.open(picks)(0, len(picks))
        return Fetched(rows.columns(0, len(picks), None), rows.picks)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        return Node.open(self, picks, compact)

    def heads(self, picks: Picks, length: int) -> Heads | None:
        return None
