"""Bounds the bytes of one call that reads many rows, where nobody knows their sizes before they are read.

The engine reads many batches in one call, as many as the last ones allow: after a thousand short records come the long
ones. Whoever reads or decodes rows one after the other counts them with `spend`; when the call has become too large it
ends with `OverBudget`, and fewer batches are read. Outside of such a call nothing is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.held_bytes import held_bytes

PIECE = 32  # rows


class OverBudget(BaseException):
    """A call has read too many bytes. No `Exception`: neither a user's code nor a library may take it for a failure."""


class _Local(threading.local):
    left: int | None = None
    piece = PIECE


_local = _Local()


@contextmanager
def at_most(size: int, rows: int = 1) -> Iterator[None]:
    """Inside, the reads of this thread may take this many bytes together; `rows` of them are one batch.

    >>> with at_most(10):
    ...     spend(8)
    ...     try:
    ...         spend(8)
    ...     except OverBudget:
    ...         print("too many")
    too many
    """
    before, _local.left = _local.left, size
    _local.piece = max(PIECE, rows)
    try:
        yield
    finally:
        _local.left = before


def spend(size: int) -> None:
    """Counts bytes that have been read, or that are about to be."""
    left = _local.left
    if left is not None:
        _local.left = left = left - size
        if left < 0:
            raise OverBudget


def counted() -> bool:
    """Whether bytes are counted now: sizes that cost something to compute are not needed otherwise."""
    return _local.left is not None


def spend_held(value: Any) -> None:
    """Counts the bytes that a value holds."""
    if _local.left is not None:
        spend(held_bytes(value))


def pieces(numbers: list[int]) -> Iterator[list[int]]:
    """The numbers of rows that are read in one go: one batch, or a few, at a time where their bytes are counted.

    >>> [*pieces([3, 1, 2])]
    [[3, 1, 2]]
    """
    step = _local.piece if _local.left is not None else max(1, len(numbers))
    return (numbers[at : at + step] for at in range(0, len(numbers), step))
