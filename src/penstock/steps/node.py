"""What a pipeline is built into: a tree of nodes, each a sequence of rows.

`pick` is arithmetic: positions of this node's sequence -> which record of which source. It touches no data, many
batches per call. `fetch` reads: picks -> columns. A node above changes positions (shuffle, take), joins trees (mix), or
changes content (map, filter). Content that cannot be planned (a filter's answer, a bad record) is met in `fetch`, which
therefore also returns the picks it really used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._errors import BadRecords, UserCodeError
from penstock.columns import Columns
from penstock.sources.base import Source

I64 = NDArray[np.int64]
Epoch = int | I64


@dataclass(frozen=True)
class Picks:
    """Which records make some rows, one entry per row in each array.

    `record` is the record's number in its source, `leaf` the source's number in the tree (None: the only one),
    `epoch` the pass over that source, `slot` the row's number since the start of the run, and `tries` how many
    records were refused before this one was found (None: none anywhere).
    """

    record: I64
    epoch: Epoch
    leaf: I64 | None = None
    slot: I64 | None = None
    tries: I64 | None = None

    def __len__(self) -> int:
        return len(self.record)

    def rows(self, where: Any) -> Picks:
        """The picks of some rows."""

        def part(column: Any) -> Any:
            return column[where] if isinstance(column, np.ndarray) else column

        return Picks(self.record[where], part(self.epoch), part(self.leaf), part(self.slot), part(self.tries))

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


class Fetched(NamedTuple):
    """Columns, and the picks that really made them."""

    columns: Columns
    picks: Picks


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


class Node(ABC):
    """A sequence of rows. `size` rows an epoch, or None for an endless one."""

    size: int | None
    ids: frozenset[str] = frozenset()  # columns that hold token ids; outputs widen them

    @abstractmethod
    def pick(self, position: I64, epoch: Epoch) -> Picks: ...

    @abstractmethod
    def fetch(self, picks: Picks) -> Fetched: ...

    @abstractmethod
    def explain(self, picks: Picks) -> dict[str, Any]:
        """Where the one row of `picks` comes from, in plain JSON."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """The sources of this tree, in the order of their numbers."""


class Leaf(Node):
    """The records of one source, in their own order."""

    def __init__(self, source: Source, number: int) -> None:
        self.source = source
        self.number = number
        self.size = len(source)
        self.ids = frozenset(getattr(source, "ids", ()))

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return Fetched(self.source.read(picks.record), picks)

    def explain(self, picks: Picks) -> dict[str, Any]:
        return {"source": self.source.describe().get("kind", type(self.source).__name__)} | self.source.locate(
            int(picks.record[0])
        )

    def leaves(self) -> Iterator[Leaf]:
        yield self


class Above(Node):
    """A node over one child that leaves everything as it is; verbs override what they change."""

    def __init__(self, child: Node) -> None:
        self.child = child
        self.size = child.size
        self.ids = child.ids

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return self.child.fetch(picks)

    def explain(self, picks: Picks) -> dict[str, Any]:
        return self.child.explain(picks)

    def leaves(self) -> Iterator[Leaf]:
        return self.child.leaves()
