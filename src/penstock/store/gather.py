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
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StoreError, UsageError
from penstock.store.arrays import ArrayTable, Part, row_view, windows

I64 = NDArray[np.int64]
T = TypeVar("T")

_COPY_ABOVE = 24  # mean tokens per document above which one slice copy each beats index arithmetic


@runtime_checkable
class Parts(Protocol):
    """A stream of tokens in one or more arrays. Position p is in part k if bounds[k] <= p < bounds[k + 1].

    `bounds` of a store of very many shards is long and has to be read first; `places` reads what it needs.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def n_parts(self) -> int: ...

    @property
    def bounds(self) -> NDArray[np.int64]: ...

    def places(self, positions: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the part of each position, the place in it, and the number of tokens from there to its end.

        Positions are inside the stream.
        """
        ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def sound(self) -> bool:
        """Whether every token is verified, or need not be."""
        ...

    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these parts, checks that no file was cut, verifies these ranges; returns the table of open parts."""
        ...


@runtime_checkable
class StableReads(Protocol):
    """Parts whose memory may change while it is read.

    `in_parts(count, read)` runs `read(start, stop)` for rows [0, count), in as few calls as there is room for, each
    again if the memory changed meanwhile.
    """

    def in_parts(self, count: int, read: Callable[[int, int], T]) -> list[T]: ...


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

    While there are pages left to verify, each call is a complete `gather`.
    """
    starts, length = np.asarray(starts, np.int64), index(length)

    def checked(a: int, b: int) -> NDArray[Any]:
        return gather(parts, starts[a:b], length)

    if not parts.sound or length < 1 or not len(starts):
        return checked
    _check(parts, starts, length)
    part: Part = 0
    local = starts
    if parts.n_parts > 1:
        places = part, local, left = parts.places(starts)
        if bool((left < length).any()):

            def joined(a: int, b: int) -> NDArray[Any]:
                here = places[0][a:b], places[1][a:b], places[2][a:b]
                return _gather_at(parts, starts[a:b], length, here) if len(here[0]) else checked(a, b)

            return joined
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
    last = parts.n_tokens - length
    # A negative start is huge as an unsigned number: one pass checks both sides.
    if length < 0 or (len(starts) and (last < 0 or int(starts.view(np.uint64).max()) > last)):
        bad = starts[(starts < 0) | (starts > last)] if length >= 0 else starts
        raise UsageError(
            f"windows of {length} tokens inside a stream of {parts.n_tokens}",
            got=f"start {int(bad[0])}" if len(bad) else f"length {length}",
            fix="use starts in [0, n_tokens - length]",
        )


def gather(parts: Parts, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
    """Returns an array (len(starts), length) of windows. Raises if one is not completely inside the stream."""
    starts, length = np.asarray(starts, np.int64), index(length)
    _check(parts, starts, length)
    if length == 0 or len(starts) == 0:
        return np.empty((len(starts), length), parts.dtype)
    if parts.n_parts == 1:
        return windows(parts.ready(0, starts, length), 0, starts, length, parts.dtype)
    return _gather_at(parts, starts, length, parts.places(starts))


def _gather_at(parts: Parts, starts: I64, length: int, places: tuple[I64, I64, I64]) -> NDArray[Any]:
    """The same for checked starts, one or more, whose places in the parts are known."""
    part, local, left = places
    crossing = left < length
    if not crossing.any():
        return windows(parts.ready(part, local, length), part, local, length, parts.dtype)
    rows = np.flatnonzero(crossing)
    here = left[rows]
    next_part, next_local, next_left = parts.places(starts[rows] + here)
    long = bool((local[rows] + here >= length).all() and (next_left >= length).all())
    if long and not isinstance(parts, StableReads):
        return _gather_pairs(parts, length, (part, local), rows, here, (next_part, next_local))
    if isinstance(parts, StableReads):  # the pages of all rows with one set of requests, as a plan counts them
        lengths = np.minimum(left, length), np.minimum(next_left, length - here)
        parts.ready(np.append(part, next_part), np.append(local, next_local), np.append(*lengths))
    first = part[rows], local[rows], here
    if len(rows) == len(starts):
        out = np.empty((len(starts), length), parts.dtype)
    else:  # crossing rows read another row's tokens first, so that all rows are one call; `_join` overwrites them
        other = int(np.argmin(crossing))
        part, local = np.where(crossing, part[other], part), np.where(crossing, local[other], local)
        out = windows(parts.ready(part, local, length), part, local, length, parts.dtype)
    _join(parts, starts[rows], first, out, rows)
    return out


def _gather_pairs(
    parts: Parts, length: int, places: tuple[I64, I64], rows: I64, here: I64, rest: tuple[I64, I64]
) -> NDArray[Any]:
    """Returns windows of which `rows` have `here` tokens in one part and the rest at the start of the next.

    Both parts have `length` tokens at least: the last of one and the first of the next are read beside all other
    windows in one call, and then joined. Only the tokens of the window are verified; the others are dropped.
    """
    n, missing = len(places[0]), length - here
    part, local = np.concatenate((places[0], rest[0])), np.concatenate((places[1], rest[1]))
    lengths = np.full(len(part), length)
    lengths[rows], lengths[n:] = here, missing
    table = parts.ready(part, local, lengths)
    local[rows] -= missing
    out = windows(table, part, local, length, parts.dtype)
    both = np.concatenate((out[rows], out[n:]), axis=1)
    out[rows] = both[np.arange(len(rows))[:, None], missing[:, None] + np.arange(length)]
    return out[:n]


def _join(parts: Parts, starts: I64, first: tuple[I64, I64, I64], out: NDArray[Any], rows: I64) -> None:
    """Copies the windows that lie in two or more parts into `rows` of `out`: the first piece of each, the next, ...

    `first` has the places of their first tokens. All pieces of a round are opened and checked in one call.
    """
    length = out.shape[1]
    (part, local, left), done = first, np.zeros(len(rows), np.int64)
    while True:
        here = np.minimum(length - done, left)
        arrays = parts.ready(part, local, here).arrays
        for row, to, p, start, n in zip(*(a.tolist() for a in (rows, done, part, local, here)), strict=True):
            out[row, to : to + n] = arrays[p][start : start + n]
        done += here
        more = np.flatnonzero(done < length)
        if len(more) == 0:
            return
        rows, starts, done = rows[more], starts[more], done[more]
        part, local, left = parts.places(starts + done)


def gather_rows(
    parts: Parts, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns ranges of the stream, each inside one part, as values and offsets of a ragged column.

    Raises `StoreError` if a range leaves its part: then the document table is damaged or was changed.
    """
    full = np.flatnonzero(lengths)  # an empty document may be at the very end of the stream, in no part
    first, count = starts[full], lengths[full]
    part, local = _check_ranges(parts, first, count)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), parts.dtype)
    if len(full) == 0:
        return values, offsets
    starts, lengths, to = first, count, offsets[full]
    if isinstance(part, int):
        return rows(parts.ready(part, starts, lengths).array(part), starts, lengths, values), offsets
    arrays = parts.ready(part, local, lengths).arrays
    for p, at, start, n in zip(part.tolist(), to.tolist(), local.tolist(), lengths.tolist(), strict=True):
        values[at : at + n] = arrays[p][start : start + n]
    return values, offsets


def _check_ranges(parts: Parts, starts: I64, lengths: I64) -> tuple[Part, I64]:
    """Returns the part of each range and its place there; none is empty. Raises unless each lies inside one part."""
    total = parts.n_tokens
    # Negative numbers are huge as unsigned ones.
    outside = starts.view(np.uint64) >= total
    if not outside.any():
        outside = lengths.view(np.uint64) > total
    part: Part = 0
    local = starts
    if not outside.any():
        left: I64 | int = total - starts
        if parts.n_parts > 1:
            part, local, left = parts.places(starts)
        outside = lengths > left
    if outside.any():
        bad = int(np.argmax(outside))
        raise StoreError(
            "ranges of tokens inside one part of the stream",
            got=f"{int(lengths[bad])} tokens from {int(starts[bad])} in a stream of {total}",
            where="the document table",
            fix="the table is damaged, or was changed while in use: open the data again, or copy it again",
        )
    return part, local


def by_part(part: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Yields each part once, with the indices where it is: a slice where the parts are in order.

    >>> [(p, w.tolist()) for p, w in by_part(np.array([1, 0, 1]))]
    [(0, [1]), (1, [0, 2])]
    >>> list(by_part(np.array([0, 1, 1])))
    [(0, slice(0, 1, None)), (1, slice(1, 3, None))]
    """
    if len(part) == 0:
        return
    order = None if bool((part[1:] >= part[:-1]).all()) else np.argsort(part, kind="stable")
    ordered = part if order is None else part[order]
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(part)]
    for a, b in pairwise(edges):
        yield int(ordered[a]), slice(a, b) if order is None else order[a:b]
