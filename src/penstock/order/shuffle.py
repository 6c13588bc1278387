"""A keyed permutation of [0, n), computed element by element without a table.

`permute` is a generalised Feistel network. The range is covered by a grid of `a` rows of `2**k` columns, both near
sqrt(n); each round changes the row by a hash of the column, or the column by a hash of the row, and so is invertible.
A result outside [0, n) goes through the network again until it is inside (cycle walking), which happens to less than
one element in sqrt(n). Up to 64 elements the grid is too small to mix well; there the permutation sorts n hashes.

Costs no memory that depends on n; about 50 us for a call of a few dozen elements and 30 ns per element for calls of
thousands, so compute many batches per call. All arithmetic is exact on 64-bit integers: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.randomness import U64, mix64

I64 = NDArray[np.int64]

LARGEST = 1 << 62
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 10
_AT_ONCE = 1 << 14
_SORTED_UP_TO = 64  # the network is measurably biased below about 20 elements; sorting hashes leaves none
_TABLE_CELLS = 1 << 20


def _word(value: int) -> U64:
    # NumPy handles a 0-d array a third faster than a scalar, which matters in calls of few elements.
    return np.array(value & _MASK, np.uint64)


_M1, _M2, _S32 = _word(0xBF58476D1CE4E5B9), _word(0x94D049BB133111EB), _word(32)
_S64, _ALL = _word(64), _word(_MASK)


def permute(index: Any, n: int, key: int | U64) -> I64:
    """Returns the element at each position `index` of a shuffle of [0, n).

    `key` is one 64-bit integer, or an array with one key per element, for calls that cover several epochs.

    >>> permute(np.arange(8), 8, key=1)
    array([7, 4, 1, 2, 6, 5, 0, 3])
    >>> int(permute([123_456_789_012], 10**12, key=1)[0])
    620055137406
    """
    return _apply(index, n, key, inverse=False)


def unpermute(value: Any, n: int, key: int | U64) -> I64:
    """The inverse of `permute`: returns the position of each value.

    >>> unpermute(permute([0, 5, 99], 100, key=3), 100, key=3)
    array([ 0,  5, 99])
    """
    return _apply(value, n, key, inverse=True)


def permute_each(index: I64, sizes: I64, keys: U64, inverse: bool = False) -> I64:
    """`permute`, or with `inverse` `unpermute`, where each element has its own range [0, size) and its own key.

    >>> permute_each(np.arange(3), np.array([5, 5, 9]), np.array([1, 1, 2], np.uint64)).tolist()
    [4, 1, 2]
    """
    out = np.empty(index.shape, np.int64)
    distinct, which = np.unique(sizes, return_inverse=True)
    small = int(np.searchsorted(distinct, _SORTED_UP_TO, side="right"))
    for number in range(small):
        here = which == number
        out[here] = _apply(index[here], int(distinct[number]), keys[here], inverse)
    if small == len(distinct):
        return out
    here = np.flatnonzero(which >= small)
    _check_each(index[here], sizes[here])
    half = np.array([int(n).bit_length() // 2 for n in distinct], np.uint64)[which[here]]
    limit = sizes[here].astype(np.uint64)
    one = np.array(1, np.uint64)
    rows = (limit + (one << half) - one) >> half
    network = _backward if inverse else _forward
    rounds = [mix64(keys[here] + _word((r + 1) * _GOLDEN)) for r in range(_ROUNDS)]
    found = network(index[here].astype(np.uint64), rows, half, rounds)
    outside = np.flatnonzero(found >= limit)
    while outside.size:
        again = [r[outside] for r in rounds]
        walked = network(found[outside], rows[outside], half[outside], again)
        found[outside] = walked
        outside = outside[walked >= limit[outside]]
    out[here] = found.view(np.int64)
    return out


def _apply(index: Any, n: int, key: int | U64, inverse: bool) -> I64:
    indices = np.asarray(index, np.int64)
    x = indices.ravel().view(np.uint64)
    _check(x, n)
    one, each = _one_or_each(key, indices.shape)
    if n <= _SORTED_UP_TO:
        return _by_table(x, n, one, each, inverse).reshape(indices.shape)
    bits = n.bit_length() // 2
    rows = -(-n >> bits)  # rounded up
    rounds = _round_keys(one) if each is None else [mix64(each + _word((r + 1) * _GOLDEN)) for r in range(_ROUNDS)]
    network = _backward if inverse else _forward
    height, half = _word(rows), _word(bits)
    if each is None and len(x) > _AT_ONCE:  # a stretch at a time, which stays in the cache
        out = np.empty_like(x)
        for a in range(0, len(x), _AT_ONCE):
            out[a : a + _AT_ONCE] = network(x[a : a + _AT_ONCE], height, half, rounds)
    else:
        out = network(x, height, half, rounds)
    limit = _word(n)
    outside = np.flatnonzero(out >= limit)
    while outside.size:
        again = rounds if each is None else [r[outside] for r in rounds]
        walked = network(out[outside], height, half, again)
        out[outside] = walked
        outside = outside[walked >= limit]
    return out.view(np.int64).reshape(indices.shape)


def _one_or_each(key: int | U64, shape: tuple[int, ...]) -> tuple[int, U64 | None]:
    """Returns (key, None) for one key, or (0, keys) for different ones; an array of equal keys counts as one key."""
    if not isinstance(key, np.ndarray):
        return int(key) & _MASK, None
    each: U64 = np.broadcast_to(key, shape).astype(np.uint64, copy=False).ravel()
    if each.size and not (each == each[0]).all():
        return 0, each
    return (int(each[0]) if each.size else 0), None


def _check(x: U64, n: int) -> None:
    if not 0 <= n <= LARGEST:
        raise UsageError("a size between 0 and 2**62", got=str(n), where="shuffle", fix="shuffle fewer elements")
    if x.size and int(x.max()) >= n:  # a negative index is huge as an unsigned number
        outside = x[x >= np.uint64(n)].view(np.int64)
        raise UsageError(
            f"indices from 0 to {n - 1}",
            got=str(int(outside[0])),
            where="shuffle",
            fix="use positions modulo the size, and put the quotient (the epoch) into the key",
        )


def _check_each(index: I64, sizes: I64) -> None:
    if ((index < 0) | (index >= sizes)).any():
        raise UsageError("indices inside their ranges", got=str(int(index.min())), where="shuffle")


@lru_cache(maxsize=1024)
def _round_keys(key: int) -> Sequence[U64]:
    words = np.array([(key + (r + 1) * _GOLDEN) & _MASK for r in range(_ROUNDS)], np.uint64)
    return [np.array(word) for word in mix64(words)]


def _hash(half: U64, round_key: U64, out: U64, scratch: U64) -> None:
    """64 hash bits of half of the state; the high bits are the well-mixed ones."""
    np.bitwise_xor(half, round_key, out=out)
    np.multiply(out, _M1, out=out)
    np.right_shift(out, _S32, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _M2, out=out)


def _forward(x: U64, height: U64, column_bits: U64, rounds: Sequence[U64]) -> U64:
    width_shift = _S64 - column_bits
    row, column = x >> column_bits, x & ~(_ALL << column_bits)
    t, scratch = np.empty_like(row), np.empty_like(row)
    for r in range(0, _ROUNDS, 2):
        _hash(column, rounds[r], t, scratch)
        np.right_shift(t, _S32, out=t)
        np.multiply(t, height, out=t)  # below 2**64 because rows <= 2**32
        np.right_shift(t, _S32, out=t)
        np.add(row, t, out=row)
        np.subtract(row, height, out=t)
        np.minimum(row, t, out=row)  # row modulo height: a negative difference wraps around to a huge number
        _hash(row, rounds[r + 1], t, scratch)
        np.right_shift(t, width_shift, out=t)
        np.bitwise_xor(column, t, out=column)
    np.left_shift(row, column_bits, out=row)
    np.bitwise_or(row, column, out=row)
    return row


def _backward(x: U64, height: U64, column_bits: U64, rounds: Sequence[U64]) -> U64:
    width_shift = _S64 - column_bits
    row, column = x >> column_bits, x & ~(_ALL << column_bits)
    t, scratch = np.empty_like(row), np.empty_like(row)
    for r in range(_ROUNDS - 2, -1, -2):
        _hash(row, rounds[r + 1], t, scratch)
        np.right_shift(t, width_shift, out=t)
        np.bitwise_xor(column, t, out=column)
        _hash(column, rounds[r], t, scratch)
        np.right_shift(t, _S32, out=t)
        np.multiply(t, height, out=t)
        np.right_shift(t, _S32, out=t)
        np.subtract(row, t, out=row)
        np.add(row, height, out=t)
        np.minimum(row, t, out=row)
    np.left_shift(row, column_bits, out=row)
    np.bitwise_or(row, column, out=row)
    return row


def _by_table(x: U64, n: int, one: int, each: U64 | None, inverse: bool) -> I64:
    """Permutes up to 64 elements by sorting hashes: one row of a table per distinct key."""
    where: I64 = x.view(np.int64)
    if each is None:
        table: I64 = _tables(np.array([one], np.uint64), n, inverse)[0]
        return table[where]
    distinct, row = np.unique(each, return_inverse=True)
    out = np.empty(where.shape, np.int64)
    per_chunk = _TABLE_CELLS // max(n, 1)
    for start in range(0, distinct.size, per_chunk):
        tables = _tables(distinct[start : start + per_chunk], n, inverse)
        here = (row >= start) & (row < start + per_chunk)
        out[here] = tables[row[here] - start, where[here]]
    return out


def _tables(keys: U64, n: int, inverse: bool) -> I64:
    steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    order: I64 = np.argsort(mix64(mix64(keys)[:, None] + steps), axis=1, kind="stable").astype(np.int64, copy=False)
    return np.argsort(order, axis=1).astype(np.int64, copy=False) if inverse else order
