"""Picks: which records make some rows. Arithmetic only; no data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import BadRecords, UserCodeError

I64 = NDArray[np.int64]
Epoch = int | I64


class BlockLayout(Protocol):
    """What a node has planned for some rows; `rows` is the layout of a slice of them."""

    def rows(self, start: int, stop: int) -> BlockLayout: ...

    def labels(self) -> int:
        """Labels of these rows other than -100."""
        ...


@dataclass(frozen=True)
class Picks:
    """One entry per row in each array.

    `record` is the record's number in its source, `leaf` the source's number in the tree (None: the only source),
    `epoch` the pass over that source, `slot` the row's number since the start of the run, and `tries` how many
    records were rejected before this one was found (None: none anywhere). `layout` is what a node has planned for
    many rows at once; without it the node plans again.
    """

    record: I64
    epoch: Epoch
    leaf: I64 | None = None
    slot: I64 | None = None
    tries: I64 | None = None
    layout: BlockLayout | None = None

    def __len__(self) -> int:
        return len(self.record)

    def rows(self, where: Any) -> Picks:
        """The picks of some rows."""
        part = object.__new__(Picks)  # past the constructor of frozen data, which costs more than the slices
        epoch, leaf, slot, tries, layout = self.epoch, self.leaf, self.slot, self.tries, self.layout
        if layout is not None:
            layout = layout.rows(*where.indices(len(self))[:2]) if isinstance(where, slice) else None
        part.__dict__.update(
            record=self.record[where],
            epoch=epoch[where] if isinstance(epoch, np.ndarray) else epoch,
            leaf=None if leaf is None else leaf[where],
            slot=None if slot is None else slot[where],
            tries=None if tries is None else tries[where],
            layout=layout,
        )
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


def in_each_epoch(position: I64, epoch: Epoch, order: Callable[[I64, int], I64]) -> I64:
    """`order(positions, epoch)` of each epoch's positions, in their places."""
    if not isinstance(epoch, np.ndarray):
        return order(position, epoch)
    out = np.empty_like(position)
    for one in np.unique(epoch).tolist():
        where = np.flatnonzero(epoch == one)
        out[where] = order(position[where], one)
    return out


def row_keys(base: int, picks: Picks) -> randomness.U64:
    """A random key per row, from its record and pass alone; `base` is the key of the step."""
    return randomness.keys(base, picks.column("epoch"), picks.column("leaf"), picks.record)


class rows_at:  # noqa: N801 - used as a function: `with rows_at(where):`
    """Inside, row j is row `where[j]` of the caller: errors that name a row are renumbered on their way out."""

    def __init__(self, where: I64) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BadRecords):
            for one in error.errors:
                one.row = int(self._where[one.row])
        elif isinstance(error, UserCodeError):
            for each in (error, *error.more):
                if each.row is not None:
                    each.row = int(self._where[each.row])
