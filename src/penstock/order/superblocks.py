"""Superblocks: ranges of about a million consecutive documents, the largest unit that is held in memory.

A plan stores only a few counts per superblock. The documents of one superblock sorted by length, in an order that
changes every epoch, take 4 bytes per document and a fraction of a second, and are cached for the last few superblocks.
Therefore items are shuffled in two levels: superblocks are permuted, then the items of a window of a few superblocks
are permuted together. The module also holds the argument checks that all plans share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, UsageError
from penstock.core.randomness import key as make_key
from penstock.order.ragged_index import I64, prefix
from penstock.order.shuffle import permute

LengthInput = NDArray[Any] | Callable[[int, int], NDArray[Any]]

SUPERBLOCK = 1 << 20
CACHED = 16
WINDOW = 4


class Lengths:
    """Document lengths, from an array or from a function that returns the lengths of documents [a, b).

    >>> Lengths(np.array([3, 1, 2]), None).read(1, 3).tolist()
    [1, 2]
    """

    def __init__(self, source: LengthInput, n_docs: int | None) -> None:
        if callable(source):
            if n_docs is None:
                raise UsageError("n_docs with a function of lengths", got="None", fix="pass n_docs=len(source)")
        else:
            source = np.asarray(source)
            if source.ndim != 1 or not (source.dtype.kind in "iu" or source.size == 0):
                raise UsageError("a flat array of integer lengths", got=f"{source.dtype} array of shape {source.shape}")
            if n_docs is not None and n_docs != len(source):
                raise UsageError("n_docs equal to the number of lengths", got=f"{n_docs} and {len(source)} lengths")
            n_docs = len(source)
        self.n_docs = require("n_docs", n_docs, least=0)
        self._source = source

    def read(self, start: int, stop: int) -> I64:
        """Returns the lengths of documents [start, stop). Raises unless there is one per document, none negative."""
        source = self._source
        got = np.asarray(source(start, stop) if callable(source) else source[start:stop]).astype(np.int64)
        if got.shape != (stop - start,):
            raise DataError(
                f"{stop - start} lengths", got=f"shape {got.shape}", where=f"the lengths of documents {start}..{stop}"
            )
        if got.size and int(got.min()) < 0:
            bad = int(np.argmax(got < 0))
            raise DataError("lengths of 0 or more", got=str(int(got[bad])), where=f"document {start + bad}")
        return got


def require(name: str, value: int, *, least: int) -> int:
    """Returns `value` as an int of at least `least`, or raises an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name}: an integer of {least} or more", got=repr(value))
    return int(value)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `choices`, or raises an error that lists them."""
    if value not in choices:
        raise UsageError(f"{name}: one of {', '.join(choices)}", got=repr(value))
    return value


def require_within(name: str, values: Any, n: int) -> I64:
    """Returns `values` as a flat int64 array, or raises an error that names the first one outside [0, n)."""
    out = np.atleast_1d(np.asarray(values))
    if out.ndim != 1 or not (out.dtype.kind in "iu" or out.size == 0):
        raise UsageError(f"{name}: a flat array of integers", got=f"{out.dtype} array of shape {out.shape}")
    out = out.astype(np.int64)
    outside = (out < 0) | (out >= n)
    if outside.any():
        raise UsageError(f"{name} in [0, {n})", got=str(int(out[int(np.argmax(outside))])))
    return out


def cut_evenly(n_docs: int, superblock: int) -> I64:
    """Returns the edges of superblocks of at most `superblock` documents, all of nearly equal size.

    >>> cut_evenly(10, 4).tolist(), cut_evenly(0, 4).tolist()
    ([0, 3, 6, 10], [0])
    """
    blocks = -(-n_docs // superblock)
    return np.array([i * n_docs // blocks for i in range(blocks + 1)] if blocks else [0], np.int64)


def sort_shuffled(classes: I64, key: int) -> NDArray[np.uint32]:
    """Returns positions sorted by class, in an order drawn from `key` inside each class.

    >>> order = sort_shuffled(np.array([2, 0, 2, 0]), key=1)
    >>> sorted(order[:2].tolist()), sorted(order[2:].tolist())
    ([1, 3], [0, 2])
    """
    n = len(classes)
    shuffled = permute(np.arange(n, dtype=np.int64), n, key)
    return shuffled[stable_argsort(classes[shuffled])].astype(np.uint32)


def stable_argsort(values: I64) -> I64:
    """Stable argsort of integers in [0, 2**32): NumPy radix-sorts 16-bit keys, several times faster than wider ones."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    if values.size and int(values.max()) >= 1 << 16:
        order = order[np.argsort((values >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def shuffle_windows(positions: I64, counts: I64, window: int, key: int) -> I64:
    """Returns the item at each position of a two-level permutation of [0, counts.sum()).

    Blocks of `counts` items are permuted, then the items of each `window` consecutive blocks are permuted together.

    >>> shuffle_windows(np.arange(5), np.array([2, 1, 2]), 2, key=3).shape
    (5,)
    """
    blocks = len(counts)
    order = permute(np.arange(blocks, dtype=np.int64), blocks, make_key(key, "blocks"))
    item_first = prefix(counts)[:-1][order]
    edges = prefix(counts[order])
    window_edges = edges[np.minimum(np.arange(0, blocks + window, window), blocks)]
    out = np.empty(len(positions), np.int64)
    windows = np.searchsorted(window_edges, positions, side="right") - 1
    for w in np.unique(windows).tolist():
        mine = windows == w
        first, size = int(window_edges[w]), int(window_edges[w + 1] - window_edges[w])
        moved = first + permute(positions[mine] - first, size, make_key(key, "window", w))
        block = np.searchsorted(edges, moved, side="right") - 1
        out[mine] = moved - edges[block] + item_first[block]
    return out
