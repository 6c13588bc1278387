"""The byte ranges of records by their number, for all line files at once: no work for each file.

Rows of a shuffled batch over 10,000 files come from as many files as there are rows. So the starts of all records are
one array, of which the index of each file is a part, and what a batch reads is found by a few NumPy calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.sources.cutting import Ints
from penstock.sources.line_index import Index, Wanted
from penstock.store.doctable import check_range
from penstock.store.part_search import PartSearch


@dataclass(slots=True)
class Spans:
    """Records to be read: their places in the answer, files, rows in them, and bytes [start, stop)."""

    places: Ints
    files: Ints
    rows: Ints
    starts: Ints
    stops: Ints

    def table(self) -> Ints:
        """A row (file, start, stop) for each."""
        return np.column_stack((self.files, self.starts, self.stops))

    def __getitem__(self, which: NDArray[Any]) -> Spans:
        return Spans(*(a[which] for a in (self.places, self.files, self.rows, self.starts, self.stops)))

    def by_file(self) -> list[Wanted]:
        """Returns the same, file by file."""
        order = np.argsort(self.files, kind="stable")
        files = self.files[order]
        edges = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(files)]
        places, rows = self.places[order].tolist(), self.rows[order].tolist()
        ranges = list(zip(self.starts[order].tolist(), self.stops[order].tolist(), strict=True))
        found = zip(files[edges[:-1]].tolist() if len(files) else (), edges, edges[1:], strict=False)
        return [Wanted(file, ranges[a:b], places[a:b], rows[a:b]) for file, a, b in found]


_BLOCK = 1 << 20  # starts that are looked at together


class RecordTable:
    """The indexes of some files, whose starts become parts of one array. `compressed` are numbers of files."""

    def __init__(self, indexes: Sequence[Index], compressed: Sequence[int]) -> None:
        self.indexes, self.compressed = list(indexes), list(compressed)
        self.firsts = np.cumsum([0] + [len(index.starts) for index in indexes])
        self.starts = self.indexes[0].starts if len(indexes) == 1 else np.empty(int(self.firsts[-1]), np.int64)
        if len(indexes) > 1:
            for index, a, b in zip(self.indexes, self.firsts[:-1].tolist(), self.firsts[1:].tolist(), strict=True):
                self.starts[a:b] = index.starts
                index.starts = self.starts[a:b]
        self._ends = np.array([index.end for index in indexes], np.int64)
        self._damaged = np.array([bool(index.damage) for index in indexes], bool)
        self.is_compressed = np.zeros(len(indexes), bool)
        self.is_compressed[self.compressed] = True
        self._search = PartSearch(self.firsts)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def nbytes(self) -> int:
        return sum(index.nbytes for index in self.indexes)

    @cached_property
    def largest(self) -> int:
        """The bytes of the longest record; looks at all starts once."""
        longest = 0
        for first, last, end in zip(self.firsts, self.firsts[1:], self._ends, strict=False):
            for at in range(int(first), int(last), _BLOCK):
                starts = self.starts[at : min(at + _BLOCK, int(last)) + 1]
                inner = starts if at + _BLOCK < last else np.append(starts[: int(last) - at], end)
                longest = max(longest, int(np.diff(inner).max(initial=0)))
        return longest

    def split(self, indices: NDArray[np.int64], where: str) -> tuple[Ints, Ints]:
        """File and row in the file of each record number."""
        check_range(indices, len(self), where=where)
        files = self._search(indices)
        return files, indices - self.firsts[files]

    def spans(self, indices: NDArray[np.int64], where: str, longest: int) -> tuple[Spans, Spans]:
        """What is read of each record, at most `longest` bytes; and the records that are known to be damaged.

        Blank lines after a record belong to its range: only what is read can tell a long record from those.
        """
        files, rows = self.split(indices, where)
        last = indices + 1 == self.firsts[files + 1]
        starts = self.starts[indices]
        stops = np.where(last, self._ends[files], self.starts[np.minimum(indices + 1, len(self) - 1)])
        found = Spans(np.arange(len(files)), files, rows, starts, np.minimum(stops, starts + longest))
        damaged = last & self._damaged[files]
        if not damaged.any():
            return found, found[damaged]
        return found[~damaged], found[damaged]

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordTable, (self.indexes, self.compressed)  # not also the array that they are parts of
