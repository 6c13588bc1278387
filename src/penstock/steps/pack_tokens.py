"""The tokens of packed rows: pieces of the stream one after another, padding between them.

One slice per piece where pieces are long, and index arithmetic where not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock.order.ragged_index import I64, ranges
from penstock.sources.base import TokenParts, TokenSource
from penstock.sources.token_documents import read_pieces
from penstock.store.gather import StableReads

if TYPE_CHECKING:
    from penstock.steps.pack_layout import PackLayout

COPY_ABOVE = 24  # mean tokens of a piece above which one copy each beats index arithmetic
FEW_PARTS = 12
PADDING = -1  # the number of the part that padding is cut from


class Slices(NamedTuple):
    """Where each sequence of a table is: the number of its part, its first token there and its end.

    Of pieces also, as arrays, what must be sound before they are read. `views` are the parts, once nothing is left to
    verify.
    """

    part: I64
    begin: I64
    end: I64
    follow: list[int]  # the sequences whose document continues in another row
    parts: I64
    local: I64
    needed: I64
    views: dict[int, memoryview]


class Tokens:
    """Reads the tokens of rows of one source."""

    def __init__(self, source: TokenSource, length: int, pad_id: int) -> None:
        self.source = source
        fits = pad_id <= np.iinfo(source.dtype).max
        self.dtype = source.dtype if fits else np.dtype(np.int64)
        self.parts = source if isinstance(source, TokenParts) else None
        self.stable = source if isinstance(source, StableReads) else None
        self.pad = np.full(length, pad_id, self.dtype)

    def slices(self, begins: I64, lengths: I64, goes_on: I64, sizes: I64, mine: I64) -> Slices | None:
        """For pieces that begin there in the stream, `goes_on` where the token after them is needed too; `mine` are
        their places among all sequences. None if pieces are short or the source is a user's class."""
        if self.parts is None or self.dtype != self.source.dtype or int(lengths.sum()) < COPY_ABOVE * len(lengths):
            return None
        if self.parts.n_parts < FEW_PARTS:  # comparing with each is quicker than searching
            part, bounds = np.zeros(len(begins), np.int64), self.parts.bounds
            for bound in bounds[1:-1].tolist():
                part += begins >= bound
            local = begins - bounds[part]
        else:
            part, local, _ = self.parts.places(begins)
        every, first = np.full(len(sizes), PADDING), np.zeros(len(sizes), np.int64)
        every[mine], first[mine] = part, local
        needed = lengths + goes_on
        follow = mine[goes_on > 0].tolist()
        return Slices(every, first, first + sizes, follow, part, local, needed, {})

    def read(self, layout: PackLayout) -> tuple[NDArray[Any], list[int]]:
        """The tokens of these rows and one more, and the token after each piece whose document continues."""
        if self.stable is None:
            return self._read(layout)
        parts = self.stable.in_parts(len(layout), lambda start, stop: self._read(layout.rows(start, stop)))
        if len(parts) == 1:
            return parts[0]
        tokens = [*(tokens[:-1] for tokens, _ in parts), parts[0][0][-1:]]  # each part has one more, of padding
        return np.concatenate(tokens), [token for _, after in parts for token in after]

    def _read(self, layout: PackLayout) -> tuple[NDArray[Any], list[int]]:
        slices = layout.table.slices
        return self._spread(layout) if slices is None else self._join(layout, slices)

    def _join(self, layout: PackLayout, slices: Slices) -> tuple[NDArray[Any], list[int]]:
        """One copy of each piece, all in one call: the processor then waits for many pieces of memory at once."""
        views = slices.views or self._views(layout, slices)
        these = layout.sequences
        each = zip(slices.part[these].tolist(), slices.begin[these].tolist(), slices.end[these].tolist(), strict=True)
        rows = [views[part][begin:end] for part, begin, end in each]
        rows.append(views[PADDING][:1])
        after = [views[int(slices.part[s])][slices.end[s]] for s in slices.follow[layout.follow]]
        return np.frombuffer(bytearray().join(rows), self.dtype), after

    def _views(self, layout: PackLayout, slices: Slices) -> dict[int, memoryview]:
        """The parts that hold these rows, after the tokens to read were verified."""
        parts = cast("TokenParts", self.parts)
        sound = parts.sound
        these = slice(None) if sound else layout.pieces
        part = slices.parts[these]
        table = parts.ready(part, slices.local[these], slices.needed[these])
        views = {p: table.array(p).data for p in np.unique(part).tolist()} | {PADDING: self.pad.data}
        if sound:
            slices.views.update(views)
        return views

    def _spread(self, layout: PackLayout) -> tuple[NDArray[Any], list[int]]:
        """All pieces in one gather, then to their places."""
        table, pieces = layout.table, layout.pieces
        begins, lengths = table.begins[pieces], table.lengths[pieces]
        out = np.full(len(layout) * table.length + 1, self.pad[0], self.dtype)
        out[ranges(table.at[pieces] - layout.first, lengths)] = read_pieces(self.source, begins, lengths)
        follow = table.follow[layout.follow]
        after = self.source.gather(table.begins[follow] + table.lengths[follow], 1)[:, 0].tolist() if follow else []
        return out, after
