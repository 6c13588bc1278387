"""The columns of packed rows: `input_ids`, `labels`, `segment_ids`, `position_ids`, and those of the batch.

Everything planned is in the layout. Inputs and labels of a batch are one array of tokens and the same one place on,
converted to their final dtype in one call, when the batch is delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Compact
from penstock.steps.loss_runs import IGNORE
from penstock.steps.pack_layout import I32, PackLayout
from penstock.steps.pack_tokens import Tokens
from penstock.steps.picks import BlockLayout, Picks
from penstock.steps.rows import Memory


@dataclass(frozen=True)
class PackedBatchColumns:
    """Adds `cu_seqlens` (where sequences begin), `max_seqlen` (the longest) and `valid_labels`."""

    length: int
    slots: int | None  # sequences per row, padding included, where cu_seqlens has one length
    labelled: bool

    def add(self, columns: Columns, layout: BlockLayout | None, labels: int) -> Columns:
        positions = columns.get("position_ids")
        if not isinstance(positions, np.ndarray):
            return columns  # a function after .batch() has removed it
        if isinstance(layout, PackLayout):
            cuts, longest = layout.cuts().copy(), layout.longest()
        else:
            cuts = np.append(np.flatnonzero(positions.reshape(-1) == 0), positions.size).astype(np.int32)
            longest = int(np.diff(cuts).max(initial=0))
        if self.slots is not None:
            rows, longest = len(positions), self.length
            cuts = np.append(cuts, np.full(rows * self.slots + 1 - len(cuts), rows * self.length, np.int32))
        columns = {**columns, "cu_seqlens": cuts, "max_seqlen": np.array(longest, np.int32)}
        if self.labelled and "labels" in columns:
            columns["valid_labels"] = np.array(labels, np.int64)
        return columns


class Marks:
    """The labels of some rows that are not the token found by their place: none where a document begins or ends, the
    token itself where it continues in another row, none in holes."""

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


class PackMaker:
    """Makes the columns of packs of one source. `shift`: 1 for the next token as label, 0 for the same, None for no
    labels."""

    def __init__(self, tokens: Tokens, length: int, shift: int | None) -> None:
        self.tokens, self.length, self.shift = tokens, length, shift
        self.ramp = np.empty(0, np.int32)

    def places(self, layout: PackLayout) -> tuple[I32, I32]:
        """Which sequence of its row each place is in, and 0, 1, 2, ... inside each."""
        table, sequences, rows = layout.table, layout.sequences, layout.stop - layout.start
        sizes, count = table.sizes[sequences], rows * self.length
        segments = table.numbers[sequences].repeat(sizes)
        if len(self.ramp) < count:
            self.ramp = np.arange(count, dtype=np.int32)  # made once and only read
        positions = layout.cuts()[:-1].repeat(sizes)
        np.subtract(self.ramp[:count], positions, positions)
        return segments.reshape(rows, self.length), positions.reshape(rows, self.length)


class PackRows:
    """Packs whose tokens have been read."""

    __slots__ = ("layout", "maker", "marks", "picks", "tokens")

    def __init__(self, maker: PackMaker, picks: Picks) -> None:
        self.maker, self.picks, self.layout = maker, picks, cast("PackLayout", picks.layout)
        self.tokens, after = maker.tokens.read(self.layout)
        self.marks = Marks(self.layout, after)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        maker, layout, tokens, rows = self.maker, self.layout.rows(start, stop), self.tokens, stop - start
        length, shift = maker.length, maker.shift
        first, count = start * length, rows * length
        inputs = tokens[first : first + count]
        out: Columns = {}
        if memory is None:
            out["input_ids"], labels = inputs.reshape(rows, length), None
            if shift is not None:
                labels = tokens[first + shift : first + shift + count].astype(np.int64)
                out["labels"] = labels.reshape(rows, length)
        else:
            both = memory.buffers.take((1 if shift is None else 2, rows, length), memory.ids)
            flat = both.reshape(-1)
            flat[:count] = inputs
            out["input_ids"], labels = both[0], None
            if shift is not None:
                labels = flat[count:]
                labels[: count - shift] = flat[shift:count]  # cheaper than converting again
                if shift and rows:  # a rank may have no row of the last, short batch
                    labels[-1] = tokens[first + count]
                out["labels"] = both[1]
        if labels is not None:
            self.marks.put(labels, layout)
        out["segment_ids"], out["position_ids"] = maker.places(layout)
        return out

    def compact(self, start: int, stop: int) -> Compact | None:
        return None
