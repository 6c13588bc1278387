"""How many bytes the rows of a call will be, where sources know it before they are read.

The sizes of the last batches say nothing about the next ones: after a thousand short documents come the books. A call
that reads several batches ends before the one with which its rows would be more than `MOST_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from penstock.sources.base import LengthSource, SizedRows
from penstock.steps.node import Node, Reads
from penstock.steps.picks import Picks

MOST_BYTES = 4 << 20
_Size = Callable[[Reads], int]


class CallSizes:
    """The bytes that rows of a plan will be, of the sources that know."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._sizes: dict[int, _Size | None] = {leaf.number: _size_of(leaf.source) for leaf in root.leaves()}
        self.known = not root.facts.even and any(self._sizes.values())
        self._sources = [leaf.source for leaf in root.leaves()]

    @cached_property
    def _largest(self) -> int | None:
        """The bytes of the largest row of all sources; None if one of them does not know."""
        largest = [source.largest_row() if isinstance(source, SizedRows) else None for source in self._sources]
        return None if None in largest else max(size for size in largest if size is not None)

    def bytes_of(self, picks: Picks) -> int:
        """The bytes of these rows, or more if they are few; 0 for rows of sources that do not know."""
        if self._largest is not None and (most := self._largest * len(picks)) <= MOST_BYTES:
            return most
        found = ((self._sizes[reads.leaf.number], reads) for reads in self._root.reads(picks))
        return sum(size(reads) for size, reads in found if size is not None)


def _size_of(source: Any) -> _Size | None:
    if isinstance(source, SizedRows):
        return lambda reads: source.bytes_of_rows(reads.starts)
    if isinstance(source, LengthSource):
        width = source.dtype.itemsize
        return lambda reads: int(reads.lengths.sum()) * width
    return None


def last_fitting(lo: int, hi: int, bytes_of: Callable[[int, int], int]) -> int:
    """The end of the longest of [lo, hi), its first half, quarter, ... that is at most `MOST_BYTES`, or one step.

    >>> last_fitting(8, 72, lambda lo, hi: (hi - lo) << 19)
    16
    """
    while hi - lo > 1 and bytes_of(lo, hi) > MOST_BYTES:
        hi = lo + (hi - lo) // 2
    return hi
