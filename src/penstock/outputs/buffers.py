"""Memory for batches, used again once nobody holds it.

Fresh memory costs a page fault for every 4 KiB, several times what copying a batch costs. A buffer is lent again
only when its reference count says that no array, tensor or view of it is left, so a batch that is kept is never
overwritten.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 64 << 10  # below this the allocator is as quick
KEPT_BYTES = 256 << 20
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the GIL reference counts are not exact
_FREE = 2  # references to a buffer that only the pool holds: the list's and the argument of getrefcount


class Buffers:
    """A pool of byte buffers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        self._bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised contiguous array; its memory may have served before."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size < SMALLEST or not _counted:
            return np.empty(shape, dtype)
        with self._lock:
            kept = self._kept.setdefault(size, [])
            for i in range(len(kept)):
                if sys.getrefcount(kept[i]) == _FREE:
                    return kept[i].view(dtype).reshape(shape)
            buffer = np.empty(size, np.uint8)
            if self._bytes + size <= KEPT_BYTES:
                kept.append(buffer)
                self._bytes += size
            return buffer.view(dtype).reshape(shape)

    def cast(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A contiguous copy of `array` as `dtype`."""
        out = self.empty(array.shape, dtype)
        np.copyto(out, array, casting="unsafe")
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, ()
