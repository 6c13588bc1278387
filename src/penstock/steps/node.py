"""What a pipeline is built into: a tree of nodes, each a sequence of rows.

`pick` is arithmetic: positions of this node's sequence -> which record of which source. It touches no data, many
batches per call. `fetch` reads: picks -> columns. A node above changes positions (shuffle, take), joins trees (mix), or
changes content (map, filter). Content that cannot be planned (a filter's answer, a bad record) is met in `fetch`, which
therefore also returns the picks it really used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import Empty
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, StageError, UserCodeError
from penstock.sources.base import Source, TokenSource
from penstock.steps.masks import IGNORE, RUNS, with_labels

I64 = NDArray[np.int64]
Epoch = int | I64


class Layout(Protocol):
    """What a node has planned of some rows."""

    def rows(self, start: int, stop: int) -> Layout: ...


@dataclass(frozen=True)
class Picks:
    """Which records make some rows, one entry per row in each array.

    `record` is the record's number in its source, `leaf` the source's number in the tree (None: the only one),
    `epoch` the pass over that source, `slot` the row's number since the start of the run, and `tries` how many
    records were refused before this one was found (None: none anywhere). `layout` is what makes up each row, where a
    node has planned that for many rows at once; without it the node plans again.
    """

    record: I64
    epoch: Epoch
    leaf: I64 | None = None
    slot: I64 | None = None
    tries: I64 | None = None
    layout: Layout | None = None

    def __len__(self) -> int:
        return len(self.record)

    def rows(self, where: Any) -> Picks:
        """The picks of some rows."""
        part = object.__new__(Picks)  # past the constructor of frozen data, which costs more than the slices
        facts = {k: v[where] if isinstance(v, np.ndarray) else v for k, v in self.__dict__.items()}
        layout = self.layout
        if layout is not None:
            facts["layout"] = layout.rows(*where.indices(len(self))[:2]) if isinstance(where, slice) else None
        part.__dict__.update(facts)
        return part

    def put(self, where: I64, other: Picks) -> Picks:
        """A copy whose rows `where` come from `other`; slots stay."""

        def merged(name: str) -> I64:
            out = self.column(name).copy()
            out[where] = other.column(name)
            return out

        leaf = self.leaf if other.leaf is None else merged("leaf")
        return Picks(merged("record"), merged("epoch"), leaf, self.slot, merged("tries"))

    def column(self, name: str) -> I64:
        """The named array in full, whatever short form it is kept in."""
        value = getattr(self, name)
        if isinstance(value, np.ndarray):
            return value
        return np.full(len(self), 0 if value is None else value, np.int64)

    def with_slot(self, slot: I64) -> Picks:
        return replace(self, slot=slot)


@dataclass(frozen=True)
class Shifted:
    """The recipe for two columns that are one array without its last item and without its first."""

    first: str
    second: str

    def expand(self, xp: Any, columns: Any) -> dict[str, Any]:
        rows = columns["rows"].astype(xp.int32)
        return {self.first: rows[:, :-1], self.second: rows[:, 1:]}


class Fetched(NamedTuple):
    """Columns, and the picks that really made them."""

    columns: Columns
    picks: Picks


class Seal(Protocol):
    """The last thing done to a batch, on the rank it is for: adds what belongs to the batch and not to one row.

    `labels` is how many labels of the step count, on all ranks together.
    """

    def apply(self, columns: Columns, picks: Picks, labels: int) -> Columns: ...


@contextmanager
def rows_at(where: I64) -> Iterator[None]:
    """Inside, row j is row `where[j]` of the caller: errors that name a row are renumbered on their way out."""
    try:
        yield
    except BadRecords as error:
        for one in error.errors:
            one.row = int(where[one.row])
        raise
    except UserCodeError as error:
        if error.row is not None:
            error.row = int(where[error.row])
        raise


class Heads(NamedTuple):
    """Documents cut to one length: `read(a, b)` gives rows, of which only the first `counts` tokens are theirs."""

    read: Callable[[int, int], NDArray[Any]]
    counts: NDArray[np.int32]


class Later(Protocol):
    """A batch that has been read, and is made in the moment it is wanted. It is told from columns by being no dict."""

    @property
    def nbytes(self) -> int:
        """Bytes of the batch, once it is made."""
        ...

    def make(self, ids: np.dtype[Any], empty: Empty) -> Columns:
        """The columns, sealed, with token ids in their final type."""
        ...


class Laid(NamedTuple):
    """Rows of which batches are best made one by one.

    `read(edges, labels)` reads the batches whose rows lie between `edges`, in the steps of which so many labels count;
    `labels` is how many of each row do.
    """

    read: Callable[[list[int], list[int]], list[Later]]
    labels: list[int]


class Bounds(NamedTuple):
    """The least and the greatest value that columns of token ids may hold, labels among them."""

    least: int = 0
    most: int = 0

    def with_labels(self, pad_id: int = 0) -> Bounds:
        """Where labels may be -100, and padding is `pad_id`."""
        return Bounds(min(self.least, pad_id, IGNORE), max(self.most, pad_id))

    @classmethod
    def of(cls, dtype: np.dtype[Any], vocab_size: int | None = None) -> Bounds:
        """By the vocabulary, or by the type of the tokens where it is unknown; none is larger than 2**31."""
        if dtype.kind not in "iu":
            return cls()  # recordings: no ids at all
        return cls(0, min(np.iinfo(dtype).max, (1 << 31) - 1) if vocab_size is None else max(0, vocab_size - 1))


class Node(ABC):
    """A sequence of rows. `size` rows an epoch, or None for an endless one."""

    size: int | None
    ids: frozenset[str] = frozenset()  # columns that hold token ids; outputs widen them
    bounds: Bounds = Bounds()  # of the values of `ids`
    seal: Seal | None = None
    stretches: I64 | None = None  # rows of each stretch that is read from one place; a shuffle keeps near these
    certain: bool = True  # whether picks alone say what `fetch` will give
    weighs: bool = False  # whether `costs` are known
    own_labels: bool = False  # whether the labels of its rows were made by Penstock, from the tokens
    shifted: tuple[str, str] | None = None  # columns that are `spans` without its last item and without its first
    ahead: int = 1 << 14  # rows to pick in one call: more where a pick is arithmetic, fewer where it costs memory

    @abstractmethod
    def pick(self, position: I64, epoch: Epoch) -> Picks: ...

    @abstractmethod
    def fetch(self, picks: Picks) -> Fetched: ...

    def spans(self, records: I64) -> Callable[[int, int], NDArray[Any]]:
        """What `fetch` gives for records [a:b] as one array, not two shifted columns; asked of `shifted` nodes only."""
        raise StageError("a step whose columns are one array", got=type(self).__name__)

    def heads(self, records: I64, length: int) -> Heads | None:
        """The first `length` tokens of each record, if tokens are all it has and can be read like that."""
        return None

    def laid(self, picks: Picks) -> Laid | None:
        """How batches of these rows are made one by one, if that is better than `fetch` and the seal for many."""
        return None

    def left_out(self) -> dict[str, int]:
        """What is in no row of an epoch, by what it is and why: `documents_dropped`, `tokens_cut` and the like."""
        return {}

    @abstractmethod
    def explain(self, picks: Picks) -> dict[str, Any]:
        """Where the one row of `picks` comes from, in plain JSON."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """The sources of this tree, in the order of their numbers."""

    def count_labels(self, picks: Picks) -> int:
        """How many labels of these rows count, from the plan alone; asked only of nodes with a seal."""
        raise StageError("a step whose plan knows its labels", got=type(self).__name__)

    def costs(self, picks: Picks) -> I64:
        """The work of each row for attention, from the plan alone; asked only of nodes that `weigh` their rows."""
        raise StageError("a step whose plan knows the work of its rows", got=type(self).__name__)


class Leaf(Node):
    """The records of one source, in their own order."""

    def __init__(self, source: Source, number: int) -> None:
        self.source = source
        self.number = number
        self.size = len(source)
        self.ids = frozenset(getattr(source, "ids", ()))
        if isinstance(source, TokenSource):
            self.bounds = Bounds.of(source.dtype, source.vocab_size)
        if RUNS in getattr(source, "columns", ()):
            self.bounds = self.bounds.with_labels()
            self.ids |= {"input_ids", "labels"}
            self.own_labels = True

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        columns = self.source.read(picks.record)
        return Fetched(with_labels(columns) if RUNS in columns else columns, picks)

    def heads(self, records: I64, length: int) -> Heads | None:
        heads: Heads | None = None
        source = self.source
        reader = getattr(source, "reader", None)
        if isinstance(source, TokenSource) and reader is not None and not getattr(source, "columns", ()):
            starts, last = source.starts(records), source.n_tokens - length
            if last >= 0:
                counts = np.minimum(source.lengths(records), length).astype(np.int32)
                heads = Heads(_whole_rows(reader(np.minimum(starts, last), length), starts - last, length), counts)
        return heads

    def explain(self, picks: Picks) -> dict[str, Any]:
        return {"source": self.source.describe().get("kind", type(self.source).__name__)} | self.source.locate(
            int(picks.record[0])
        )

    def leaves(self) -> Iterator[Leaf]:
        yield self


def _whole_rows(read: Callable[[int, int], NDArray[Any]], over: I64, length: int) -> Callable[[int, int], NDArray[Any]]:
    """Rows that would go on `over` tokens past the stream's end are read so much earlier, and then moved back."""
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


class Above(Node):
    """A node over one child that leaves everything as it is; verbs override what they change."""

    def __init__(self, child: Node) -> None:
        self.child = child
        self.size = child.size
        self.ids, self.seal, self.certain, self.ahead = child.ids, child.seal, child.certain, child.ahead
        self.own_labels, self.bounds, self.weighs = child.own_labels, child.bounds, child.weighs
        if type(self).fetch is Above.fetch:
            self.shifted = child.shifted

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return self.child.fetch(picks)

    def spans(self, records: I64) -> Callable[[int, int], NDArray[Any]]:
        return self.child.spans(records)

    def heads(self, records: I64, length: int) -> Heads | None:
        return self.child.heads(records, length) if type(self).fetch is Above.fetch else None

    def laid(self, picks: Picks) -> Laid | None:
        return self.child.laid(picks) if type(self).fetch is Above.fetch else None

    def left_out(self) -> dict[str, int]:
        return self.child.left_out()

    def explain(self, picks: Picks) -> dict[str, Any]:
        return self.child.explain(picks)

    def leaves(self) -> Iterator[Leaf]:
        return self.child.leaves()

    def count_labels(self, picks: Picks) -> int:
        return self.child.count_labels(picks)

    def costs(self, picks: Picks) -> I64:
        return self.child.costs(picks)
