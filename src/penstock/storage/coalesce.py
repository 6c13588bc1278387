"""Merges byte ranges of an object into requests, and counts the requests that some reads take.

One rule for the cache that fetches, for readers of remote files and for `penstock plan`, so that a run makes the
requests that its plan predicted. Pure functions on arrays; about 0.1 us per range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.order.ragged_index import ranges
from penstock.storage.sizes import AGAIN, GAP, LARGEST, PAGE

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """Request i reads the bytes [starts[i], stops[i]); input range j is part of request `index[j]`."""

    starts: I64
    stops: I64
    index: I64

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def bytes(self) -> int:
        """The bytes of all requests."""
        return int((self.stops - self.starts).sum())


def coalesce(
    starts: I64, stops: I64, gap: int = GAP, largest: int = LARGEST, apart: NDArray[np.bool_] | None = None
) -> Requests:
    """Merges ranges [starts[i], stops[i]) of one object, sorted by start, into requests.

    A range joins the request before it if at most `gap` unused bytes are between them and the request stays at most
    `largest` bytes long. A range that is longer than `largest` is a request of its own. Ranges may overlap. A range
    that is `apart` does not join the one before it.

    >>> made = coalesce(np.array([0, 10, 50]), np.array([4, 20, 60]), gap=8, largest=100)
    >>> made.starts.tolist(), made.stops.tolist(), made.index.tolist()
    ([0, 50], [20, 60], [0, 0, 1])
    """
    starts, stops = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if starts.shape != stops.shape or (starts > stops).any() or (starts[1:] < starts[:-1]).any():
        raise UsageError("ranges [start, stop) sorted by start", got=f"{len(starts)} starts and {len(stops)} stops")
    if gap < 0 or largest < 1:
        raise UsageError("a gap of at least 0 bytes and requests of at least 1", got=f"gap={gap}, largest={largest}")
    if not len(starts):
        return Requests(starts, stops, starts)
    new = np.append(True, stops[1:] > np.maximum.accumulate(stops)[:-1])  # the others are inside an earlier range
    begins, ends = starts[new], stops[new]
    n = len(begins)
    far = begins[1:] - ends[:-1] > gap
    if apart is not None:
        far |= apart[new][1:]
    breaks = np.append(np.flatnonzero(far) + 1, n)
    # `after[i]`: the range at which the next request begins, if one begins at range i.
    after = np.minimum(
        np.searchsorted(ends, begins + largest, "right"), breaks[np.searchsorted(breaks, np.arange(n), "right")]
    )
    firsts = _chain(np.maximum(after, np.arange(1, n + 1)))
    number = np.zeros(n, np.int64)
    number[firsts[1:]] = 1
    return Requests(begins[firsts], ends[np.append(firsts[1:], n) - 1], np.cumsum(number)[np.cumsum(new) - 1])


def parted(pages: I64, kept: NDArray[np.bool_], page_bytes: int = PAGE, gap: int = GAP) -> NDArray[np.bool_]:
    """Which of these pages are not fetched together with the one before: too many pages between them are `kept`.

    >>> kept = np.array([0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0], bool)
    >>> parted(np.array([0, 2, 8, 10]), kept, PAGE).tolist()
    [False, False, True, False]
    """
    out, between = np.zeros(len(pages), bool), pages[1:] - pages[:-1] - 1
    near = np.flatnonzero((between > 0) & (between * page_bytes <= gap) & (between * page_bytes > AGAIN))
    if len(near):
        counts = between[near]
        there = kept[ranges(pages[near] + 1, counts)].astype(np.int64)
        out[near + 1] = np.add.reduceat(there, np.cumsum(counts) - counts) * page_bytes > AGAIN
    return out


def _chain(after: I64) -> I64:
    """The numbers 0, after[0], after[after[0]], ... below len(after)."""
    if (after == np.arange(1, len(after) + 1)).all():  # nothing was merged
        return after - 1
    following, out, at = after.tolist(), [], 0
    while at < len(following):
        out.append(at)
        at = following[at]
    return np.array(out, np.int64)


def pages(offsets: I64, lengths: I64 | int, page_bytes: int = PAGE) -> I64:
    """The distinct numbers of the pages that hold the bytes [offset, offset + length), in increasing order.

    >>> pages(np.array([10, 200, 0]), np.array([20, 100, 0]), page_bytes=100).tolist()
    [0, 2]
    """
    offsets = np.asarray(offsets, np.int64)
    counts = np.broadcast_to(np.asarray(lengths, np.int64), offsets.shape)
    first = offsets // page_bytes
    found = np.where(counts > 0, (offsets + counts - 1) // page_bytes - first + 1, 0)
    return distinct(ranges(first, found))


def distinct(numbers: I64) -> I64:
    """The distinct numbers in increasing order; ten times as fast as `np.unique`, which hashes.

    >>> distinct(np.array([5, 1, 5])).tolist()
    [1, 5]
    """
    found = np.sort(numbers)
    kept: I64 = found[np.append(True, found[1:] != found[:-1])] if len(found) else found
    return kept
