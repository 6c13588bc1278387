"""Reads datasets that have no random access: those that can only be iterated, and those that only make batches.

`Passes` iterates such a dataset once per epoch, so every record is loaded once per epoch and a transform in `__iter__`
draws anew. The order of an epoch is a shuffle within windows of consecutive records, as many as fit 256 MB (all of
them, for most datasets), so only that many are held. Going back, as `batch_at` and a resume do, iterates again from
the start.

`BatchCalls` calls `get_batch(n)` once per batch, in order; a resume repeats the calls before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import DataError, LimitError, UsageError
from penstock.order.shuffle import permute

KEEP_BYTES = 256 << 20
MOST_BYTES = 8 * KEEP_BYTES
MEASURED = 16  # records whose size decides the window
RANGE_BYTES = 4 << 20  # as the engine: small batches are computed together up to this many bytes

Sample = dict[str, Any]
I64 = NDArray[np.int64]


class Passes:
    """Samples of a dataset by epoch and number, where `begin` starts a pass over its `size` records.

    >>> passes = Passes(lambda: iter([{"x": 1}, {"x": 2}, {"x": 3}]), 3, "numbers")
    >>> passes.take(0, [2, 0]), passes.take(0, [1]), passes.take(1, [0])
    ([{'x': 3}, {'x': 1}], [{'x': 2}], [{'x': 1}])
    """

    def __init__(
        self, begin: Callable[[], Iterator[Any]], size: int, name: str, draws: Callable[[], dict[str, int]] = dict
    ) -> None:
        self._begin, self.size, self.name, self._draws = begin, size, name, draws
        self._lock = threading.Lock()
        self._window = self._largest = 0
        self.ahead = 1  # batches that may be asked for before earlier ones are
        self.forget()

    def forget(self) -> None:
        """Ends the current pass: the next request starts one."""
        self._live: Iterator[Any] | None = None
        self._epoch: int | None = None  # None: begun, but not yet for an epoch
        self._next = 0
        self._held: dict[int, Sample] = {}
        self._bytes = 0
        self.began_with: dict[str, int] | None = None  # keys drawn from the dataset's streams before the current pass

    def take(self, epoch: int, rows: Sequence[int]) -> list[Sample]:
        """Returns these samples of a pass; each can be taken once, until the pass is begun again."""
        with self._lock:
            gone = any(row < self._next and row not in self._held for row in rows)
            if self._live is None or gone or self._epoch not in (None, epoch):
                self._start()
            self._epoch = epoch
            while self._next <= max(rows, default=-1):
                self._read()
                self._evict(rows)
            found = [self._held[row] for row in rows]
            taken = sum(_nbytes(self._held.pop(row)) for row in set(rows))
            self._bytes, self._largest = self._bytes - taken, max(self._largest, taken)
            return found

    def began(self, epoch: int) -> dict[str, int] | None:
        """The draws before the pass of `epoch`, if that pass is the current one."""
        return self.began_with if self._live is not None and self._epoch == epoch else None

    @property
    def window(self) -> int:
        """How many consecutive records are shuffled together; a power of two, or all."""
        with self._lock:
            if not self._window:
                if self._live is None:
                    self._start()
                while self._next < min(self.size, MEASURED):
                    self._read()
                largest = max((_nbytes(sample) for sample in self._held.values()), default=1)
                fits = max(1, KEEP_BYTES // largest)
                self._window = self.size if fits >= self.size else 1 << (fits.bit_length() - 1)
        return max(1, self._window)

    def _start(self) -> None:
        draws = self._draws()
        self.forget()
        self.began_with, self._live = draws, iter(self._begin())

    def _read(self) -> None:
        assert self._live is not None
        try:
            sample = next(self._live)
        except StopIteration:
            self._live = None
            raise DataError(
                f"{self.size} samples from {self.name}.__iter__, as its __len__ says",
                got=f"{self._next}",
                where=self.name,
                fix="return the number of samples that __iter__ yields from __len__",
            ) from None
        except BaseException:
            self._live = None  # a generator that raised is at its end: the next request begins again
            raise
        self._held[self._next] = sample
        self._bytes += _nbytes(sample)
        self._next += 1

    def _evict(self, wanted: Sequence[int]) -> None:
        """Drops the oldest samples beyond the budget: those of other ranks, or taken before a resume.

        Not those of batches that other threads have yet to ask for, which is why the budget grows with the batches.
        """
        budget = 2 * KEEP_BYTES + self.ahead * max(self._largest, RANGE_BYTES)
        if self._bytes <= budget:
            return
        keep, oldest = set(wanted), self._next - self._window
        for row in [row for row in self._held if row < oldest and row not in keep]:
            self._bytes -= _nbytes(self._held.pop(row))
            if self._bytes <= budget:
                return
        if self._bytes > MOST_BYTES + budget:
            raise LimitError(
                f"at most {MOST_BYTES >> 20} MB of samples to shuffle together",
                got=f"{len(self._held)} samples of {self._bytes >> 20} MB, larger than the first {MEASURED}",
                where=self.name,
                fix=f"define __getitem__(index) in {self.name}, or shuffle=False",
            )

    def __getstate__(self) -> dict[str, Any]:
        names = ("_begin", "size", "name", "_draws", "ahead")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _window=0, _largest=0)
        self.forget()


def in_windows(position: I64, size: int, window: int, key: int) -> I64:
    """The record at each position of a shuffle within windows of consecutive records; their edges depend on the key.

    >>> order = in_windows(np.arange(10), 10, 4, key=1)
    >>> sorted(order.tolist()) == list(range(10)), bool((abs(order - np.arange(10)) < 4).all())
    (True, True)
    """
    if window >= size:
        return permute(position, size, key)
    shift = randomness.key(key, "shift") % window
    block = (position + shift) // window
    out = np.empty_like(position)
    for number in np.unique(block).tolist():
        where = np.flatnonzero(block == number)
        low, high = max(0, number * window - shift), min(size, (number + 1) * window - shift)
        out[where] = low + permute(position[where] - low, high - low, randomness.key(key, number))
    return out


class BatchCalls:
    """Batches of a dataset that has only `get_batch(n)`: one call per batch, in the order of the steps."""

    def __init__(self, make: Callable[[int], Any], size: int, batch_size: int, drop_last: bool, name: str) -> None:
        self._make, self.size, self.batch_size, self.drop_last, self.name = make, size, batch_size, drop_last, name
        self._lock = threading.Lock()
        self._next = 0  # the first row of the run that no call has made yet
        self._held: dict[int, Any] = {}  # made for another thread

    def start(self, row: int) -> None:
        """A loop begins at this row of the run: makes the batches before it if need be, and drops them."""
        with self._lock:
            self._held.clear()
            self._make_up_to(row, hold=False)
            self._next = row  # may be earlier: calls cannot be taken back, so the batches are new ones

    def take(self, row: int, count: int) -> dict[str, Any]:
        """The batch of `count` rows whose first is row `row` of the run; makes the batches before it if need be."""
        with self._lock:
            if row in self._held:
                return self._checked(self._held.pop(row))
            self._make_up_to(row, hold=True)
            self._next = row + count
            return self._checked(self._make(count))

    def _make_up_to(self, row: int, hold: bool) -> None:
        while self._next < row:
            left = min(self.batch_size, self.size - self._next % self.size)
            if left == self.batch_size or not self.drop_last:
                made = self._make(left)
                if hold:
                    self._held[self._next] = made
            self._next += left

    def _checked(self, batch: Any) -> dict[str, Any]:
        if not isinstance(batch, dict):
            raise UsageError(
                f"a dict of arrays from {self.name}.get_batch",
                got=type(batch).__name__,
                fix='return {"images": images}',
            )
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_held", "_next")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _held={}, _next=0)


def _nbytes(sample: Any) -> int:
    if isinstance(sample, dict):
        return 200 + sum(_nbytes(value) for value in sample.values())
    if isinstance(sample, str | bytes):
        return 50 + len(sample)
    if isinstance(sample, list | tuple):
        return 50 + sum(_nbytes(value) for value in sample)
    return 100 + int(getattr(sample, "nbytes", 0))
