"""What is known of a node's rows before any is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.core.columns import Columns
from penstock.steps.loss_runs import IGNORE
from penstock.steps.picks import I64, BlockLayout, Picks


class Bounds(NamedTuple):
    """The least and the greatest value that columns of token ids may hold, labels among them."""

    least: int = 0
    most: int = 0

    def with_labels(self, pad_id: int = 0) -> Bounds:
        """Where labels may be -100, and padding is `pad_id`."""
        return Bounds(min(self.least, pad_id, IGNORE), max(self.most, pad_id))

    @classmethod
    def of(cls, dtype: np.dtype[Any], vocab_size: int | None = None) -> Bounds:
        """By the vocabulary, or by the dtype of the tokens where it is unknown; never above 2**31 - 1."""
        if dtype.kind not in "iu":
            return cls()  # recordings: no ids at all
        return cls(0, min(np.iinfo(dtype).max, (1 << 31) - 1) if vocab_size is None else max(0, vocab_size - 1))


class BatchColumns(Protocol):
    """Columns that belong to a batch and not to one row, added last, on the rank that the batch is for.

    `layout` is what the node has planned for the rows; `labels` is the number of labels other than -100 in the step,
    over all ranks.
    """

    def add(self, columns: Columns, layout: BlockLayout | None, labels: int) -> Columns: ...


class Spares(Protocol):
    """The records that may replace a rejected one without another block being read."""

    def near(self, picks: Picks) -> tuple[I64, I64]:
        """The first record and the number of records, for each row; 0 records: any row may replace it."""
        ...


@dataclass(frozen=True)
class RowFacts:
    """Facts that hold for every row of a node. Steps change them with `dataclasses.replace`."""

    ids: frozenset[str] = frozenset()  # columns of token ids, which outputs convert to their dtype
    bounds: Bounds = field(default_factory=Bounds)  # of the values of `ids`
    own_labels: bool = False  # labels were made by Penstock, from the tokens
    certain: bool = True  # picks alone determine what `fetch` returns: no filter, no user function
    even: bool = False  # all rows have the same number of bytes
    one_copy: bool = False  # the columns of a batch are one copy of the rows that were read
    weighs: bool = False  # `Node.costs` is known
    stretches: I64 | None = None  # rows of each stretch that is read from one place; a shuffle stays near these
    blocks: I64 | None = None  # rows of each block that the source declares; a lane shuffle follows these
    numbered: bool = False  # row n is record n of the source
    spares: Spares | None = None  # where the replacement of a rejected row is drawn from; None: from all rows
    lanes: bool = False  # rows are assigned to ranks by lane: `Node.lanes`
    ahead: int = 1 << 14  # rows to pick in one call: many where a pick is arithmetic, fewer where it costs memory
    sources: int = 1  # sources that the rows of a batch may come from: with many, more rows in one read cost less each
    width: int | None = None  # tokens of every row, padding included, where rows have one length
    per_batch: BatchColumns | None = None
    by_document: bool = False  # reading needs to know where documents begin: the table of a token store
    moves: bool = False  # the record at a position may be another one in another epoch
    rejects: bool = False  # a step rejects rows: a position may hold another record than the plan says, or none
    unread: str = ""  # what to write to read the columns of the source that are not read
    draws: bool = False  # what a row holds depends on random draws, which differ between epochs
