"""Ragged index arrays: which pieces of documents make up a pack or chunk, and which records a batch.

Row i is a range of flat arrays, given by offsets. Every function is a few NumPy calls for any number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Pieces(NamedTuple):
    """Row i consists of the pieces `offsets[i]` to `offsets[i + 1]`.

    Piece j is `lengths[j]` tokens of document `documents[j]`, from token `starts[j]` on.
    """

    offsets: I64
    documents: I64
    starts: I64
    lengths: I64


class BatchRecords(NamedTuple):
    """Batch i holds the records `offsets[i]` to `offsets[i + 1]`, padded to `rows[i]` rows of `lengths[i]` tokens."""

    offsets: I64
    records: I64
    rows: I64
    lengths: I64


def prefix(counts: I64) -> I64:
    """Prefix sums with a leading zero: the offsets of rows with these sizes.

    >>> prefix(np.array([3, 0, 2])).tolist()
    [0, 3, 3, 5]
    """
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def ranges(firsts: I64, counts: I64) -> I64:
    """Concatenates the ranges firsts[i], firsts[i] + 1, ... (counts[i] numbers) of every i.

    >>> ranges(np.array([5, 0]), np.array([3, 2])).tolist()
    [5, 6, 7, 0, 1]
    """
    offsets = prefix(counts)
    return np.arange(offsets[-1]) + np.repeat(firsts - offsets[:-1], counts)


def join_pieces(parts: Sequence[tuple[I64, I64, I64, I64]], n_rows: int) -> Pieces:
    """Groups the pieces of several parts, each (rows, documents, starts, lengths), by row number."""
    if not parts:
        none = np.empty(0, np.int64)
        return Pieces(np.zeros(n_rows + 1, np.int64), none, none, none)
    rows, *rest = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return put_in_rows(rows, n_rows, *rest)


def put_in_rows(rows: I64, n_rows: int, documents: I64, starts: I64, lengths: I64) -> Pieces:
    """Groups pieces by row number; pieces of one row keep their order.

    >>> pieces = put_in_rows(np.array([1, 0, 1]), 2, np.array([7, 8, 9]), np.zeros(3, int), np.ones(3, int))
    >>> pieces.offsets.tolist(), pieces.documents.tolist()
    ([0, 1, 3], [8, 7, 9])
    """
    offsets = prefix(np.bincount(rows, minlength=n_rows).astype(np.int64))
    if np.all(rows[1:] >= rows[:-1]):
        return Pieces(offsets, documents, starts, lengths)
    order = np.argsort(rows, kind="stable")
    return Pieces(offsets, documents[order], starts[order], lengths[order])
