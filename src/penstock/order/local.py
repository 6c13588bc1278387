"""A shuffle buffer as arithmetic: which element of a stream stands at which position, with nothing but a key.

A buffer of `size` slots begins with elements 0 .. size-1. Position p gives the element in slot `hash(key, p)` and puts
element p + size there; when the stream ends, what is left comes out in a permuted order. So what the buffer holds
before position p is a function of p alone: `held_before` finds it by looking back over about size * log(size) hashes,
and a run can go on from any position without having kept the buffer. An element moves forward by at most `size` places;
backward, it waits about `size` positions on average.
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
    """The slot that each position of [lo, hi) empties."""
    return randomness.integers(randomness.keys(key, np.arange(lo, hi, dtype=np.int64)), 0, size)


def held_before(position: int, size: int, key: int) -> I64:
    """The element in each slot before `position` is given, in a stream that has not ended.

    >>> held_before(0, 3, key=1).tolist()
    [0, 1, 2]
    """
    held = np.arange(size, dtype=np.int64)
    open_slots = np.ones(size, bool)
    hi, left = position, size
    while hi > 0 and left:
        lo = max(0, hi - max(_BLOCK, size))
        emptied = slots(lo, hi, size, key)[::-1]  # the latest first: it is the one that counts
        slot, first = np.unique(emptied, return_index=True)
        new = open_slots[slot]
        held[slot[new]] = (hi - 1 - first[new]) + size
        open_slots[slot] = False
        left = int(open_slots.sum())
        hi = lo
    return held


def shuffled(begin: Callable[[int], Iterator[Any]], start: int, size: int, key: int) -> Iterator[tuple[int, Any]]:
    """Pairs of position and element from position `start` on; `begin(i)` gives the stream from element i.

    Holds `size` elements. Before the first pair it reads on from the oldest element the buffer would hold: about
    size * log(size) elements back, for streams that can begin anywhere.

    >>> [element for _, element in shuffled(lambda i: iter(range(i, 6)), 0, 3, key=1)]
    [2, 3, 4, 1, 0, 5]
    >>> [element for _, element in shuffled(lambda i: iter(range(i, 6)), 4, 3, key=1)]
    [0, 5]
    """
    if size <= 1:
        yield from enumerate(begin(start), start)
        return
    # From a buffer's length before `start`: if the stream ends here, what is left was in the buffer then.
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
    """What is left when the stream has ended, in a permuted order, from position `at`."""
    order = permute(np.arange(len(kept)), len(kept), randomness.key(key, "drain")).tolist() if kept else []
    for position, slot in enumerate(order, at):
        if position >= start:
            yield position, kept[slot]
