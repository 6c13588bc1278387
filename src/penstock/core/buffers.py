"""Reused batch memory: a pool of arrays, and one whose arrays begin at a multiple of 64 bytes.

Fresh memory costs a page fault for every 4 KiB, several times what copying a batch costs. A buffer is reused only
when its reference count shows that no array, tensor or view of it is left, so a batch that is kept is never
overwritten. What was not needed for a while is freed, so a pool follows what is in use and never keeps more than its
limit.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from functools import cache
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import NDArray

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]  # allocates an uninitialised array

MIN_BYTES = 64 << 10  # below this the allocator is as fast
MAX_POOL_BYTES = 256 << 20
MAX_ALIGNED_BYTES = 128 << 20
PERIOD = 512  # arrays handed out, after which those that were not needed are freed
ALIGN = 64  # bytes; what XLA requires of host arrays that it uses without a copy
_exact_refcounts = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the GIL reference counts are not exact
_FREE = 2  # references to a buffer that only the pool holds: the list's and the argument of getrefcount


@cache
def keep_freed_blocks() -> None:
    """Makes glibc keep freed blocks of up to 4 MiB for the next array: it adapts to the largest block freed so far.

    Until then it may return blocks of 128 KiB and more to the system: a page fault per 4 KiB when they are made again.
    """
    np.empty(4 << 20, np.uint8)


class Buffers:
    """A pool of arrays by shape and dtype. Thread-safe; pickles as an empty pool."""

    def __init__(self, limit: int = MAX_POOL_BYTES) -> None:
        self.limit = limit  # bytes that are kept at most
        self._lock = threading.Lock()
        self._pool: dict[tuple[tuple[int, ...], np.dtype[Any]], list[NDArray[Any]]] = {}
        self._reach: dict[tuple[tuple[int, ...], np.dtype[Any]], int] = {}  # arrays of each list needed in this period
        self._bytes = self._taken = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns an uninitialised contiguous array, in reused memory where possible."""
        return self.take(shape, dtype).view()

    def roomy(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Like `empty`, but sizes are rounded up to a power of two: for shapes that vary from batch to batch.

        >>> pool = Buffers()
        >>> first = pool.roomy((300, 200), np.dtype(int)).ctypes.data  # freed at once
        >>> pool.roomy((299, 210), np.dtype(int)).ctypes.data == first
        True
        """
        size = math.prod(shape)
        return self.take((1 << max(0, size - 1).bit_length(),), dtype)[:size].reshape(shape)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns the pooled array itself, not a view. Hand out only views: a changed shape would stay in the pool."""
        with self._lock:
            self._taken += 1
            if self._taken >= PERIOD:
                self._free_unneeded()
            pooled = self._pool.get((shape, dtype), ())
            for i in range(len(pooled)):
                if getrefcount(pooled[i]) == _FREE:
                    if i >= self._reach.get((shape, dtype), 0):
                        self._reach[shape, dtype] = i + 1
                    return pooled[i]
            array = np.empty(shape, dtype)
            if array.nbytes < MIN_BYTES or not _exact_refcounts:
                return array
            if array.nbytes > self.limit - self._bytes:
                self._evict_free()
            if array.nbytes <= self.limit - self._bytes:
                pooled = self._pool.setdefault((shape, dtype), [])
                pooled.append(array)
                self._reach[shape, dtype] = len(pooled)
                self._bytes += array.nbytes
            return array

    def _free_unneeded(self) -> None:
        """Drops the free arrays that were not handed out since the last call: fewer are in use at once than before."""
        for key, pooled in list(self._pool.items()):
            reach = self._reach.get(key, 0)
            kept = pooled[:reach]
            kept += [pooled[i] for i in range(reach, len(pooled)) if getrefcount(pooled[i]) != _FREE]
            self._bytes -= sum(array.nbytes for array in pooled) - sum(array.nbytes for array in kept)
            self._pool[key] = kept
            if not kept:
                del self._pool[key]
        self._reach.clear()
        self._taken = 0

    def _evict_free(self) -> None:
        """Drops every array that is not in use; shapes that vary from batch to batch would fill the pool."""
        for key, pooled in list(self._pool.items()):
            in_use = [pooled[i] for i in range(len(pooled)) if getrefcount(pooled[i]) != _FREE]
            self._pool[key] = in_use
            if not in_use:
                del self._pool[key]
        self._bytes = sum(array.nbytes for pooled in self._pool.values() for array in pooled)

    def cast(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns a contiguous copy of `array` as `dtype`."""
        out = self.empty(array.shape, dtype)
        np.copyto(out, array, casting="unsafe")
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, (self.limit,)


class Aligned(Buffers):
    """A pool by size whose arrays begin at a multiple of 64 bytes. Thread-safe.

    JAX on a CPU takes over or reads such an array without a copy.

    >>> Aligned().empty((3, 5), np.dtype(np.int32)).ctypes.data % 64
    0
    """

    def __init__(self, limit: int = MAX_ALIGNED_BYTES) -> None:
        super().__init__(limit)
        self._blocks: dict[int, list[NDArray[np.uint8]]] = {}
        self._block_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns an uninitialised contiguous array, in reused memory where possible."""
        if dtype.hasobject:
            return np.empty(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            blocks = self._blocks.setdefault(size, [])
            for i in range(len(blocks)):
                if getrefcount(blocks[i]) == _FREE:
                    return _aligned_view(blocks[i], size, shape, dtype)
            block = np.empty(size + ALIGN, np.uint8)
            if self._block_bytes + size > self.limit:  # sizes that vary from batch to batch would fill the pool
                self._blocks, self._block_bytes = {size: []}, 0
            if _exact_refcounts and size <= self.limit:
                self._blocks[size].append(block)
                self._block_bytes += size
        return _aligned_view(block, size, shape, dtype)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The same: every array is a view of its block."""
        return self.empty(shape, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Aligned, (self.limit,)


def _aligned_view(block: NDArray[np.uint8], size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    skip = -block.ctypes.data % ALIGN
    return block[skip : skip + size].view(dtype).reshape(shape)
