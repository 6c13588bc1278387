"""The columns of packed rows: `input_ids`, `labels`, `segment_ids`, `position_ids`, and what is said of a batch.

A batch of its own is made in the moment it is delivered, straight into the memory it is given in: inputs and labels are
one array of tokens and the same one place on, widened in one call (see `Packed`). Everything planned is in the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import Empty
from penstock.core.columns import Columns
from penstock.steps.masks import IGNORE
from penstock.steps.node import Later, Picks
from penstock.steps.pack_layout import I32, PackLayout
from penstock.steps.pack_tokens import Tokens


@dataclass(frozen=True)
class Sealed:
    """Adds where sequences begin, the longest of them, and the count of labels."""

    length: int
    slots: int | None  # sequences a row may have, padding included, where cu_seqlens has one length
    labelled: bool

    def apply(self, columns: Columns, picks: Picks, labels: int) -> Columns:
        positions = columns.get("position_ids")
        if not isinstance(positions, np.ndarray):
            return columns  # a function after .batch() has left it out
        known = picks.layout
        if isinstance(known, PackLayout):
            self.seal(columns := dict(columns), known.cuts(), known.longest(), len(positions), labels)
            return columns
        cuts = np.append(np.flatnonzero(positions.reshape(-1) == 0), positions.size).astype(np.int32)
        self.seal(columns := dict(columns), cuts, int(np.diff(cuts).max(initial=0)), len(positions), labels)
        return columns

    def seal(self, columns: Columns, cuts: I32, longest: int, rows: int, labels: int) -> None:
        """Says it of a batch whose sequences lie between `cuts`."""
        if self.slots is not None:
            longest = self.length
            cuts = np.append(cuts, np.full(rows * self.slots + 1 - len(cuts), rows * self.length, np.int32))
        columns["cu_seqlens"] = cuts
        columns["max_seqlen"] = np.array(longest, np.int32)
        if self.labelled and "labels" in columns:
            columns["valid_labels"] = np.array(labels, np.int64)


class Marks:
    """The labels of some rows that are not the token found by their place: none where a document begins or ends, the
    token itself where it goes on in another row, none in holes."""

    __slots__ = ("at", "labels", "skip")

    def __init__(self, layout: PackLayout, after: list[int]) -> None:
        table, pieces = layout.table, layout.pieces
        self.skip, self.at = pieces.start, table.bare[pieces]
        self.labels = np.full(len(self.at), IGNORE)
        if after:
            self.labels[np.array(table.follow[layout.follow]) - self.skip] = after

    def put(self, labels: NDArray[Any], layout: PackLayout) -> None:
        """Into the labels of rows that are among these."""
        offsets, first = layout.table.offsets, layout.first
        mine = slice(offsets[layout.start] - self.skip, offsets[layout.stop] - self.skip)
        labels[self.at[mine] - first] = self.labels[mine]
        for begin, end in layout.holes():
            labels[begin:end] = IGNORE


class PackedRows:
    """Makes the columns of rows of one source. `shift`: 1 for the next token as label, 0 for the same, None for no
    labels."""

    def __init__(self, tokens: Tokens, length: int, shift: int | None, sealed: Sealed) -> None:
        self.tokens, self.length, self.shift, self.sealed = tokens, length, shift, sealed
        self.ramp = np.empty(0, np.int32)

    def columns(self, layout: PackLayout) -> Columns:
        """All columns, tokens in the type they are stored in."""
        shape = len(layout), self.length
        tokens, after = self.tokens.read(layout)
        out: Columns = {"input_ids": tokens[:-1].reshape(shape)}
        if self.shift is not None:
            labels = tokens[self.shift : self.shift + len(tokens) - 1].astype(np.int64)
            Marks(layout, after).put(labels, layout)
            out["labels"] = labels.reshape(shape)
        out["segment_ids"], out["position_ids"] = self.places(layout, layout.cuts())
        return out

    def later(self, layout: PackLayout, edges: list[int], labels: list[int]) -> list[Later]:
        """The batches whose rows lie between `edges`, which count from 0; what is left to do is done by each."""
        whole = layout.rows(edges[0], edges[-1])
        tokens, after = self.tokens.read(whole)
        marks = Marks(whole, after)
        return [
            Packed(self, layout.rows(a, b), tokens, (a - edges[0]) * self.length, marks, count)
            for (a, b), count in zip(pairwise(edges), labels, strict=True)
        ]

    def places(self, layout: PackLayout, cuts: I32) -> tuple[I32, I32]:
        """Which sequence of its row each place is in, and 0, 1, 2, ... inside each."""
        table, sequences, shape = layout.table, layout.sequences, (len(layout), self.length)
        sizes = table.sizes[sequences]
        segments = table.numbers[sequences].repeat(sizes)
        positions = cuts[:-1].repeat(sizes)
        if len(self.ramp) < len(positions):
            self.ramp = np.arange(len(positions), dtype=np.int32)  # made once and only read
        np.subtract(self.ramp[: len(positions)], positions, out=positions)
        return segments.reshape(shape), positions.reshape(shape)


class Packed:
    """One batch: its tokens have been read, the rest is made when it is wanted."""

    __slots__ = ("at", "labels", "layout", "maker", "marks", "tokens")

    def __init__(
        self, maker: PackedRows, layout: PackLayout, tokens: NDArray[Any], at: int, marks: Marks, labels: int
    ) -> None:
        self.maker, self.layout, self.tokens = maker, layout, tokens
        self.at, self.marks, self.labels = at, marks, labels

    @property
    def nbytes(self) -> int:
        return len(self.layout) * self.maker.length * (24 if self.maker.shift is not None else 16)

    def make(self, ids: np.dtype[Any], empty: Empty) -> Columns:
        maker, layout, tokens = self.maker, self.layout, self.tokens
        rows, length, shift, item = layout.stop - layout.start, maker.length, maker.shift, tokens.itemsize
        shape = (1 if shift is None else 2, rows, length)
        steps = ((shift or 0) * item, length * item, item)
        both = empty(shape, ids)
        np.copyto(both, np.ndarray(shape, tokens.dtype, tokens, self.at * item, steps), "unsafe")
        out: Columns = {"input_ids": both[0]}
        if shift is not None:
            out["labels"] = labels = both[1]
            self.marks.put(labels.reshape(-1), layout)
        cuts = layout.cuts()
        out["segment_ids"], out["position_ids"] = maker.places(layout, cuts)
        maker.sealed.seal(out, cuts, layout.longest(), rows, self.labels)
        return out
