"""A fixed ring of slots in one shared mapping: how a child process hands batches to its parent without copying.

One mapping per child, made once, from an unnamed file (a memfd, or an unlinked temporary file), so nothing can be left
in /dev/shm and its size does not matter. Slots are large but sparse: memory is used only as far as batches reach. It is
allocated with posix_fallocate before it is touched, so a machine without memory is an error here and not a SIGBUS. The
first page says which steps each thread of the child computes; it is still there after the child died.

Cost: one copy into the slot in the child; the parent's arrays are views. `ring_writer` is the child's side.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import LimitError
from penstock.core.shared_memory import unnamed_file

HEAD = max(4096, mmap.ALLOCATIONGRANULARITY)
THREADS = 128  # the first page has room for this many
ALIGN = 64
SMALLEST = 1 << 20
TAKEN = 255  # the parent's message "took one more batch"; a smaller number returns that slot
BEGIN = 254  # the parent's message "compute the steps in `Ring.wanted`"
_PLAIN = "biufcmMSU"  # kinds of dtype whose `str` describes them completely


class Shape(NamedTuple):
    """The number of slots, and the bytes of each."""

    slots: int
    extent: int

    @property
    def bytes(self) -> int:
        return HEAD + self.slots * self.extent


class Ring:
    """The mapping, used by both processes. The caller closes `fd`."""

    def __init__(self, fd: int, shape: Shape) -> None:
        self.fd, self.shape = fd, shape
        self.memory = mmap.mmap(fd, shape.bytes)
        # For each thread: first step, end step, and whether it computes them now.
        self.in_progress: NDArray[np.int64] = np.frombuffer(self.memory, np.int64, THREADS * 3).reshape(THREADS, 3)
        # What the parent writes for all its children: the step that is needed next, and the bytes of the last batch.
        self.consumer: NDArray[np.int64] = np.frombuffer(self.memory, np.int64, 2, THREADS * 3 * 8)
        # The steps of the last BEGIN: the first one, and the one before which they end (-1: none).
        self.wanted: NDArray[np.int64] = np.frombuffer(self.memory, np.int64, 2, (THREADS * 3 + 2) * 8)
        self._reserved = [0] * shape.slots

    @classmethod
    def create(cls, slots: int, extent: int) -> Ring:
        """A new ring; slots are made smaller if the system refuses the address space.

        >>> ring = Ring.create(2, 1 << 20)
        >>> ring.shape
        Shape(slots=2, extent=1048576)
        >>> os.close(ring.fd)
        """
        extent = -(-max(extent, SMALLEST) // HEAD) * HEAD
        while True:
            fd = unnamed_file("penstock-ring")
            try:
                os.ftruncate(fd, Shape(slots, extent).bytes)
                return cls(fd, Shape(slots, extent))
            except (OSError, ValueError, OverflowError) as error:
                os.close(fd)
                if extent <= SMALLEST:
                    raise LimitError(
                        f"{slots} MB of shared memory for an isolated loader",
                        got=str(error),
                        fix="raise the limit (ulimit -v, ulimit -f, ulimit -n, temporary files), or use isolate=False",
                    ) from error
                extent = max(SMALLEST, extent // 4 // HEAD * HEAD)

    def reserve(self, slot: int, size: int) -> None:
        """Allocates the first bytes of a slot; raises OSError when the system has no memory for them."""
        if size <= self._reserved[slot]:
            return
        size = min(self.shape.extent, -(-(size + size // 8) // HEAD) * HEAD)  # more: the next batch may be larger
        start = self._start(slot)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fd, start, size)
        else:
            done = self._reserved[slot]
            while done < size:
                done += os.pwrite(self.fd, bytes(min(SMALLEST, size - done)), start + done)
        self._reserved[slot] = size

    def release(self, slot: int) -> None:
        """Returns the memory of a free slot to the system, where it can take it back."""
        if self._reserved[slot] and hasattr(mmap, "MADV_REMOVE"):
            with suppress(OSError):
                self.memory.madvise(mmap.MADV_REMOVE, self._start(slot), self._reserved[slot])
                self._reserved[slot] = 0

    @property
    def reserved(self) -> int:
        """Bytes of all slots that are allocated."""
        return sum(self._reserved)

    def part(self, slot: int, size: int) -> NDArray[np.uint8]:
        """The first bytes of a slot as a new array, which is freed with its last view."""
        return np.frombuffer(self.memory, np.uint8, size, self._start(slot))

    def _start(self, slot: int) -> int:
        return HEAD + slot * self.shape.extent


# Columns as a short outline and plain arrays.

Outline = list[tuple[str, str, Any]]
Spec = tuple[Any, tuple[int, ...], int]  # dtype, shape, offset in the slot


def flatten(columns: Columns) -> tuple[Outline, list[NDArray[Any]]]:
    """Splits columns into an outline (names, kinds, columns of objects) and a list of plain arrays.

    >>> outline, arrays = flatten({"x": np.arange(2), "ids": Ragged.of([[1], [2, 3]])})
    >>> outline, len(arrays)
    ([('x', 'array', None), ('ids', 'ragged', None)], 3)
    """
    outline: Outline = []
    arrays: list[NDArray[Any]] = []
    for name, column in columns.items():
        if isinstance(column, Ragged):
            if not column.values.dtype.hasobject:
                outline.append((name, "ragged", None))
                arrays += [column.values, column.offsets]
                continue
        elif type(column) is np.ndarray and not column.dtype.hasobject:
            outline.append((name, "array", None))
            arrays.append(column)
            continue
        outline.append((name, "object", column))
    return outline, arrays


def assemble(outline: Outline, arrays: Sequence[NDArray[Any]]) -> Columns:
    """Makes columns from an outline and arrays: the inverse of `flatten`."""
    columns: Columns = {}
    rest = iter(arrays)
    for name, kind, value in outline:
        if kind == "array":
            columns[name] = next(rest)
        elif kind == "ragged":
            columns[name] = Ragged(next(rest), next(rest))
        else:
            columns[name] = value
    return columns


def lay_out(arrays: Sequence[NDArray[Any]]) -> tuple[list[Spec], int]:
    """The position of each array in a slot, and the total bytes."""
    specs: list[Spec] = []
    at = 0
    for array in arrays:
        dtype = array.dtype
        specs.append((dtype.str if dtype.kind in _PLAIN else dtype, array.shape, at))
        at += -(-array.nbytes // ALIGN) * ALIGN
    return specs, at


def views(root: NDArray[np.uint8], specs: Sequence[Spec]) -> list[NDArray[Any]]:
    """The arrays in a slot; each keeps `root` alive."""
    return [np.ndarray(shape, dtype, root, offset) for dtype, shape, offset in specs]
