"""Memory for batches, used again once nobody holds it.

Fresh memory costs a page fault for every 4 KiB, several times what copying a batch costs. A buffer is lent again
only when its reference count says that no array, tensor or view of it is left, so a batch that is kept is never
overwritten.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import NDArray

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]  # memory for an array, contents unknown

SMALLEST = 64 << 10  # below this the allocator is as quick
KEPT_BYTES = 256 << 20
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the GIL reference counts are not exact
_FREE = 2  # references to a buffer that only the pool holds: the list's and the argument of getrefcount


class Buffers:
    """A pool of arrays by shape and type. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[tuple[int, ...], np.dtype[Any]], list[NDArray[Any]]] = {}
        self._bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised contiguous array; its memory may have served before."""
        return self.take(shape, dtype).view()

    def roomy(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The same, cut out of memory for up to twice as much: for shapes that vary from batch to batch.

        >>> pool = Buffers()
        >>> first = pool.roomy((300, 200), np.dtype(int)).ctypes.data  # let go at once
        >>> pool.roomy((299, 210), np.dtype(int)).ctypes.data == first
        True
        """
        size = math.prod(shape)
        return self.take((1 << max(0, size - 1).bit_length(),), dtype)[:size].reshape(shape)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The same for those who give out only views of it: whoever changes its shape changes it for the next one."""
        with self._lock:
            kept = self._kept.get((shape, dtype), ())
            for i in range(len(kept)):
                if getrefcount(kept[i]) == _FREE:
                    return kept[i]
            array = np.empty(shape, dtype)
            if array.nbytes < SMALLEST or not _counted:
                return array
            if array.nbytes > KEPT_BYTES - self._bytes:
                self._forget()
            if array.nbytes <= KEPT_BYTES - self._bytes:
                self._kept.setdefault((shape, dtype), []).append(array)
                self._bytes += array.nbytes
            return array

    def _forget(self) -> None:
        """Drops everything that is not lent: shapes that vary from batch to batch would fill the pool."""
        for key, kept in list(self._kept.items()):
            lent = [kept[i] for i in range(len(kept)) if getrefcount(kept[i]) != _FREE]
            self._kept[key] = lent
            if not lent:
                del self._kept[key]
        self._bytes = sum(array.nbytes for kept in self._kept.values() for array in kept)

    def cast(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A contiguous copy of `array` as `dtype`."""
        out = self.empty(array.shape, dtype)
        np.copyto(out, array, casting="unsafe")
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, ()
