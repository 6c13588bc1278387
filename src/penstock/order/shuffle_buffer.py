"""A shuffle buffer for streams whose content at any position is computed from a key, so that it resumes exactly.

A buffer of `size` slots begins with elements 0 .. size-1. Position p takes the element in slot `hash(key, p)` and puts
element p + size there; when the stream ends, the remaining elements follow in a permuted order. The content of the
buffer before position p is therefore a function of p: `held_before` finds it by looking back over about
size * log(size) hashes, and a run can resume at any position without a saved buffer. An element appears at most `size`
positions early, and on average about `size` positions after it entered the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.order.shuffle import permute

I64 = NDArray[np.int64]
_BLOCK = 1024


def slots(lo: int, hi: int, size: int, key: int) -> I64:
    """Returns the slot that each position of [lo, hi) takes its element from."""
    return randomness.integers(randomness.keys(key, np.arange(lo, hi, dtype=np.int64)), 0, size)


def held_before(position: int, size: int, key: int) -> I64:
    """Returns the element in each slot before `position` is read, in a stream that has not ended.

    >>> held_before(0, 3, key=1).tolist()
    [0, 1, 2]
    """
    held = np.arange(size, dtype=np.int64)
    open_slots = np.ones(size, bool)
    hi, left = position, size
    while hi > 0 and left:
        lo = max(0, hi - max(_BLOCK, size))
        emptied = slots(lo, hi, size, key)[::-1]  # latest first: the last refill of a slot counts
        slot, first = np.unique(emptied, return_index=True)
        new = open_slots[slot]
        held[slot[new]] = (hi - 1 - first[new]) + size
        open_slots[slot] = False
        left = int(open_slots.sum())
        hi = lo
    return held


def shuffled(begin: Callable[[int], Iterator[Any]], start: int, size: int, key: int) -> Iterator[tuple[int, Any]]:
    """Yields (position, element) from position `start` on; `begin(i)` must return the stream from element i.

    Holds `size` elements. Before the first pair it reads from the oldest element that the buffer would hold, about
    size * log(size) elements back.

    >>> [element for _, element in shuffled(lambda i: iter(range(i, 6)), 0, 3, key=1)]
    [2, 3, 4, 1, 0, 5]
    >>> [element for _, element in shuffled(lambda i: iter(range(i, 6)), 4, 3, key=1)]
    [0, 5]
    """
    if size <= 1:
        yield from enumerate(begin(start), start)
        return
    # Begin one buffer length before `start`: if the stream ends here, the remaining elements were in the buffer then.
    at = max(0, start - size)
    held = held_before(at, size, key)
    oldest = int(held.min())
    stream = begin(oldest)
    slot_of = {element: slot for slot, element in enumerate(held.tolist())}
    kept: list[Any] = [None] * size
    read = 0
    for number, element in enumerate(islice(stream, at + size - oldest), oldest):
        read += 1
        if number in slot_of:
            kept[slot_of[number]] = element
    if read < at + size - oldest:
        if at == 0:
            yield from _drain(kept[:read], 0, start, key)
        return
    while True:
        for slot in slots(at, at + _BLOCK, size, key).tolist():
            try:
                following = next(stream)
            except StopIteration:
                yield from _drain(kept, at, start, key)
                return
            element, kept[slot] = kept[slot], following
            at += 1
            if at > start:
                yield at - 1, element


def _drain(kept: list[Any], at: int, start: int, key: int) -> Iterator[tuple[int, Any]]:
    """Yields the elements left when the stream has ended, in a permuted order, from position `at`."""
    order = permute(np.arange(len(kept)), len(kept), randomness.key(key, "drain")).tolist() if kept else []
    for position, slot in enumerate(order, at):
        if position >= start:
            yield position, kept[slot]
