"""Copies windows and documents out of long token streams: the hot path of training.

A window is one element of a strided view whose items are complete rows, so NumPy copies each with one memcpy and a
call costs a few microseconds plus the bytes, for one file or a thousand (see `arrays`). Index arithmetic per token
(`tokens[starts[:, None] + arange]`) is about ten times slower. Rows that cross from one part of the stream into the
next are joined exactly. Every public function here checks all ranges before memory is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import index
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StoreError, UsageError
from penstock.store.arrays import ArrayTable, Part, row_view, windows

I64 = NDArray[np.int64]

_COPY_ABOVE = 24  # mean tokens per document above which one slice copy each beats index arithmetic


@runtime_checkable
class Parts(Protocol):
    """A stream of tokens in one or more arrays. Position p is in part k if bounds[k] <= p < bounds[k + 1]."""

    @property
    def bounds(self) -> NDArray[np.int64]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def sound(self) -> bool:
        """Whether every token is verified, or need not be."""
        ...

    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these parts, checks that no file was cut, verifies these ranges; returns the table of open parts."""
        ...


def rows(
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Concatenates ranges of one array. The caller has checked that they lie inside it.

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
    """Returns `read(a, b)`, equal to `gather(parts, starts[a:b], length)`, with the checks done once for all starts.

    While there are pages left to verify, and where rows cross from part to part, each call is a complete `gather`.
    """
    starts, length = np.asarray(starts, np.int64), index(length)

    def checked(a: int, b: int) -> NDArray[Any]:
        return gather(parts, starts[a:b], length)

    if not parts.sound or length < 1 or not len(starts):
        return checked
    _check(parts, starts, length)
    part: Part = 0
    local, bounds = starts, parts.bounds
    if len(bounds) > 2:
        part = np.searchsorted(bounds, starts, "right") - 1
        local = starts - bounds[part]
        if bool((starts + length > bounds[part + 1]).any()):
            return checked
    table, dtype = parts.ready(part, local, length), parts.dtype
    found = row_view(table, part, local, length, dtype)
    if found is None:
        return checked
    view, at = found
    return _WindowReader(table, part, view, at, dtype, length)


class _WindowReader:
    """Reads windows of an open table, and references it so that its maps stay open."""

    __slots__ = ("at", "dtype", "length", "part", "table", "view")

    def __init__(
        self,
        table: ArrayTable,
        part: Part,
        view: NDArray[Any],
        at: NDArray[np.int64],
        dtype: np.dtype[Any],
        length: int,
    ) -> None:
        self.table, self.part, self.view, self.at, self.dtype, self.length = table, part, view, at, dtype, length

    def __call__(self, a: int, b: int) -> NDArray[Any]:
        self.table.check(self.part if isinstance(self.part, int) else self.part[a:b])
        found: NDArray[Any] = self.view[self.at[a:b]].view(self.dtype)
        return found.reshape(b - a, self.length)


def _check(parts: Parts, starts: NDArray[np.int64], length: int) -> None:
    """Raises unless every window lies inside the stream. `starts` is int64 and `length` a Python int."""
    bounds = parts.bounds
    last = int(bounds[-1]) - length
    # A negative start is huge as an unsigned number: one pass checks both sides.
    if length < 0 or (len(starts) and (last < 0 or int(starts.view(np.uint64).max()) > last)):
        bad = starts[(starts < 0) | (starts > last)] if length >= 0 else starts
        raise UsageError(
            f"windows of {length} tokens inside a stream of {int(bounds[-1])}",
            got=f"start {int(bad[0])}" if len(bad) else f"length {length}",
            fix="use starts in [0, n_tokens - length]",
        )


def gather(parts: Parts, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
    """Returns an array (len(starts), length) of windows. Raises if one is not completely inside the stream."""
    starts, length = np.asarray(starts, np.int64), index(length)
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
    else:  # crossing rows read another row's tokens first, so that all rows are one call; `_join` overwrites them
        other = int(np.argmin(crossing))
        part, local = np.where(crossing, part[other], part), np.where(crossing, local[other], local)
        out = windows(parts.ready(part, local, length), part, local, length, parts.dtype)
    for place in np.flatnonzero(crossing).tolist():
        _join(parts, int(starts[place]), out[place])
    return out


def _join(parts: Parts, start: int, out: NDArray[Any]) -> None:
    """Copies one window that lies in two or more parts."""
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
    """Returns ranges of the stream, each inside one part, as values and offsets of a ragged column.

    Raises `StoreError` if a range leaves its part: then the document table is damaged or was changed.
    """
    full = np.flatnonzero(lengths)  # an empty document may be at the very end of the stream, in no part
    first, count, bounds = starts[full], lengths[full], parts.bounds
    part = _check_ranges(bounds, first, count)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), parts.dtype)
    if len(full) == 0:
        return values, offsets
    starts, lengths, to = first, count, offsets[full]
    if isinstance(part, int):
        return rows(parts.ready(part, starts, lengths).array(part), starts, lengths, values), offsets
    local = starts - bounds[part]
    arrays = parts.ready(part, local, lengths).arrays
    for p, at, start, n in zip(part.tolist(), to.tolist(), local.tolist(), lengths.tolist(), strict=True):
        values[at : at + n] = arrays[p][start : start + n]
    return values, offsets


def _check_ranges(bounds: I64, starts: I64, lengths: I64) -> Part:
    """Returns the part of each range; none is empty. Raises unless each lies inside one part."""
    total = int(bounds[-1])
    # Negative numbers are huge as unsigned ones. After these two checks start + length cannot overflow.
    outside = starts.view(np.uint64) >= total
    if not outside.any():
        outside = lengths.view(np.uint64) > total
    part: Part = 0
    if not outside.any():
        part = np.searchsorted(bounds, starts, "right") - 1 if len(bounds) > 2 else 0
        outside = starts + lengths > bounds[part + 1]
    if outside.any():
        bad = int(np.argmax(outside))
        raise StoreError(
            "ranges of tokens inside one part of the stream",
            got=f"{int(lengths[bad])} tokens from {int(starts[bad])} in a stream of {total}",
            where="the document table",
            fix="the table is damaged, or was changed while in use: open the data again, or copy it again",
        )
    return part


def by_part(bounds: NDArray[np.int64], positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Yields each part that holds some of the positions, with their indices: a slice where positions are in order.

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
