"""Copies windows and documents out of long token streams: the hot path of training.

A window is one element of a strided view whose items are whole rows, so NumPy copies each with one memcpy and the
whole call costs a few microseconds plus the bytes, in one file or in a thousand (see `arrays`). Index arithmetic per
token (`tokens[starts[:, None] + arange]`) gives the same numbers about ten times slower. Rows that cross from one part
of the stream into the next are joined exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.store.arrays import Part, Table, everywhere, windows

_COPY_ABOVE = 24  # mean tokens per document above which one slice copy each beats index arithmetic


@runtime_checkable
class Parts(Protocol):
    """A stream of tokens in one or more arrays. Position p is in part k when bounds[k] <= p < bounds[k + 1]."""

    @property
    def bounds(self) -> NDArray[np.int64]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def sound(self) -> bool:
        """Whether nothing is left to verify."""
        ...

    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> Table:
        """A table with these parts open, after these ranges (inside them) were found to be sound."""
        ...


def rows(
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The ranges one after another in one array.

    >>> rows(np.arange(10), np.array([8, 0]), np.array([2, 3])).tolist()
    [8, 9, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if out is None:
        out = np.empty(total, tokens.dtype)
    if total > _COPY_ABOVE * len(starts):
        at = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            out[at : at + length] = tokens[start : start + length]
            at += length
    else:
        shift = np.repeat(starts - (ends - lengths), lengths)
        out[:] = tokens[np.arange(total) + shift]
    return out


def reader(parts: Parts, starts: NDArray[np.int64], length: int) -> Callable[[int, int], NDArray[Any]]:
    """`read(a, b)` is `gather(parts, starts[a:b], length)`; what can be found out for all of them is found out once.

    While there are pages left to verify, and where rows cross from part to part, each call is a whole `gather`.
    """

    def careful(a: int, b: int) -> NDArray[Any]:
        return gather(parts, starts[a:b], length)

    if not parts.sound or length < 1 or not len(starts):
        return careful
    _check(parts, starts, length)
    part: Part = 0
    local, bounds = starts, parts.bounds
    if len(bounds) > 2:
        part = np.searchsorted(bounds, starts, "right") - 1
        local = starts - bounds[part]
        if bool((starts + length > bounds[part + 1]).any()):
            return careful
    table, dtype = parts.ready(part, local, length), parts.dtype
    found = everywhere(table, part, local, length, dtype)
    if found is None:
        return careful
    view, at = found

    return _Rows(table, view, at, dtype, length)


class _Rows:
    """Reads windows of an open table, which it holds so that its maps stay."""

    __slots__ = ("at", "dtype", "length", "table", "view")

    def __init__(
        self, table: Table, view: NDArray[Any], at: NDArray[np.int64], dtype: np.dtype[Any], length: int
    ) -> None:
        self.table, self.view, self.at, self.dtype, self.length = table, view, at, dtype, length

    def __call__(self, a: int, b: int) -> NDArray[Any]:
        found: NDArray[Any] = self.view[self.at[a:b]].view(self.dtype)
        return found.reshape(b - a, self.length)


def _check(parts: Parts, starts: NDArray[np.int64], length: int) -> None:
    """Every row lies inside the stream."""
    bounds = parts.bounds
    last = int(bounds[-1]) - length
    # A negative start, seen as unsigned, is past any end: one pass checks both sides.
    if length < 0 or (len(starts) and (last < 0 or int(starts.view(np.uint64).max()) > last)):
        bad = starts[(starts < 0) | (starts > last)] if length >= 0 else starts
        raise UsageError(
            f"windows of {length} tokens inside a stream of {int(bounds[-1])}",
            got=f"start {int(bad[0])}" if len(bad) else f"length {length}",
            fix="use starts in [0, n_tokens - length]",
        )


def gather(parts: Parts, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
    """Array (len(starts), length) cut out of the stream. Raises when a row is not wholly inside it."""
    starts = np.asarray(starts, np.int64)
    _check(parts, starts, length)
    bounds = parts.bounds
    if length == 0 or len(starts) == 0:
        return np.empty((len(starts), length), parts.dtype)
    if len(bounds) == 2:
        return windows(parts.ready(0, starts, length), 0, starts, length, parts.dtype)
    part = np.searchsorted(bounds, starts, "right") - 1
    local = starts - bounds[part]
    crossing = starts + length > bounds[part + 1]
    if not crossing.any():
        return windows(parts.ready(part, local, length), part, local, length, parts.dtype)
    if crossing.all():
        out = np.empty((len(starts), length), parts.dtype)
    else:  # rows that cross read some other row for now, so that all are one call
        other = int(np.argmin(crossing))
        part, local = np.where(crossing, part[other], part), np.where(crossing, local[other], local)
        out = windows(parts.ready(part, local, length), part, local, length, parts.dtype)
    for place in np.flatnonzero(crossing).tolist():
        _join(parts, int(starts[place]), out[place])
    return out


def _join(parts: Parts, start: int, out: NDArray[Any]) -> None:
    """One window that lies in two or more parts."""
    bounds = parts.bounds
    part = int(np.searchsorted(bounds, start, "right")) - 1
    done = 0
    while done < len(out):
        local = start + done - int(bounds[part])
        here = min(len(out) - done, int(bounds[part + 1] - bounds[part]) - local)
        if here > 0:
            tokens = parts.ready(part, np.array([local]), here).array(part)
            out[done : done + here] = tokens[local : local + here]
            done += here
        part += 1


def gather_rows(
    parts: Parts, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Ranges of the stream, each inside one part, as values and offsets of a ragged column."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), parts.dtype)
    full = np.flatnonzero(lengths)  # an empty document may sit at the very end of the stream, in no part
    if len(full) == 0:
        return values, offsets
    starts, lengths, to = starts[full], lengths[full], offsets[full]
    bounds = parts.bounds
    if len(bounds) == 2:
        return rows(parts.ready(0, starts, lengths).array(0), starts, lengths, values), offsets
    part = np.searchsorted(bounds, starts, "right") - 1
    local = starts - bounds[part]
    arrays = parts.ready(part, local, lengths).arrays
    for p, at, start, n in zip(part.tolist(), to.tolist(), local.tolist(), lengths.tolist(), strict=True):
        values[at : at + n] = arrays[p][start : start + n]
    return values, offsets


def by_part(bounds: NDArray[np.int64], positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Each part that holds some of the positions, and their places in the array: a slice where they are in order.

    >>> [(p, w.tolist()) for p, w in by_part(np.array([0, 4, 9]), np.array([8, 1, 4]))]
    [(0, [1]), (1, [0, 2])]
    >>> list(by_part(np.array([0, 4, 9]), np.array([1, 8, 4])))
    [(0, slice(0, 1, None)), (1, slice(1, 3, None))]
    """
    if len(positions) == 0:
        return
    part = np.searchsorted(bounds, positions, "right") - 1
    order = None if bool((part[1:] >= part[:-1]).all()) else np.argsort(part, kind="stable")
    ordered = part if order is None else part[order]
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(part)]
    for a, b in pairwise(edges):
        yield int(ordered[a]), slice(a, b) if order is None else order[a:b]
