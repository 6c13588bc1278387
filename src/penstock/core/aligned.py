"""Memory for batches that begins at a multiple of 64 bytes, which is what XLA asks of arrays on the host.

JAX on a CPU takes such an array over, or reads it, without a copy of its own. As in `core.buffers`, memory is
lent again once its reference count says that nobody holds it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.buffers import _FREE, Buffers, _counted

ALIGN = 64
KEPT_BYTES = 128 << 20


class Aligned(Buffers):
    """A pool by size. Thread-safe.

    >>> Aligned().empty((3, 5), np.dtype(np.int32)).ctypes.data % 64
    0
    """

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, list[NDArray[np.uint8]]] = {}
        self._held = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised contiguous array; its memory may have served before."""
        if dtype.hasobject:
            return np.empty(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            blocks = self._blocks.setdefault(size, [])
            for i in range(len(blocks)):
                if sys.getrefcount(blocks[i]) == _FREE:
                    return _view(blocks[i], size, shape, dtype)
            block = np.empty(size + ALIGN, np.uint8)
            if self._held + size > KEPT_BYTES:  # shapes that vary from batch to batch would fill the pool
                self._blocks, self._held = {size: []}, 0
            if _counted and size <= KEPT_BYTES:
                self._blocks[size].append(block)
                self._held += size
        return _view(block, size, shape, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Aligned, ()


def _view(block: NDArray[np.uint8], size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    skip = -block.ctypes.data % ALIGN
    return block[skip : skip + size].view(dtype).reshape(shape)
